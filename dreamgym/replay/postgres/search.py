"""Searches a store for steps that contain a text, in the episodes that meet some conditions."""

from __future__ import annotations

import json
from dataclasses import dataclass

from dreamgym.errors import InvalidInput
from dreamgym.replay.keys import SOURCE_CODES, SOURCES
from dreamgym.replay.listing import EpisodeFilter
from dreamgym.replay.postgres.listing import PLACE, Recorded, StoredEpisodes
from dreamgym.types import Frozen, Transition

LOOKED = 5_000
"""Number of steps that one search looks through."""
FOUND = 20

WINDOW = """
SELECT trajectory.id, step.step, step.transition_id, trajectory.position,
  (%(tier)s::text IS NULL OR told -> 'provenance' ->> 'tier' = %(tier)s)
  AND CASE WHEN strpos(lower(told::text), lower(%(escaped)s)) = 0 THEN false ELSE  -- most are out without being parsed
    strpos(lower(concat_ws(E'\n', told ->> 'state', told -> 'action' ->> 'name', told -> 'result' ->> 'observation',
                           told ->> 'next_state', told ->> 'reasoning')), lower(%(text)s)) > 0
    OR strpos(lower(told -> 'action' ->> 'arguments'), lower(%(escaped)s)) > 0 END AS holds
FROM trajectories AS trajectory
JOIN trajectory_steps AS step ON step.trajectory_id = trajectory.id
JOIN transitions AS transition ON transition.env_id = step.env_id AND transition.id = step.transition_id
CROSS JOIN LATERAL (SELECT coalesce(step.body, transition.body) AS told) AS one
WHERE trajectory.env_id = %(env)s AND transition.env_id = %(env)s
  AND (%(source)s::int IS NULL OR source = %(source)s)
  AND (%(task)s = '' OR trajectory.body -> 'task' ->> 'id' = %(task)s)
  AND (%(policy_version)s::numeric IS NULL OR (trajectory.body ->> 'policy_version')::numeric = %(policy_version)s)
  AND position <= %(position)s AND (position < %(position)s OR step.step > %(step)s)
ORDER BY position DESC, step.step LIMIT %(looked)s
"""
BODIES = """
SELECT asked.id, asked.step, step.transition_id, coalesce(step.body, transition.body)::text, source,
  trajectory.body -> 'task' ->> 'instruction'
FROM unnest(%(ids)s::text[], %(steps)s::int[]) WITH ORDINALITY AS asked (id, step, number)
JOIN trajectories AS trajectory ON trajectory.id = asked.id
JOIN trajectory_steps AS step ON step.trajectory_id = asked.id AND step.step = asked.step
JOIN transitions AS transition ON transition.env_id = step.env_id AND transition.id = step.transition_id
ORDER BY asked.number
"""


class Found(Frozen):
    """Steps that contain a text."""

    recorded: tuple[Recorded, ...]
    """Each transition once, in the newest of the episodes that were looked through."""
    looked: int
    """Number of steps that were looked through."""
    next: str | None
    """Position from which the search goes on; None at its end."""


@dataclass(frozen=True)
class StepSearch:
    """A read-only search in the replay buffer."""

    episodes: StoredEpisodes

    async def holding(self, chosen: EpisodeFilter, text: str, after: str | None = None) -> Found:
        """Some of the steps whose state, call or answer contains a text, newest first; case is ignored.

        Args:
            chosen: the environment, and conditions on the episodes; `tier` is that of the step itself.
            text: text to search for; every step contains an empty text.
            after: position from which the search goes on: `Found.next` of the search before.

        Raises:
            InvalidInput: `after` is not such a position, or the text cannot be searched for.
        """
        if "\x00" in text + chosen.task:
            raise InvalidInput("cannot search for a text with a NUL character")
        position, begins = _place(after)
        database = self.episodes.database
        rows = await database.fetch("SELECT id FROM environments WHERE name = %(env)s", {"env": chosen.env})
        if not rows:
            return Found(recorded=(), looked=0, next=None)
        seen = await database.fetch(
            WINDOW,
            {
                "env": rows[0][0],
                "text": text,
                # as it stands in JSON, where quotes and line ends are escaped
                "escaped": json.dumps(text, ensure_ascii=False)[1:-1],
                "tier": chosen.tier,
                "source": None if chosen.source is None else SOURCE_CODES[chosen.source],
                "task": chosen.task,
                "policy_version": chosen.policy_version,
                "position": position,
                "step": begins,
                "looked": LOOKED,
            },
        )
        holding = [(number, row) for number, row in enumerate(seen, start=1) if row[4]]
        if chosen.success is not None:
            successes = await self._successes([row[0] for _, row in holding], wanted=chosen.success)
            holding = [(number, row) for number, row in holding if row[0] in successes]
        first_seen = {row[2]: (number, row) for number, row in reversed(holding)}
        once = sorted(first_seen.values())[:FOUND]
        is_full = len(first_seen) > FOUND
        looked = once[-1][0] if is_full else len(seen)
        goes_on = is_full or len(seen) == LOOKED
        last = seen[looked - 1] if seen else None
        return Found(
            recorded=tuple(await self._recorded([(row[0], row[1]) for _, row in once])),
            looked=looked,
            next=f"{last[3]}~{last[1]}" if goes_on and last is not None else None,
        )

    async def _successes(self, episodes: list[str], *, wanted: bool) -> set[str]:
        """The ids among these whose episodes have the wanted success."""
        found = await self.episodes.summaries(sorted(set(episodes)))
        return {one.id for one in found if one.success is wanted}

    async def _recorded(self, places: list[tuple[str, int]]) -> list[Recorded]:
        rows = await self.episodes.database.fetch(
            BODIES, {"ids": [episode for episode, _ in places], "steps": [step for _, step in places]}
        )
        return [
            Recorded(
                id=str(identity),
                place=PLACE,
                episode=episode,
                step=step + 1,
                transition=Transition.model_validate_json(body),
                instruction=instruction or "",
                source=SOURCES[source],
            )
            for episode, step, identity, body, source, instruction in rows
        ]


def _place(after: str | None) -> tuple[int, int]:
    """Position of the episode and number of the step after which a search goes on."""
    if not after:
        return 2**62, -1
    position, _, step = after.partition("~")
    if not (position.isdecimal() and step.isdecimal() and len(position) < 19 and len(step) < 10):
        raise InvalidInput(f"{after!r} is not a position in the search: give `next` of the previous page")
    return int(position), int(step)
