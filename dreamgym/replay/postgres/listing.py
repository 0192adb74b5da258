"""Reads a store for display: episodes one page at a time, their steps, and where a transition was recorded.

Nothing here writes. An episode is in one of two tables, or in both: a server keeps it among its episodes, and when it
is over, the replay buffer keeps its trajectory. If both have it, the trajectory counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from dreamgym.errors import InvalidInput, UnknownEpisode
from dreamgym.replay.keys import SOURCE_CODES, SOURCES, digest_id, key_of
from dreamgym.replay.listing import EpisodeFilter, EpisodePage, EpisodeSummary, Outcome
from dreamgym.replay.postgres.database import Database, Row
from dreamgym.types import Frozen, Source, StopReason, Task, Tier, Transition

PLACE = "store"
LOOKED = 200
"""Number of episodes that are looked through for one page, if a condition depends on their steps."""
WINDOW = 100
REMEMBERED = 20_000
"""Number of episodes whose outcome is cached, so that a list need not read their steps again."""

IN_PROCESS = r"^([0-9a-f]{16}-\d+-\d+)-[0-9a-f]{32}$"
"""Pattern of the ids of episodes that a trainer played in its own process: the group, `RUN-UPDATE-TASK`, and a
number."""

EPISODES = """
SELECT trajectory.id, true AS kept, environment.name AS env, source, added_at AS at, trajectory.body,
  trajectory.body ->> 'stop_reason' AS stop_reason, trajectory.body ->> 'answer' AS answer,
  (trajectory.body ->> 'final_reward')::float8 AS final_reward, trajectory.body ->> 'error' AS error,
  coalesce((SELECT played.body ->> 'group' FROM episodes AS played WHERE played.id = trajectory.id),
    substring(trajectory.id FROM '{in_process}')) AS group_name
FROM trajectories AS trajectory JOIN environments AS environment ON environment.id = trajectory.env_id
WHERE {trajectories}
UNION ALL
SELECT id, false, body ->> 'env', NULL, used_at, body, stop_reason, answer, final_reward, error, body ->> 'group'
FROM episodes
WHERE NOT EXISTS (SELECT FROM trajectories WHERE trajectories.id = episodes.id) AND {episodes}
"""
OF_IDS = EPISODES.format(
    in_process=IN_PROCESS, trajectories="trajectory.id = ANY (%(ids)s)", episodes="episodes.id = ANY (%(ids)s)"
)
CONDITIONS = {
    "env": ("environment.name = %(env)s", "body ->> 'env' = %(env)s"),
    "id": ("trajectory.id = %(id)s", "episodes.id = %(id)s"),
    "source": ("source = %(source)s", "%(is_played_here)s"),
    "task": ("trajectory.body -> 'task' ->> 'id' = %(task)s", "body -> 'task' ->> 'id' = %(task)s"),
    "group": (
        "(trajectory.id = ANY (SELECT id FROM episodes WHERE (body ->> 'group') COLLATE \"C\" BETWEEN %(group)s "
        'AND %(group_end)s) OR (trajectory.id COLLATE "C" BETWEEN %(id_start)s AND %(id_end)s '
        f"AND substring(trajectory.id FROM '{IN_PROCESS}') COLLATE \"C\" BETWEEN %(group)s AND %(group_end)s))",
        "(body ->> 'group') COLLATE \"C\" BETWEEN %(group)s AND %(group_end)s",
    ),
    "policy_version": (
        "(trajectory.body ->> 'policy_version')::numeric = %(policy_version)s",
        "(body ->> 'policy_version')::numeric = %(policy_version)s",
    ),
    "running": ("false", "stop_reason IS NULL"),
    "failed": ("trajectory.body ->> 'stop_reason' = 'error'", "stop_reason = 'error'"),
    "over": ("trajectory.body ->> 'stop_reason' <> 'error'", "stop_reason <> 'error'"),
    "text": (
        "(strpos(lower(trajectory.id), lower(%(text)s)) > 0 "
        "OR strpos(lower(trajectory.body -> 'task' ->> 'instruction'), lower(%(text)s)) > 0)",
        "(strpos(lower(id), lower(%(text)s)) > 0 "
        "OR strpos(lower(body -> 'task' ->> 'instruction'), lower(%(text)s)) > 0)",
    ),
}
"""Name of a filter to its condition on trajectories and its condition on the episodes of servers."""

STEPS = """
SELECT trajectory_id AS episode, step.step, coalesce(step.body, transition.body) AS body
FROM trajectory_steps AS step
JOIN transitions AS transition ON transition.env_id = step.env_id AND transition.id = step.transition_id
WHERE trajectory_id = ANY (%(kept)s)
UNION ALL
SELECT episode_id, step, body FROM episode_steps WHERE episode_id = ANY (%(others)s)
"""
SHORT_STEPS = f"""
SELECT episode, step, tier, coalesce(is_error, false) AS is_error, coalesce(reward, 0) AS reward,
  coalesce(terminated, false) AS terminated, coalesce(open_end, false) AS open_end,
  coalesce(prompt_tokens, 0) AS prompt_tokens, coalesce(completion_tokens, 0) AS completion_tokens
FROM ({STEPS}) AS steps
CROSS JOIN LATERAL json_to_record(body) AS parts (provenance json, result json)
CROSS JOIN LATERAL json_to_record(provenance) AS origin (tier text, open_end bool, prompt_tokens numeric,
                                                         completion_tokens numeric)
CROSS JOIN LATERAL json_to_record(result) AS results (is_error bool, reward float8, terminated bool)
"""
OUTCOMES = f"""
SELECT episode, json_object_agg(tier, steps)::text, sum(steps)::int, sum(errors)::int, sum(total), bool_or(terminated),
  bool_or(is_open), sum(prompt_tokens), sum(completion_tokens)
FROM (
  SELECT episode, tier, count(*) AS steps, count(*) FILTER (WHERE is_error) AS errors, sum(reward) AS total,
    bool_or(terminated) AS terminated, bool_or(open_end) AS is_open, sum(prompt_tokens) AS prompt_tokens,
    sum(completion_tokens) AS completion_tokens
  FROM ({SHORT_STEPS}) AS short GROUP BY episode, tier
) AS by_tier GROUP BY episode
"""
BODIES = f"SELECT step, body::text FROM ({STEPS}) AS steps WHERE step >= %(first)s AND step < %(last)s ORDER BY step"


class EpisodeStep(Frozen):
    """One step in a strip that shows all steps of an episode."""

    tier: Tier
    is_error: bool
    reward: float


class Recorded(Frozen):
    """A stored transition, and one of the episodes in which it was seen."""

    id: str
    place: str
    episode: str
    step: int
    """Number of the step, counted from 1."""
    transition: Transition
    instruction: str
    source: Source


@dataclass(frozen=True)
class StoredEpisodes:
    """Read-only access to the episodes of a store."""

    database: Database
    _known: dict[tuple[str, datetime], Outcome] = field(default_factory=dict)
    """Outcomes of episodes, by id and time of the last change."""

    async def page(self, chosen: EpisodeFilter, *, after: str | None = None, limit: int = 50) -> EpisodePage:
        """Episodes that meet the conditions, newest first.

        Args:
            chosen: the conditions.
            after: position from which the list goes on: `EpisodePage.next` of the page before.
            limit: number of episodes at most.

        Raises:
            InvalidInput: `after` is not such a position.
        """
        listed, parameters = _listed(chosen)
        matching = None
        if not chosen.reads_steps:
            rows = await self.database.fetch(f"SELECT count(*) FROM ({listed}) AS listed", parameters)
            matching = int(rows[0][0])
        found: list[EpisodeSummary] = []
        looked, position = 0, after
        while True:
            rows = await self._window(listed, parameters, position, limit + 1 if matching is not None else WINDOW)
            for number, one in enumerate(await self._summaries(rows)):
                if len(found) == limit:
                    return EpisodePage(episodes=tuple(found), matching=matching, looked=looked, next=position)
                looked, position = looked + 1, _position(rows[number])
                if one.passes_by_steps(chosen):
                    found.append(one)
            is_last = len(rows) < WINDOW or matching is not None
            if is_last or looked >= LOOKED:
                return EpisodePage(
                    episodes=tuple(found), matching=matching, looked=looked, next=None if is_last else position
                )

    async def summary(self, episode: str) -> EpisodeSummary:
        """One episode without its steps. Raises UnknownEpisode."""
        if "\x00" in episode:
            raise UnknownEpisode(episode)
        listed, parameters = _listed(EpisodeFilter(), episode)
        rows = await self.database.fetch(f"{SHOWN} FROM ({listed}) AS listed", parameters)
        if not rows:
            raise UnknownEpisode(episode)
        return (await self._summaries(rows))[0]

    async def summaries(self, episodes: Sequence[str]) -> list[EpisodeSummary]:
        """The stored ones among these episodes, without their steps."""
        rows = await self.database.fetch(f"{SHOWN} FROM ({OF_IDS}) AS listed", {"ids": list(episodes)})
        return await self._summaries(rows)

    async def strip(self, one: EpisodeSummary) -> list[EpisodeStep]:
        """All steps of an episode, in short form."""
        query = f"SELECT tier, is_error, reward FROM ({SHORT_STEPS}) AS short ORDER BY step"
        rows = await self.database.fetch(query, await self._tables([one.id]))
        return [EpisodeStep(tier=Tier(tier), is_error=is_error, reward=reward) for tier, is_error, reward in rows]

    async def steps(self, episode: str, first: int, count: int) -> list[Transition]:
        """Steps of an episode from number `first` on, counted from 1; at most `count` of them."""
        window = {"first": first - 1, "last": first - 1 + count}
        rows = await self.database.fetch(BODIES, {**await self._tables([episode]), **window})
        return [Transition.model_validate_json(body) for _, body in rows]

    async def openings(self, episodes: Sequence[str], count: int) -> dict[str, list[Transition]]:
        """The first steps of several episodes, at most `count` of each, by their ids."""
        rows = await self.database.fetch(
            f"SELECT episode, body::text FROM ({STEPS}) AS steps WHERE step < %(count)s ORDER BY episode, step",
            {**await self._tables(episodes), "count": count},
        )
        found: dict[str, list[Transition]] = {episode: [] for episode in episodes}
        for episode, body in rows:
            found[episode].append(Transition.model_validate_json(body))
        return found

    async def initial(self, episode: str) -> str | None:
        """The first observation of an episode that a server keeps; None: no server has it."""
        rows = await self.database.fetch(
            "SELECT body -> 'initial' ->> 'observation' FROM episodes WHERE id = %(id)s", {"id": episode}
        )
        return None if not rows else str(rows[0][0])

    async def known(self, episodes: Iterable[str]) -> set[str]:
        """The ids among these whose episodes are stored."""
        rows = await self.database.fetch(
            "SELECT id FROM trajectories WHERE id = ANY (%(ids)s) "
            "UNION SELECT id FROM episodes WHERE id = ANY (%(ids)s)",
            {"ids": [one for one in episodes if "\x00" not in one]},
        )
        return {str(row[0]) for row in rows}

    async def is_on_a_server(self, episode: str) -> bool:
        """True if a server keeps the episode, so that it can be forked."""
        return bool(await self.database.fetch("SELECT 1 FROM episodes WHERE id = %(id)s", {"id": episode}))

    async def watch(self, episode: str) -> tuple[int, StopReason | None]:
        """Number of steps of an episode, and why it ended. Raises UnknownEpisode."""
        if "\x00" in episode:
            raise UnknownEpisode(episode)
        rows = await self.database.fetch(
            "SELECT version, stop_reason FROM episodes WHERE id = %(id)s UNION ALL "
            "SELECT (SELECT count(*)::int FROM trajectory_steps WHERE trajectory_id = id), body ->> 'stop_reason' "
            "FROM trajectories WHERE id = %(id)s LIMIT 1",
            {"id": episode},
        )
        if not rows:
            raise UnknownEpisode(episode)
        return int(rows[0][0]), None if rows[0][1] is None else StopReason(rows[0][1])

    async def recorded(self, env: str, ids: Sequence[str]) -> list[Recorded]:
        """Stored transitions, each with an episode in which it was seen; deleted ones are left out."""
        wanted = [identity for text in ids if (identity := _uuid(text)) is not None]
        bodies = await self.database.fetch(
            "SELECT env_id, id, body::text FROM transitions "
            "WHERE env_id = (SELECT id FROM environments WHERE name = %(env)s) AND id = ANY (%(ids)s)",
            {"env": env, "ids": wanted},
        )
        known = {row[1]: Transition.model_validate_json(row[2]) for row in bodies}
        if not known:
            return []
        rows = await self.database.fetch(
            """
            SELECT DISTINCT ON (step.transition_id) step.transition_id, trajectory.id, step.step, trajectory.source,
              trajectory.body -> 'task' ->> 'instruction'
            FROM sightings AS sighting
            JOIN trajectories AS trajectory ON trajectory.env_id = sighting.env_id AND CASE
              WHEN only_trajectory IS NULL THEN trajectory.world_id = sighting.world_id
              ELSE trajectory.id = only_trajectory END
            JOIN trajectory_steps AS step
              ON step.trajectory_id = trajectory.id AND step.transition_id = sighting.transition_id
            WHERE sighting.env_id = %(env)s AND sighting.key = ANY (%(keys)s) AND sighting.transition_id = ANY (%(ids)s)
            ORDER BY step.transition_id, trajectory.source, trajectory.position, step.step
            """,
            {"env": bodies[0][0], "keys": [digest_id(*key_of(one)) for one in known.values()], "ids": list(known)},
        )
        return [
            Recorded(
                id=str(identity),
                place=PLACE,
                episode=episode,
                step=step + 1,
                transition=known[identity],
                instruction=instruction or "",
                source=SOURCES[source],
            )
            for identity, episode, step, source, instruction in rows
        ]

    async def _window(self, listed: str, parameters: Mapping[str, object], after: str | None, limit: int) -> list[Row]:
        begins = "true"
        if after is not None:
            moment, _, identity = after.partition("~")
            begins = "(at, id) < (%(moment)s::timestamptz, %(identity)s)"
            parameters = {**parameters, "moment": _moment(moment), "identity": identity}
        query = (
            f'SELECT id FROM ({listed}) AS listed WHERE {begins} ORDER BY at DESC, id COLLATE "C" DESC LIMIT %(limit)s'
        )
        rows = await self.database.fetch(query, {**parameters, "limit": limit})
        # the other columns are read for these episodes alone: for ten thousand, that would take longer than everything
        # else
        ids = {"ids": [row[0] for row in rows]}
        return await self.database.fetch(
            f'{SHOWN} FROM ({OF_IDS}) AS listed ORDER BY at DESC, id COLLATE "C" DESC', ids
        )

    async def _tables(self, ids: Sequence[str]) -> dict[str, object]:
        """The ids in the replay buffer, and those that only servers have."""
        rows = await self.database.fetch("SELECT id FROM trajectories WHERE id = ANY (%(ids)s)", {"ids": list(ids)})
        kept = {str(row[0]) for row in rows}
        return {"kept": sorted(kept), "others": sorted(set(ids) - kept)}

    async def _summaries(self, rows: Sequence[Row]) -> list[EpisodeSummary]:
        known = {key: self._known[key] for row in rows if (key := (row[0], row[4])) in self._known}
        new = [row for row in rows if (row[0], row[4]) not in known]
        tables = {"kept": [row[0] for row in new if row[1]], "others": [row[0] for row in new if not row[1]]}
        found = {row[0]: _outcome(row) for row in (await self.database.fetch(OUTCOMES, tables) if new else ())}
        fresh = {(row[0], row[4]): found.get(row[0], Outcome()) for row in new}
        if len(self._known) > REMEMBERED:
            self._known.clear()
        self._known.update(fresh)
        known.update(fresh)
        return [_summary(row, known[row[0], row[4]]) for row in rows]


SHOWN = "SELECT id, kept, env, source, at, body::text, stop_reason, answer, final_reward, error, group_name"


def _listed(chosen: EpisodeFilter, episode: str | None = None) -> tuple[str, dict[str, object]]:
    """Query, with its parameters, for all episodes that meet the conditions; conditions on steps are left out."""
    names = [
        *(["id"] if episode is not None else []),
        *(name for name in ("env", "task", "group", "text") if getattr(chosen, name)),
        *(["source"] if chosen.source is not None else []),
        *(["policy_version"] if chosen.policy_version is not None else []),
        *([chosen.state] if chosen.state else []),
    ]
    if any("\x00" in text for text in (chosen.env, chosen.task, chosen.group, chosen.text)):
        raise InvalidInput("cannot search for a text with a NUL character")
    both = [" AND ".join(["true", *(CONDITIONS[name][table] for name in names)]) for table in (0, 1)]
    listed = EPISODES.format(in_process=IN_PROCESS, trajectories=both[0], episodes=both[1])
    return listed, {
        "id": episode,
        "env": chosen.env,
        "task": chosen.task,
        "group": chosen.group,
        "group_end": f"{chosen.group}~" if chosen.has_part_of_group else chosen.group,
        "id_start": chosen.group if chosen.has_part_of_group else f"{chosen.group}-",
        "id_end": f"{chosen.group}~" if chosen.has_part_of_group else f"{chosen.group}-~",
        "text": chosen.text,
        "source": None if chosen.source is None else SOURCE_CODES[chosen.source],
        # an episode that only a server has is dreamed, unless it is a real one that nobody stores; it is never imported
        "is_played_here": chosen.source is Source.SYNTHETIC,
        "policy_version": chosen.policy_version,
    }


def _summary(row: Row, outcome: Outcome) -> EpisodeSummary:
    identity, kept, _, source, at, text, stop_reason, answer, final_reward, error, group = row
    body: dict[str, Any] = json.loads(text)
    is_real = set(outcome.tiers) == {Tier.REAL.value}
    return EpisodeSummary(
        place=PLACE,
        id=identity,
        task=Task.model_validate(body["task"]),
        source=SOURCES[source] if kept else Source.REAL if is_real else Source.SYNTHETIC,
        stop_reason=None if stop_reason is None else StopReason(stop_reason),
        policy_version=body.get("policy_version"),
        group=group,
        world=str(body.get("world") or ""),
        answer=answer,
        final_reward=final_reward,
        error=error,
        at=at,
        outcome=outcome,
    )


def _outcome(row: Row) -> Outcome:
    _, tiers, steps, errors, total, terminated, is_open, prompt_tokens, completion_tokens = row
    return Outcome(
        tiers=json.loads(tiers),
        steps=steps,
        errors=errors,
        total=total,
        terminated=terminated,
        is_open=is_open,
        prompt_tokens=int(prompt_tokens),
        completion_tokens=int(completion_tokens),
    )


def _position(row: Row) -> str:
    return f"{row[4].isoformat()}~{row[0]}"


def _moment(text: str) -> str:
    try:
        return datetime.fromisoformat(text).isoformat()
    except ValueError:
        raise InvalidInput(f"{text!r} is not a position in the list: give `next` of the previous page") from None


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
