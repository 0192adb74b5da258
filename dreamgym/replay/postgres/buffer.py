"""The replay buffer in PostgreSQL with pgvector.

A query whose key is stored reads an ordinary index and no vectors. Any other query scans the vectors of its
environment's partition, about half a microsecond per key; this search is exact. The recorded keys of a large
environment have an approximate index (vector_index.py). A search for recordings then reads some hundreds of vectors.
Its candidates are scored and ordered like those of an exact search. If it finds too few, an exact search follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from uuid import UUID

from pgvector import HalfVector

from dreamgym.embedding import Encoder
from dreamgym.errors import UnknownName
from dreamgym.replay.buffer import GROUNDED, KEPT, BufferCounts, Demonstration, Retrieval, TaskValue, Upserted
from dreamgym.replay.keys import (
    SOURCE_CODES,
    SOURCES,
    Key,
    KeyEncoder,
    check_kept,
    check_storable,
    digest_bytes,
    digest_id,
    goal_id,
    source_mask,
)
from dreamgym.replay.postgres import binary
from dreamgym.replay.postgres.add import add_trajectories, insert_tasks
from dreamgym.replay.postgres.database import Database, Row
from dreamgym.replay.postgres.retire import retire_dreams, take_back
from dreamgym.replay.postgres.upsert import READ, trajectory_of, upsert
from dreamgym.replay.postgres.vector_index import APPROXIMATE, EVERYTHING, EXACT, INDEXED_RESULTS, VectorIndexes
from dreamgym.replay.postgres.vectors import embed_dreams
from dreamgym.replay.ranking import (
    EXACT_SCORE,
    SIMILAR_KEYS,
    Candidate,
    is_disputed,
    rank,
    seen_states,
    similarities,
)
from dreamgym.spans import timed
from dreamgym.types import Source, Task, Trajectory, Transition

IDENTICAL = "WITH asked AS (SELECT %(key)s::uuid AS key, NULL AS state, NULL AS action, 1.0::float8 AS cosine)"
SIMILAR = f"WITH asked AS MATERIALIZED ({EXACT})"
NEARLY = f"WITH asked AS MATERIALIZED ({APPROXIMATE})"


class PostgresBuffer:
    """A ReplayBuffer in PostgreSQL, shared by all processes that open the same database."""

    def __init__(self, database: Database, encoder: Encoder, encoder_id: int) -> None:
        self._database = database
        self._encoder = KeyEncoder(encoder)
        self._encoder_id = encoder_id
        self._env_ids: dict[str, int] = {}
        self.indexes = VectorIndexes(database, encoder_id)

    @timed("store", operation="add")
    async def add(self, trajectories: Sequence[Trajectory]) -> int:
        """Store trajectories with their tasks in one transaction and return how many were new."""
        envs = {env: await self._make_env(env) for env in sorted({found.task.env for found in trajectories})}
        async with self.indexes.adding(envs.values()):
            return await add_trajectories(self._database, self._encoder, self._encoder_id, envs, trajectories)

    async def upsert(self, trajectories: Sequence[Trajectory], tasks: Sequence[Task] = ()) -> Upserted:
        """Store trajectories and tasks; replace a stored one of the same id if the content differs."""
        names = sorted({found.task.env for found in trajectories} | {task.env for task in tasks})
        envs = {env: await self._make_env(env) for env in names}
        async with self.indexes.adding(envs.values()):
            return await upsert(self._database, self._encoder, self._encoder_id, envs, trajectories, tasks)

    @timed("store", operation="nearest")
    async def nearest(self, retrieval: Retrieval) -> tuple[Demonstration, ...]:
        """At most k transitions, best first; only identical ones if there are any, which takes one round trip."""
        env = await self._find_env(retrieval.env)
        if env is None or retrieval.k < 1:
            return ()
        asked = (retrieval.state, retrieval.action.canonical())
        parameters = _parameters(retrieval, asked)
        drawn_by_world = retrieval.history is not None
        rows = await self._database.fetch(_statement(IDENTICAL, self._encoder_id, env, drawn_by_world), parameters)
        if exact := bool(rows):
            scores = {row[0]: EXACT_SCORE for row in rows}
        else:
            vector = (await self._encoder.encode([asked]))[0]
            similar = {
                **parameters,
                "state": retrieval.state,
                "vector": HalfVector(vector),
                "keys": SIMILAR_KEYS,
                "tool": retrieval.tool and f"{retrieval.tool}{{",  # arguments follow the name directly
            }
            rows = await self._similar(env, drawn_by_world, similar, retrieval)
            # in a thread: long texts take a while, and the event loop must stay free
            scores = await asyncio.to_thread(_similarities, asked, rows)
        candidates = [
            Candidate(
                identity, outcome, world, SOURCES[source], agreement, scores[key], exact, goal, same_goal, recorded
            )
            for key, _, _, _, identity, outcome, _, world, source, agreement, goal, same_goal, _, recorded in rows
        ]
        told = {row[4]: (row[6], row[12]) for row in rows}
        return tuple(_demonstration(best, told) for best in rank(candidates, retrieval))

    async def _similar(
        self, env: int, drawn_by_world: bool, asked: Mapping[str, object], retrieval: Retrieval
    ) -> list[Row]:
        """Rows of the nearest keys. An approximate search that finds too few is followed by an exact one."""
        width = None
        if retrieval.sources <= GROUNDED:
            width = await self.indexes.ef_search(env)
        else:
            await embed_dreams(self._database, self._encoder, self._encoder_id, env)
        if width is not None:
            for limit in (INDEXED_RESULTS, 4 * INDEXED_RESULTS):  # some keys belong only to the excluded episode
                statement = _statement(NEARLY, self._encoder_id, env, drawn_by_world, limit)
                found = await self._database.fetch(statement, {**asked, "ef_search": str(width)})
                rows = _nearest_keys(found, INDEXED_RESULTS)
                if len({row[0] for row in rows}) == INDEXED_RESULTS:
                    return rows
        statement = _statement(SIMILAR, self._encoder_id, env, drawn_by_world)
        return _nearest_keys(await self._database.fetch(statement, asked), SIMILAR_KEYS)

    async def watermark(self, env: str, group: str = "") -> int:
        """Position of the newest trajectory; for a named group, the position at the first call for this group."""
        parameters = {"env": await self._make_env(env), "group": group}
        newest = "SELECT coalesce(max(position), 0) FROM trajectories WHERE env_id = %(env)s"
        if not group:
            return int((await self._database.fetch(newest, parameters))[0][0])
        known = "SELECT position FROM watermarks WHERE env_id = %(env)s AND name = %(group)s"
        rows = await self._database.fetch(known, parameters)
        if not rows:
            await self._database.fetch(
                f"INSERT INTO watermarks (env_id, name, position) SELECT %(env)s, %(group)s, ({newest}) "
                "ON CONFLICT DO NOTHING",
                parameters,
            )
            rows = await self._database.fetch(known, parameters)
        return int(rows[0][0])

    async def newest_recording(self, env: str) -> int:
        """Position of the newest trajectory that was not dreamed, or of the last change of a stored one."""
        rows = await self._database.fetch(
            "SELECT greatest(0, "
            "(SELECT max(position) FROM trajectories WHERE env_id = env.id AND source <> %(dreamed)s), "
            "(SELECT position FROM watermarks WHERE env_id = env.id AND name = '')) "
            "FROM (SELECT (SELECT id FROM environments WHERE name = %(env)s) AS id) AS env",
            {"env": env, "dreamed": SOURCE_CODES[Source.SYNTHETIC]},
        )
        return int(rows[0][0])

    async def trajectories(
        self, env: str, *, sources: frozenset[Source] = GROUNDED, limit: int | None = None
    ) -> tuple[Trajectory, ...]:
        env_id = await self._find_env(env)
        if env_id is None:
            return ()
        rows = await self._database.fetch(
            f"{READ.format(env=env_id)} AND source = ANY (%(sources)s) ORDER BY position LIMIT %(limit)s",
            {"sources": [SOURCE_CODES[source] for source in sources], "limit": limit},
        )
        return tuple(await asyncio.to_thread(lambda: [trajectory_of(body, steps) for body, steps in rows]))

    async def add_tasks(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            check_storable(task, f"task {task.id!r}")
        envs = {env: await self._make_env(env) for env in sorted({task.env for task in tasks})}
        async with self._database.transaction() as connection:
            for env, env_id in envs.items():
                await insert_tasks(connection, env_id, [task for task in tasks if task.env == env])

    async def tasks(self, env: str) -> tuple[Task, ...]:
        rows = await self._database.fetch(
            "SELECT body::text FROM tasks WHERE env_id = (SELECT id FROM environments WHERE name = %(env)s) "
            "ORDER BY position",
            {"env": env},
        )
        return tuple(Task.model_validate_json(row[0]) for row in rows)

    async def record_outcomes(
        self, env: str, task_id: str, policy_version: int, rewards_G: Sequence[float], *, run: str = ""
    ) -> None:
        async with self._database.transaction() as connection:
            cursor = await connection.execute(
                """
                INSERT INTO task_outcomes AS old
                  (env_id, task_id, run, policy_version, attempts, reward_sum, reward_squares, recorded_at)
                SELECT env_id, id, %(run)s, %(version)s, %(attempts)s, %(sum)s, %(squares)s, clock_timestamp()
                FROM tasks WHERE env_id = (SELECT id FROM environments WHERE name = %(env)s) AND id = %(task)s
                ON CONFLICT (env_id, task_id, run, policy_version) DO UPDATE SET
                  attempts = old.attempts + excluded.attempts,
                  reward_sum = old.reward_sum + excluded.reward_sum,
                  reward_squares = old.reward_squares + excluded.reward_squares,
                  recorded_at = excluded.recorded_at
                """,
                {
                    "env": env,
                    "task": task_id,
                    "run": run,
                    "version": policy_version,
                    "attempts": len(rewards_G),
                    "sum": float(sum(rewards_G)),
                    "squares": float(sum(reward * reward for reward in rewards_G)),
                },
            )
        if cursor.rowcount == 0:
            known = [task.id for task in await self.tasks(env)]
            raise UnknownName("task", task_id, known[:20], f"{len(known)} in all")

    async def task_values(self, env: str) -> tuple[TaskValue, ...]:
        rows = await self._database.fetch(
            """
            SELECT task_id, policy_version, attempts, reward_sum / attempts,
                   greatest(0, reward_squares / attempts - (reward_sum / attempts) ^ 2), all_attempts, all_mean
            FROM (SELECT DISTINCT ON (task_id) *,
                         sum(attempts) OVER task AS all_attempts, sum(reward_sum) OVER task / sum(attempts) OVER task
                         AS all_mean
                  FROM task_outcomes
                  WHERE env_id = (SELECT id FROM environments WHERE name = %(env)s) AND attempts > 0
                  WINDOW task AS (PARTITION BY task_id)
                  ORDER BY task_id, recorded_at DESC, policy_version DESC) AS newest
            JOIN tasks ON tasks.env_id = newest.env_id AND tasks.id = newest.task_id
            ORDER BY position
            """,
            {"env": env},
        )
        return tuple(
            TaskValue(
                task_id=task,
                policy_version=version,
                attempts=attempts,
                mean=mean,
                variance=variance,
                total_attempts=int(total_attempts),
                total_mean=total_mean,
            )
            for task, version, attempts, mean, variance, total_attempts, total_mean in rows
        )

    async def retire(self, env: str, *, keep: int = KEPT) -> int:
        """Delete most dreams of the tasks that are always solved; return how many trajectories were deleted."""
        check_kept(keep)
        env_id = await self._find_env(env)
        return 0 if env_id is None else await retire_dreams(self._database, self._encoder_id, env, env_id, keep)

    async def take_back(self, env: str, run: str, iteration: int) -> int:
        """Delete what a run stored in an iteration and in later ones, as if the run had not reached that iteration yet.

        This includes the episodes of groups named `RUN-ITERATION-…`, over or not, their trajectories and watermarks,
        the outcomes of these iterations, and the trajectories whose ids begin with such a group name.

        Returns:
            Number of the deleted steps that were taken in the real environment.
        """
        env_id = await self._make_env(env)  # episodes may be there before the first trajectory of their environment
        return await take_back(self._database, self._encoder_id, env, env_id, run, iteration)

    async def counts(self, env: str) -> BufferCounts:
        env_id = await self._find_env(env)
        if env_id is None:
            return BufferCounts(tasks=0, trajectories=0, transitions=0, worlds=0)
        ((tasks, trajectories, transitions, worlds),) = await self._database.fetch(
            f"""
            SELECT (SELECT count(*) FROM tasks WHERE env_id = {env_id}),
                   (SELECT count(*) FROM trajectories WHERE env_id = {env_id}),
                   (SELECT count(*) FROM transitions_{env_id}),
                   (SELECT count(*) FROM worlds WHERE env_id = {env_id})
            """,
            {},
        )
        return BufferCounts(tasks=tasks, trajectories=trajectories, transitions=transitions, worlds=worlds)

    async def close(self) -> None:
        """Stop the background tasks. The connections belong to the Store."""
        await self.indexes.close()

    async def _find_env(self, env: str) -> int | None:
        if env not in self._env_ids:
            rows = await self._database.fetch("SELECT id FROM environments WHERE name = %(env)s", {"env": env})
            if not rows:
                return None
            self._env_ids[env] = await self._make_env(env)  # its table of vectors may be missing for this encoder
        return self._env_ids[env]

    async def _make_env(self, env: str) -> int:
        if env not in self._env_ids:
            async with self._database.transaction() as connection:
                cursor = await connection.execute("SELECT ensure_environment(%s)", [env])
                row = await cursor.fetchone()
                assert row is not None
                await connection.execute(
                    "SELECT ensure_vectors(%s::smallint, %s::smallint)", [self._encoder_id, row[0]]
                )
            self._env_ids[env] = int(row[0])
        return self._env_ids[env]


@cache
def _statement(asked: str, encoder: int, env: int, drawn_by_world: bool, limit: int = 0) -> str:
    template = resources.files("dreamgym.replay.postgres").joinpath("retrieval.sql").read_text(encoding="utf-8")
    drawn = "world.name" if drawn_by_world else "sighting.transition_id::text"
    return (asked + template).format(encoder=encoder, env=env, drawn=drawn, limit=limit)


def _parameters(retrieval: Retrieval, asked: Key) -> dict[str, object]:
    return {
        "key": digest_id(*asked),
        "seen": binary.array("uuid", binary.uuid(map(digest_bytes, seen_states(retrieval)))),
        "mask": source_mask(retrieval.sources),
        "grounded": source_mask(GROUNDED),
        "world": retrieval.world,
        "goal": goal_id(retrieval.goal),
        "exclude": retrieval.exclude,
        "as_of": EVERYTHING if retrieval.as_of is None else retrieval.as_of,
        "seed": str(retrieval.seed),
        "cut": 4 * retrieval.k + 16,  # transitions that differ only in reward or end count as one
    }


def _nearest_keys(rows: list[Row], keys: int) -> list[Row]:
    """The rows that belong to the nearest keys; every row is of an allowed transition."""
    cosines: dict[UUID, float] = {row[0]: row[3] for row in rows}
    nearest = set(sorted(cosines, key=lambda key: (-cosines[key], key))[:keys])
    return [row for row in rows if row[0] in nearest]


def _similarities(asked: Key, rows: list[Row]) -> dict[UUID, float]:
    """Key id to its similarity to the asked key (see `similarities`)."""
    keys: dict[UUID, tuple[Key, float]] = {row[0]: ((row[1], row[2]), row[3]) for row in rows}
    scores = similarities(asked, [key for key, _ in keys.values()], [cosine for _, cosine in keys.values()])
    return dict(zip(keys, scores, strict=True))


def _demonstration(best: Candidate, told: Mapping[UUID, tuple[str, str]]) -> Demonstration:
    """The candidate with its transition; `told` maps each id to the transition as JSON and the instruction."""
    body, instruction = told[best.id]
    transition = Transition.model_validate_json(body)
    rivals = (Transition.model_validate_json(told[rival][0]) for rival in best.rivals)
    return Demonstration(
        id=str(best.id),
        transition=transition,
        source=best.source,
        world=best.world,
        score=best.score,
        exact=best.exact,
        instruction=instruction,
        same_goal=best.same_goal,
        disputed=is_disputed(transition, rivals),
    )
