"""Adds trajectories to PostgreSQL: Python computes the rows that are new, and one transaction copies them in.

Writers of one environment take turns under an advisory lock, so what is looked up stays true until the commit.
Vectors are computed before the lock is taken: embedding takes seconds, and other writers must not wait for it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector

from dreamgym.replay.keys import (
    SOURCE_CODES,
    Key,
    KeyEncoder,
    check_trajectories,
    digest_id,
    goal_id,
    key_of,
    outcome_id,
    transition_id,
)
from dreamgym.replay.postgres.database import Connection, Database
from dreamgym.types import Task, Trajectory

WRITE_LOCK = 728_903
MANY_STEPS = 1_000


@dataclass
class Batch:
    """The rows of some trajectories of one environment, computed without looking at the store."""

    trajectories: list[Trajectory] = field(default_factory=list)
    transitions: dict[UUID, tuple[UUID, str]] = field(default_factory=dict)
    """Transition id to outcome id and JSON body."""
    steps: list[tuple[str, int, UUID, str]] = field(default_factory=list)
    keys: dict[UUID, Key] = field(default_factory=dict)
    key_sources: dict[UUID, int] = field(default_factory=lambda: defaultdict(int))
    sightings: dict[tuple[UUID, UUID, str, int, UUID], str | None] = field(default_factory=dict)
    """(key, transition, world, source, goal) to the id of the only trajectory that contains it; None if several do."""
    goals: dict[UUID, str] = field(default_factory=dict)
    """Goal id to the instruction of the first task with this goal."""
    states: dict[tuple[UUID, str], int] = field(default_factory=lambda: defaultdict(int))
    """(state, world) to a bit mask of the sources of its trajectories."""
    positions: Mapping[str, int] = field(default_factory=dict)
    """Positions of trajectories that replace stored ones. The store assigns the positions of all others."""
    first_at: dict[object, int] = field(default_factory=dict)
    """Key, sighting or state to the first of these positions; what is not in it is new with this batch."""

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory], positions: Mapping[str, int]) -> Batch:
        """The rows of these trajectories."""
        batch = cls(positions=positions)
        for trajectory in trajectories:
            batch._add(trajectory)
        return batch

    def _add(self, trajectory: Trajectory) -> None:
        self.trajectories.append(trajectory)
        source, world = SOURCE_CODES[trajectory.source], trajectory.world_id
        goal = goal_id(trajectory.task.goal)
        self.goals.setdefault(goal, trajectory.task.instruction)
        for number, transition in enumerate(trajectory.transitions):
            identity, key = transition_id(transition), digest_id(*key_of(transition))
            body = transition.model_dump_json()
            self.transitions.setdefault(identity, (outcome_id(transition), body))
            self.steps.append((trajectory.id, number, identity, body))
            self.keys.setdefault(key, key_of(transition))
            self.key_sources[key] |= 1 << source
            sighting = (key, identity, world, source, goal)
            if self.sightings.setdefault(sighting, trajectory.id) != trajectory.id:
                self.sightings[sighting] = None
            states = [(digest_id(state), world) for state in (transition.state, transition.next_state)]
            for state in states:
                self.states[state] |= 1 << source
            if trajectory.id in self.positions:
                for place in (key, sighting, *states):
                    self.first_at.setdefault(place, self.positions[trajectory.id])


async def add_trajectories(
    database: Database,
    encoder: KeyEncoder,
    encoder_id: int,
    envs: Mapping[str, int],
    trajectories: Sequence[Trajectory],
) -> int:
    """Store the trajectories whose ids are new, all or none; return their number. The environments must exist."""
    await asyncio.to_thread(check_trajectories, trajectories)
    known = await database.fetch("SELECT id FROM trajectories WHERE id = ANY (%(ids)s)", _ids(trajectories))
    new = _without(trajectories, {row[0] for row in known})
    if not new:
        return 0
    batches = await batches_of(new, envs)
    vectors = {env_id: await encode(database, encoder, encoder_id, env_id, batch) for env_id, batch in batches.items()}
    async with database.transaction() as connection:
        for env_id in sorted(batches):
            await connection.execute("SELECT pg_advisory_xact_lock(%s, %s)", [WRITE_LOCK, env_id])
        cursor = await connection.execute("SELECT id FROM trajectories WHERE id = ANY (%(ids)s)", _ids(new))
        # another writer may have stored some of them while this one computed vectors
        if overtaken := {row[0] for row in await cursor.fetchall()}:
            new = _without(new, overtaken)
            batches = await batches_of(new, envs)
        for env_id, batch in batches.items():
            await store(connection, encoder, encoder_id, env_id, batch, vectors[env_id])
    return len(new)


async def _analyze(connection: Connection, encoder_id: int, env_id: int) -> None:
    """Update the planner's statistics. Without them a search for similar keys joins all sightings: 12 ms, not 1 ms."""
    tables = ("transitions", "sightings", "world_states", f"vectors_{encoder_id}")
    await connection.execute(f"ANALYZE {', '.join(f'{table}_{env_id}' for table in tables)}")


async def insert_tasks(connection: Connection, env_id: int, tasks: Iterable[Task], *, replace: bool = False) -> None:
    """Store tasks in this order. A stored task is left alone; with `replace`, it is replaced and keeps its place."""
    rows = {task.id: task.model_dump_json() for task in reversed(list(tasks))}
    taken = "UPDATE SET body = excluded.body" if replace else "NOTHING"
    await connection.execute(
        f"""
        INSERT INTO tasks (env_id, id, body)
        SELECT %(env)s, new.id, new.body::json
        FROM unnest(%(ids)s::text[], %(bodies)s::text[]) WITH ORDINALITY AS new (id, body, place) ORDER BY place
        ON CONFLICT (env_id, id) DO {taken}
        """,
        {"env": env_id, "ids": list(reversed(rows)), "bodies": list(reversed(rows.values()))},
    )


def _ids(trajectories: Sequence[Trajectory]) -> dict[str, object]:
    return {"ids": [trajectory.id for trajectory in trajectories]}


def _without(trajectories: Sequence[Trajectory], known: set[str]) -> list[Trajectory]:
    return list({found.id: found for found in trajectories if found.id not in known}.values())


async def batches_of(
    trajectories: Sequence[Trajectory], envs: Mapping[str, int], positions: Mapping[str, int] | None = None
) -> dict[int, Batch]:
    """One batch per environment.

    Args:
        trajectories: the trajectories to store.
        envs: environment name to its number in the store.
        positions: trajectory id to position, for trajectories that replace stored ones.
    """
    by_env: dict[int, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        by_env[envs[trajectory.task.env]].append(trajectory)
    return {env_id: await asyncio.to_thread(Batch.of, rows, positions or {}) for env_id, rows in by_env.items()}


async def encode(
    database: Database, encoder: KeyEncoder, encoder_id: int, env_id: int, batch: Batch
) -> dict[UUID, NDArray[np.float16]]:
    """Vectors of the keys that the store lacks. `_copy_vectors` adds those of keys that are retired meanwhile."""
    rows = await database.fetch(
        f"SELECT key FROM vectors_{encoder_id}_{env_id} WHERE env_id = {env_id} AND key = ANY (%(keys)s)",
        {"keys": list(batch.keys)},
    )
    missing = list(batch.keys.keys() - {row[0] for row in rows})
    if not missing:
        return {}
    return dict(zip(missing, await encoder.encode([batch.keys[key] for key in missing]), strict=True))


async def store(
    connection: Connection,
    encoder: KeyEncoder,
    encoder_id: int,
    env_id: int,
    batch: Batch,
    vectors: Mapping[UUID, NDArray[np.float16]],
) -> None:
    """Store a batch of trajectories whose ids are not stored, in a transaction that holds the write lock.

    The order matters: later tables refer to the ids and positions that earlier ones were given.
    """
    await insert_tasks(connection, env_id, (trajectory.task for trajectory in batch.trajectories))
    await _insert_goals(connection, env_id, batch)
    worlds = await _worlds(connection, env_id, batch)
    stored = await _copy_transitions(connection, env_id, batch)
    await _copy_trajectories(connection, env_id, batch, worlds, stored)
    position = await _position(connection, env_id)
    await _copy_vectors(connection, encoder, encoder_id, env_id, batch, vectors, position)
    await _insert_sightings(connection, env_id, batch, worlds, position)
    await _insert_states(connection, env_id, batch, worlds, position)
    if len(batch.steps) >= MANY_STEPS:
        await _analyze(connection, encoder_id, env_id)


async def _position(connection: Connection, env_id: int) -> int:
    """Position of the newest trajectory, recorded as `first_at` of all rows of a batch.

    One position is enough for the whole batch, because a batch is one transaction: no watermark lies within it.
    """
    cursor = await connection.execute("SELECT max(position) FROM trajectories WHERE env_id = %s", [env_id])
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


async def _insert_goals(connection: Connection, env_id: int, batch: Batch) -> None:
    await connection.execute(
        "INSERT INTO goals SELECT %s, new.* FROM unnest(%s::uuid[], %s::text[]) AS new ON CONFLICT DO NOTHING",
        [env_id, list(batch.goals), list(batch.goals.values())],
    )


async def _worlds(connection: Connection, env_id: int, batch: Batch) -> dict[str, int]:
    names = list(dict.fromkeys(trajectory.world_id for trajectory in batch.trajectories))
    parameters = {"env": env_id, "names": names}
    await connection.execute(
        "INSERT INTO worlds (env_id, name) SELECT %(env)s, unnest(%(names)s::text[]) ON CONFLICT DO NOTHING", parameters
    )
    cursor = await connection.execute(
        "SELECT name, id FROM worlds WHERE env_id = %(env)s AND name = ANY (%(names)s)", parameters
    )
    return {str(name): int(world) for name, world in await cursor.fetchall()}


async def _copy_transitions(connection: Connection, env_id: int, batch: Batch) -> dict[UUID, str]:
    """Copy the new transitions; return the body stored for each, which may be that of an earlier trajectory."""
    cursor = await connection.execute(
        f"SELECT id, body::text FROM transitions_{env_id} WHERE env_id = {env_id} AND id = ANY (%s)",
        [list(batch.transitions)],
        binary=True,
    )
    stored: dict[UUID, str] = dict(await cursor.fetchall())
    new = [(env_id, key, *row) for key, row in batch.transitions.items() if key not in stored]
    await _copy(connection, f"transitions_{env_id} (env_id, id, outcome, body)", ["int2", "uuid", "uuid", "text"], new)
    return {key: stored.get(key, body) for key, (_, body) in batch.transitions.items()}


async def _copy_trajectories(
    connection: Connection, env_id: int, batch: Batch, worlds: Mapping[str, int], stored: Mapping[UUID, str]
) -> None:
    columns = "id, env_id, world_id, source, goal, body, digest"
    types = ["text", "int2", "int4", "int2", "uuid", "text", "bytea"]
    new: list[tuple[object, ...]] = []
    placed: list[tuple[object, ...]] = []
    for found in batch.trajectories:
        world, source, goal = worlds[found.world_id], SOURCE_CODES[found.source], goal_id(found.task.goal)
        body = found.model_dump_json(exclude={"transitions"})
        row = (found.id, env_id, world, source, goal, body, found.digest())
        if found.id in batch.positions:
            placed.append((*row, batch.positions[found.id]))
        else:
            new.append(row)
    await _copy(connection, f"trajectories ({columns})", types, new)
    await _copy(connection, f"trajectories ({columns}, position)", [*types, "int8"], placed)
    # equal transitions share one body; a step keeps its own only if it differs, as in the reasoning behind it
    steps = [
        (trajectory, number, env_id, identity, None if body == stored[identity] else body)
        for trajectory, number, identity, body in batch.steps
    ]
    await _copy(
        connection,
        "trajectory_steps (trajectory_id, step, env_id, transition_id, body)",
        ["text", "int4", "int2", "uuid", "text"],
        steps,
    )


async def _copy_vectors(
    connection: Connection,
    encoder: KeyEncoder,
    encoder_id: int,
    env_id: int,
    batch: Batch,
    vectors: Mapping[UUID, NDArray[np.float16]],
    position: int,
) -> None:
    table = f"vectors_{encoder_id}_{env_id}"
    cursor = await connection.execute(
        f"SELECT key, sources FROM {table} WHERE env_id = {env_id} AND key = ANY (%s)", [list(batch.keys)]
    )
    known: dict[UUID, int] = dict(await cursor.fetchall())
    # `encode` looked before the lock was taken: a key that was retired since then needs its vector after all
    retired = [key for key in batch.keys if key not in known and key not in vectors]
    vectors = {
        **vectors,
        **dict(zip(retired, await encoder.encode([batch.keys[key] for key in retired]), strict=True)),
    }
    new = [
        (
            env_id,
            key,
            batch.key_sources[key],
            *batch.keys[key],
            HalfVector(vectors[key]),
            batch.first_at.get(key, position),
        )
        for key in batch.keys
        if key not in known
    ]
    types = ["int2", "uuid", "int2", "text", "text", "halfvec", "int8"]
    await _copy(connection, f"{table} (env_id, key, sources, state, action, embedding, first_at)", types, new)
    # a search skips keys whose mask holds no allowed source, so a known key gets the sources of this batch as well
    wider = {key: sources | batch.key_sources[key] for key, sources in known.items()}
    changed = [(sources, key) for key, sources in wider.items() if sources != known[key]]
    if changed:
        await connection.cursor().executemany(
            f"UPDATE {table} SET sources = %s WHERE env_id = {env_id} AND key = %s", changed
        )


async def _insert_sightings(
    connection: Connection, env_id: int, batch: Batch, worlds: Mapping[str, int], position: int
) -> None:
    # retrieval must never return what only the running episode has seen: `only_trajectory` names the one trajectory
    # behind a sighting, and becomes NULL when a second one has it
    keys, transitions, names, sources, goals = zip(*batch.sightings, strict=True) if batch.sightings else ((),) * 5
    await connection.execute(
        f"""
        INSERT INTO sightings_{env_id} AS old
          (env_id, key, transition_id, world_id, source, goal, only_trajectory, first_at)
        SELECT {env_id}, new.*
        FROM unnest(%s::uuid[], %s::uuid[], %s::int[], %s::smallint[], %s::uuid[], %s::text[], %s::bigint[]) AS new
        ON CONFLICT (env_id, key, transition_id, world_id, source, goal) DO UPDATE SET only_trajectory = NULL
        WHERE old.only_trajectory IS NOT NULL
        """,
        [
            list(keys),
            list(transitions),
            [worlds[name] for name in names],
            list(sources),
            list(goals),
            list(batch.sightings.values()),
            [batch.first_at.get(sighting, position) for sighting in batch.sightings],
        ],
    )


async def _insert_states(
    connection: Connection, env_id: int, batch: Batch, worlds: Mapping[str, int], position: int
) -> None:
    states, names = zip(*batch.states, strict=True) if batch.states else ((), ())
    await connection.execute(
        f"""
        INSERT INTO world_states_{env_id} AS old
        SELECT {env_id}, new.*
        FROM unnest(%s::uuid[], %s::int[], %s::smallint[], %s::bigint[]) AS new (state, world_id, sources, first_at)
        ON CONFLICT (env_id, state, world_id) DO UPDATE SET sources = old.sources | excluded.sources
        WHERE old.sources | excluded.sources <> old.sources
        """,
        [
            list(states),
            [worlds[name] for name in names],
            list(batch.states.values()),
            [batch.first_at.get(state, position) for state in batch.states],
        ],
    )


async def _copy(connection: Connection, target: str, types: list[str], rows: Sequence[tuple[object, ...]]) -> None:
    """Insert rows with a binary COPY. JSON columns are given as text: the binary form of JSON is its text."""
    if not rows:
        return
    async with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY {target} FROM STDIN (FORMAT BINARY)") as copy,
    ):
        copy.set_types(types)
        for row in rows:
            await copy.write_row(row)
