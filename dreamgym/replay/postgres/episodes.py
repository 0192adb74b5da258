"""The episode store in PostgreSQL: one conditional statement stores all waiting steps in one round trip.

Every write waits for the disk unless the server is configured not to (synchronous_commit, fsync), so an answered step
survives a crash of PostgreSQL. Steps that arrive while others are being stored are stored together after them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import psycopg

from dreamgym.errors import InvalidInput, StaleEpisode, StoreError, UnknownEpisode
from dreamgym.replay.episode_store import Episode, SteadyClock, stale
from dreamgym.replay.keys import check_storable
from dreamgym.replay.postgres.database import Database, Row
from dreamgym.spans import timed
from dreamgym.types import StopReason, Transition

CHANGING = ("stop_reason", "answer", "final_reward", "error", "undelivered", "expires_at")

EPISODE = """
SELECT body::text, stop_reason, answer, final_reward, error, undelivered, expires_at,
       ARRAY(SELECT step.body::text FROM episode_steps AS step WHERE episode_id = episodes.id ORDER BY step)
FROM episodes
"""


GROUP = 256
"""Most steps that one statement stores."""

APPEND = """
WITH asked AS (
  SELECT * FROM unnest(%(ids)s::text[], %(versions)s::int[], %(stop_reasons)s::text[], %(undelivered)s::bool[],
                       %(bodies)b::text[]) AS asked (id, version, stop_reason, undelivered, body)
), locked AS MATERIALIZED (  -- in one order in all processes, which therefore never wait for each other in a circle
  SELECT id FROM episodes WHERE id = ANY (%(ids)s::text[]) AND stop_reason IS NULL ORDER BY id FOR UPDATE
), moved AS (
  UPDATE episodes
  SET version = episodes.version + 1, stop_reason = asked.stop_reason, undelivered = asked.undelivered,
      used_at = %(now)s
  FROM asked JOIN locked USING (id)
  WHERE episodes.id = asked.id AND episodes.version = asked.version AND episodes.stop_reason IS NULL
  RETURNING episodes.id, asked.version, asked.body
)
INSERT INTO episode_steps SELECT id, version, body::json FROM moved RETURNING episode_id
"""


@dataclass(frozen=True)
class WaitingStep:
    """A step that waits to be stored on top of `version` steps."""

    episode_id: str
    version: int
    stop_reason: str | None
    undelivered: bool
    body: str
    outcome: asyncio.Future[tuple[bool, bool]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """True if the step was stored, and True if the statement was tried twice."""


class PostgresEpisodeStore:
    """An EpisodeStore in PostgreSQL, shared by all replicas."""

    def __init__(self, database: Database, clock: SteadyClock) -> None:
        self._database = database
        self._clock = clock
        self._waiting: list[WaitingStep] = []
        self._writing: asyncio.Task[None] | None = None
        """The task that stores the waiting steps."""

    def now(self) -> datetime:
        """The database's time when the store was opened, advanced by this process's monotonic clock."""
        return self._clock.now()

    async def check(self) -> None:
        """Raises StoreError if the database does not answer at once, or takes no writes."""
        await self._database.check()

    @timed("store", operation="create")
    async def create(self, episode: Episode, *, idempotency_key: str | None = None) -> Episode:
        """Store a new episode, or return the one that an earlier call with the same key made."""
        check_storable(episode, f"episode {episode.id!r}")
        try:
            created = await self._insert(episode, idempotency_key)
        except psycopg.errors.UniqueViolation as error:  # the id is taken, and possibly the key as well
            if idempotency_key is not None and (known := await self.find(idempotency_key)):
                return known
            raise InvalidInput(
                f"episode {episode.id!r} exists already: a new episode needs an id of its own"
            ) from error
        if created:
            return episode
        return (await self._episodes("WHERE idempotency_key = %(key)s", {"key": idempotency_key}))[0]

    @timed("store", operation="find")
    async def find(self, idempotency_key: str) -> Episode | None:
        """Return the episode that was created with this key; None if there is none."""
        found = await self._episodes("WHERE idempotency_key = %(key)s", {"key": idempotency_key})
        return found[0] if found else None

    async def _insert(self, episode: Episode, idempotency_key: str | None) -> bool:
        async with self._database.transaction() as connection:
            cursor = await connection.execute(
                """
                INSERT INTO episodes (id, body, version, stop_reason, answer, final_reward, error, undelivered,
                                      expires_at, used_at, idempotency_key, archived)
                VALUES (%(id)s, %(body)s::json, %(version)s, %(stop_reason)s, %(answer)s, %(final_reward)s::float8,
                        %(error)s, %(undelivered)s, %(expires_at)s, %(now)s, %(key)s, %(archived)s)
                ON CONFLICT (idempotency_key) DO NOTHING
                """,
                {
                    **episode.model_dump(include={"answer", "final_reward", "error", "undelivered", "expires_at"}),
                    "stop_reason": episode.stop_reason and episode.stop_reason.value,
                    "id": episode.id,
                    "body": episode.model_dump_json(exclude={"transitions", *CHANGING}),
                    "version": episode.version,
                    "now": self.now(),
                    "key": idempotency_key,
                    "archived": not episode.is_kept,
                },
            )
            steps = [(episode.id, step, done.model_dump_json()) for step, done in enumerate(episode.transitions)]
            if cursor.rowcount and steps:
                await connection.cursor().executemany("INSERT INTO episode_steps VALUES (%s, %s, %s::json)", steps)
        return bool(cursor.rowcount)

    @timed("store", operation="load")
    async def load(self, episode_id: str) -> Episode:
        if "\x00" in episode_id:  # PostgreSQL cannot store this text
            raise UnknownEpisode(episode_id)
        found = await self._episodes("WHERE id = %(id)s", {"id": episode_id})
        if not found:
            raise UnknownEpisode(episode_id)
        return found[0]

    async def is_current(self, episode: Episode) -> bool:
        """True if nobody has added a step to the episode, ended it or delivered its answer since it was read."""
        rows = await self._database.fetch(
            "SELECT 1 FROM episodes WHERE id = %(id)s AND version = %(version)s "
            "AND undelivered = %(undelivered)s AND stop_reason IS NOT DISTINCT FROM %(stop_reason)s",
            {
                "id": episode.id,
                "version": episode.version,
                "undelivered": episode.undelivered,
                "stop_reason": episode.stop_reason and episode.stop_reason.value,
            },
        )
        return bool(rows)

    @timed("store", operation="append")
    async def append(
        self,
        episode_id: str,
        transition: Transition,
        *,
        version: int,
        stop_reason: StopReason | None = None,
        undelivered: bool = False,
    ) -> None:
        """Add a step on top of `version` steps."""
        body = check_storable(transition, f"step {version} of episode {episode_id!r}")
        step = WaitingStep(episode_id, version, stop_reason and stop_reason.value, undelivered, body)
        self._waiting.append(step)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        stored, retried = await step.outcome
        if stored:
            return
        episode = await self.load(episode_id)
        was_done_at_first = retried and episode.transitions[version:] == (transition,)
        if not was_done_at_first:
            raise StaleEpisode(stale(episode, version))

    async def _write(self) -> None:
        """Store the waiting steps, group by group, until none waits."""
        while self._waiting:
            group: dict[str, WaitingStep] = {}
            for step in self._waiting[:GROUP]:
                group.setdefault(step.episode_id, step)  # a second step of one episode waits for the next group
            self._waiting = [step for step in self._waiting if group.get(step.episode_id) is not step]
            await self._store(list(group.values()))

    async def _store(self, group: list[WaitingStep]) -> None:
        """Store these steps, which are of different episodes, and set the outcome of each."""
        try:
            rows, retried = await self._database.attempt(
                APPEND,
                {
                    "ids": [step.episode_id for step in group],
                    "versions": [step.version for step in group],
                    "stop_reasons": [step.stop_reason for step in group],
                    "undelivered": [step.undelivered for step in group],
                    "bodies": [step.body for step in group],
                    "now": self.now(),
                },
            )
        except Exception as error:  # noqa: BLE001  # the callers raise it
            if len(group) > 1 and not isinstance(error, StoreError):  # a bad step must not fail the others
                for step in group:
                    await self._store([step])
                return
            for step in group:
                if not step.outcome.done():  # else its caller was cancelled
                    step.outcome.set_exception(error)
            return
        stored = {name for (name,) in rows}
        for step in group:
            if not step.outcome.done():
                step.outcome.set_result((step.episode_id in stored, retried))

    async def mark_undelivered(self, episode_id: str, *, version: int, undelivered: bool) -> None:
        """Record whether the answer of step `version` reached its client."""
        await self._database.fetch(
            "UPDATE episodes SET undelivered = %(undelivered)s WHERE id = %(id)s AND version = %(version)s",
            {"id": episode_id, "version": version, "undelivered": undelivered},
        )

    @timed("store", operation="finish")
    async def finish(
        self,
        episode_id: str,
        stop_reason: StopReason,
        *,
        answer: str | None = None,
        final_reward: float | None = None,
        error: str | None = None,
        version: int | None = None,
    ) -> Episode:
        """End the episode and return it. An episode that is over keeps its first end."""
        await self._database.fetch(
            "UPDATE episodes SET stop_reason = %(stop_reason)s, answer = %(answer)s, "
            "final_reward = %(final_reward)s::float8, error = %(error)s, used_at = %(now)s "
            "WHERE id = %(id)s AND stop_reason IS NULL AND version = coalesce(%(version)s::int, version)",
            {
                "id": episode_id,
                "version": version,
                "stop_reason": stop_reason.value,
                "answer": answer,
                "final_reward": final_reward,
                "error": error,
                "now": self.now(),
            },
        )
        episode = await self.load(episode_id)
        if version is not None and episode.stop_reason is None:
            raise StaleEpisode(stale(episode, version))
        return episode

    async def delete(self, episode_id: str) -> None:
        async with self._database.transaction() as connection:
            cursor = await connection.execute("DELETE FROM episodes WHERE id = %s", [episode_id])
        if cursor.rowcount == 0:
            raise UnknownEpisode(episode_id)

    @timed("store", operation="running")
    async def running(self, now: datetime, idle_since: datetime) -> int:
        """Number of running episodes that have not expired and were used after `idle_since`."""
        counted = (
            "SELECT count(*) FROM episodes WHERE stop_reason IS NULL AND expires_at > %(now)s AND used_at > %(idle)s"
        )
        return int((await self._database.fetch(counted, {"now": now, "idle": idle_since}))[0][0])

    async def ended(self, episode_ids: Sequence[str]) -> frozenset[str]:
        """The ids among these whose episodes are over or deleted."""
        if not episode_ids:
            return frozenset()
        rows = await self._database.fetch(
            "SELECT id FROM episodes WHERE id = ANY(%(ids)s) AND stop_reason IS NULL", {"ids": list(episode_ids)}
        )
        return frozenset(episode_ids) - {str(name) for (name,) in rows}

    async def expired(self, envs: Sequence[str], now: datetime, idle_since: datetime) -> tuple[Episode, ...]:
        """Running episodes of these environments that have expired, or that nobody has used since `idle_since`."""
        return await self._episodes(
            "WHERE stop_reason IS NULL AND (expires_at <= %(now)s OR used_at <= %(idle)s) "
            "AND body ->> 'env' = ANY (%(envs)s)",
            {"envs": list(envs), "now": now, "idle": idle_since},
        )

    async def unarchived(self, envs: Sequence[str], *, after: str = "", limit: int) -> tuple[Episode, ...]:
        """Episodes that are over and not marked as archived, in the order of their ids."""
        return await self._episodes(
            "WHERE stop_reason IS NOT NULL AND NOT archived AND id > %(after)s AND body ->> 'env' = ANY (%(envs)s) "
            "AND body ->> 'policy_version' IS NULL ORDER BY id LIMIT %(limit)s",
            {"envs": list(envs), "after": after, "limit": limit},
        )

    async def mark_archived(self, episode_ids: Sequence[str]) -> None:
        """Mark episodes as archived: the replay buffer has stored what it keeps of them."""
        await self._database.fetch(
            "UPDATE episodes SET archived = true WHERE id = ANY (%(ids)s)", {"ids": list(episode_ids)}
        )

    async def unstored(self, env: str, run: str, iteration: int) -> tuple[Episode, ...]:
        """Finished episodes of groups named `RUN-ITERATION-…` whose trajectories the buffer has not taken yet."""
        return await self._episodes(
            "WHERE stop_reason IS NOT NULL AND NOT archived AND body ->> 'env' = %(env)s "
            "AND starts_with(body ->> 'group', %(group)s) "
            "AND NOT EXISTS (SELECT FROM trajectories WHERE trajectories.id = episodes.id)",
            {"env": env, "group": f"{run}-{iteration}-"},
        )

    async def tiers(self, env: str, run: str, iteration: int) -> dict[str, int]:
        """Number of steps that each tier answered in groups named `RUN-ITERATION-…`."""
        group = f"{run}-{iteration}-"
        rows = await self._database.fetch(
            "SELECT step.body -> 'provenance' ->> 'tier' AS tier, count(*) "
            "FROM episodes JOIN episode_steps AS step ON step.episode_id = episodes.id "
            "WHERE episodes.body ->> 'env' = %(env)s "
            """AND (episodes.body ->> 'group') COLLATE "C" BETWEEN %(first)s AND %(last)s """
            "GROUP BY tier ORDER BY tier",
            {"env": env, "first": group, "last": f"{group}~"},
        )
        return {str(tier): int(steps) for tier, steps in rows}

    async def examples(self, env: str, run: str, iteration: int, most: int) -> tuple[Episode, ...]:
        """One finished episode of each group named `RUN-ITERATION-…`, of at most `most` groups."""
        group = f"{run}-{iteration}-"
        return await self._episodes(
            """WHERE id IN (
              SELECT DISTINCT ON (body ->> 'group') id FROM episodes
              WHERE stop_reason IS NOT NULL AND body ->> 'env' = %(env)s
                AND (body ->> 'group') COLLATE "C" BETWEEN %(first)s AND %(last)s
              ORDER BY body ->> 'group', id LIMIT %(most)s
            ) ORDER BY body ->> 'group'""",
            {"env": env, "first": group, "last": f"{group}~", "most": most},
        )

    async def close(self) -> None:
        """Nothing to release: the connections belong to the Store."""

    async def _episodes(self, where: str, parameters: dict[str, object]) -> tuple[Episode, ...]:
        return tuple(_episode(row) for row in await self._database.fetch(EPISODE + where, parameters))


def _episode(row: Row) -> Episode:
    body, *changing, steps = row
    return Episode.model_validate(
        {
            **json.loads(body),
            **dict(zip(CHANGING, changing, strict=True)),
            "transitions": tuple(Transition.model_validate_json(step) for step in steps),
        }
    )
