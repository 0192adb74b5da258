"""Adds trajectories to PostgreSQL: Python computes the rows that are new, and one transaction copies them in.

Writers of one environment take turns under an advisory lock, so what is looked up stays true until the commit.
Vectors are computed before the lock is taken: embedding takes seconds, and other writers must not wait for it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat

from dreamgym.replay.keys import (
    SOURCE_CODES,
    Key,
    KeyEncoder,
    Serialized,
    check_trajectories,
    digest_bytes,
)
from dreamgym.replay.postgres import binary
from dreamgym.replay.postgres.database import WRITE_LOCK, Connection, Database
from dreamgym.replay.postgres.vectors import Vectors, encode, store_keys
from dreamgym.types import Task, Trajectory

MANY_STEPS = 1_000

Id = bytes
"""The 16 bytes of a content address (keys.digest_bytes). UUID objects would take ten times as long."""
Sighting = tuple[Id, Id, str, int, Id]
"""Key, transition, world, source and goal."""


@dataclass
class Batch:
    """The rows of some trajectories of one environment, computed without looking at the store."""

    trajectories: list[Trajectory] = field(default_factory=list)
    serialized: Mapping[str, Serialized] = field(default_factory=dict)
    """Trajectory id to its JSON; it may contain other trajectories too."""
    transitions: dict[Id, tuple[Id, str]] = field(default_factory=dict)
    """Transition id to outcome id and JSON body."""
    steps: list[tuple[str, int, Id, str]] = field(default_factory=list)
    keys: dict[Id, Key] = field(default_factory=dict)
    key_sources: dict[Id, int] = field(default_factory=lambda: defaultdict(int))
    sightings: dict[Sighting, str | None] = field(default_factory=dict)
    """Sighting to the id of the only trajectory that contains it; None if several do."""
    goals: dict[Id, str] = field(default_factory=dict)
    """Goal id to the instruction of the first task with this goal."""
    states: dict[tuple[Id, str], int] = field(default_factory=lambda: defaultdict(int))
    """(state, world) to a bit mask of the sources of its trajectories."""
    positions: Mapping[str, int] = field(default_factory=dict)
    """Positions of trajectories that replace stored ones. The store assigns the positions of all others."""
    first_at: dict[object, int] = field(default_factory=dict)
    """Key, sighting or state to the first of these positions. Rows that are not in it get the position of this
    batch."""

    @classmethod
    def of(
        cls, trajectories: Iterable[Trajectory], serialized: Mapping[str, Serialized], positions: Mapping[str, int]
    ) -> Batch:
        """The rows of these trajectories."""
        batch = cls(serialized=serialized, positions=positions)
        for trajectory in trajectories:
            batch._add(trajectory)
        return batch

    def _add(self, trajectory: Trajectory) -> None:
        self.trajectories.append(trajectory)
        source, world = SOURCE_CODES[trajectory.source], trajectory.world_id
        goal = digest_bytes(trajectory.task.goal)
        self.goals.setdefault(goal, trajectory.task.instruction)
        state_ids: dict[str, Id] = {}  # the state of a step is the next state of the one before
        bodies = self.serialized[trajectory.id].transitions
        for number, (transition, body) in enumerate(zip(trajectory.transitions, bodies, strict=True)):
            action = transition.action.canonical()
            identity = transition.digest(action)[:16]
            key = digest_bytes(transition.state, action)
            if identity not in self.transitions:
                outcome = digest_bytes(action, transition.next_state, transition.result.observation)
                self.transitions[identity] = outcome, body
            self.steps.append((trajectory.id, number, identity, body))
            self.keys.setdefault(key, (transition.state, action))
            self.key_sources[key] |= 1 << source
            sighting = (key, identity, world, source, goal)
            if self.sightings.setdefault(sighting, trajectory.id) != trajectory.id:
                self.sightings[sighting] = None
            states = []
            for state in (transition.state, transition.next_state):
                if state not in state_ids:
                    state_ids[state] = digest_bytes(state)
                states.append((state_ids[state], world))
                self.states[states[-1]] |= 1 << source
            if trajectory.id in self.positions:
                position = self.positions[trajectory.id]
                for place in (key, sighting, *states):
                    self.first_at[place] = min(position, self.first_at.get(place, position))


async def add_trajectories(
    database: Database,
    encoder: KeyEncoder,
    encoder_id: int,
    envs: Mapping[str, int],
    trajectories: Sequence[Trajectory],
) -> int:
    """Store the trajectories whose ids are new, all or none; return their number. The environments must exist."""
    serialized = await asyncio.to_thread(check_trajectories, trajectories)
    known = await database.fetch("SELECT id FROM trajectories WHERE id = ANY (%(ids)s)", _ids(trajectories))
    new = _without(trajectories, {row[0] for row in known})
    if not new:
        return 0
    batches = await batches_of(new, serialized, envs)
    vectors = {env_id: await encode(database, encoder, encoder_id, env_id, batch) for env_id, batch in batches.items()}
    async with database.transaction() as connection:
        for env_id in sorted(batches):
            await connection.execute("SELECT pg_advisory_xact_lock(%s, %s)", [WRITE_LOCK, env_id])
        cursor = await connection.execute("SELECT id FROM trajectories WHERE id = ANY (%(ids)s)", _ids(new))
        # another writer may have stored some of them while this one computed vectors
        if overtaken := {row[0] for row in await cursor.fetchall()}:
            new = _without(new, overtaken)
            batches = await batches_of(new, serialized, envs)
        for env_id, batch in batches.items():
            await store(connection, encoder, encoder_id, env_id, batch, vectors[env_id])
    return len(new)


async def _analyze(connection: Connection, encoder_id: int, env_id: int, steps: int) -> None:
    """Update the planner's statistics if a batch made the tables grow by a tenth or more.

    Without them, a search for similar keys joins all sightings and takes 12 ms, not 1 ms. A table that another task has
    locked (to build an index) is skipped and left to the server's own schedule: this transaction would wait for that
    task, and that task for this transaction.
    """
    cursor = await connection.execute(
        "SELECT reltuples FROM pg_class WHERE oid = %s::regclass", [f"transitions_{env_id}"]
    )
    row = await cursor.fetchone()
    if row is not None and steps >= max(MANY_STEPS, row[0] / 10):
        # a sample of 3,000 rows instead of 30,000; no plan depends on the values of the vectors
        await connection.execute("SET LOCAL default_statistics_target = 10")
        keys = f"vectors_{encoder_id}_{env_id} (env_id, key, sources, state, action, first_at)"
        await connection.execute(
            f"ANALYZE (SKIP_LOCKED) transitions_{env_id}, sightings_{env_id}, world_states_{env_id}, {keys}"
        )


async def insert_tasks(connection: Connection, env_id: int, tasks: Iterable[Task], *, replace: bool = False) -> None:
    """Store tasks in this order. A stored task is left alone; with `replace`, it is replaced and keeps its place."""
    rows: dict[str, str] = {}
    for task in tasks:
        rows.setdefault(task.id, task.model_dump_json())
    taken = "UPDATE SET body = excluded.body" if replace else "NOTHING"
    await connection.execute(
        f"""
        INSERT INTO tasks (env_id, id, body)
        SELECT %(env)s, new.id, new.body::json
        FROM unnest(%(ids)s::text[], %(bodies)s::text[]) WITH ORDINALITY AS new (id, body, place) ORDER BY place
        ON CONFLICT (env_id, id) DO {taken}
        """,
        {"env": env_id, "ids": list(rows), "bodies": list(rows.values())},
    )


def _ids(trajectories: Sequence[Trajectory]) -> dict[str, object]:
    return {"ids": [trajectory.id for trajectory in trajectories]}


def _without(trajectories: Sequence[Trajectory], known: set[str]) -> list[Trajectory]:
    return list({found.id: found for found in trajectories if found.id not in known}.values())


async def batches_of(
    trajectories: Sequence[Trajectory],
    serialized: Mapping[str, Serialized],
    envs: Mapping[str, int],
    positions: Mapping[str, int] | None = None,
) -> dict[int, Batch]:
    """One batch per environment.

    Args:
        trajectories: the trajectories to store.
        serialized: their JSON by id.
        envs: environment name to its number in the store.
        positions: trajectory id to position, for trajectories that replace stored ones.
    """
    by_env: dict[int, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        by_env[envs[trajectory.task.env]].append(trajectory)
    return {
        env_id: await asyncio.to_thread(Batch.of, rows, serialized, positions or {}) for env_id, rows in by_env.items()
    }


async def store(
    connection: Connection,
    encoder: KeyEncoder,
    encoder_id: int,
    env_id: int,
    batch: Batch,
    vectors: Vectors,
) -> None:
    """Store a batch of trajectories whose ids are not stored, in a transaction that holds the write lock.

    The order matters: later tables refer to the ids and positions that earlier ones were given.
    """
    tasks = (trajectory.task for trajectory in batch.trajectories)
    await insert_tasks(connection, env_id, (task for task in tasks if not task.is_blank))
    await _insert_goals(connection, env_id, batch)
    worlds, known_worlds = await _worlds(connection, env_id, batch)
    stored = await _copy_transitions(connection, env_id, batch)
    await _copy_trajectories(connection, env_id, batch, worlds, stored)
    position = await _position(connection, env_id)
    await store_keys(connection, encoder, encoder_id, env_id, batch, vectors, position)
    await _store_sightings(connection, env_id, batch, worlds, position, known_transitions=stored.keys())
    await _store_states(connection, env_id, batch, worlds, position, known_worlds)
    await _analyze(connection, encoder_id, env_id, len(batch.steps))


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
        [env_id, binary.array("uuid", binary.uuid(batch.goals)), list(batch.goals.values())],
    )


async def _worlds(connection: Connection, env_id: int, batch: Batch) -> tuple[dict[str, int], set[str]]:
    """The number of each world of a batch by name, and the names of those that were stored before."""
    names = list(dict.fromkeys(trajectory.world_id for trajectory in batch.trajectories))
    parameters = {"env": env_id, "names": names}
    cursor = await connection.execute(
        "SELECT name, id FROM worlds WHERE env_id = %(env)s AND name = ANY (%(names)s)", parameters
    )
    known: dict[str, int] = dict(await cursor.fetchall())
    parameters["names"] = [name for name in names if name not in known]
    cursor = await connection.execute(
        "INSERT INTO worlds (env_id, name) SELECT %(env)s, unnest(%(names)s::text[]) RETURNING name, id", parameters
    )
    return {**known, **dict(await cursor.fetchall())}, set(known)


async def _copy_transitions(connection: Connection, env_id: int, batch: Batch) -> dict[Id, str]:
    """Copy the new transitions; return the stored bodies of the others, by id."""
    cursor = await connection.execute(
        f"SELECT uuid_send(id), body::text FROM transitions_{env_id} WHERE env_id = {env_id} AND id = ANY (%s)",
        [binary.array("uuid", binary.uuid(batch.transitions))],
        binary=True,
    )
    stored: dict[Id, str] = dict(await cursor.fetchall())
    new = [(identity, *row) for identity, row in batch.transitions.items() if identity not in stored]
    await binary.copy(
        connection,
        f"transitions_{env_id} (env_id, id, outcome, body)",
        binary.int2([env_id] * len(new)),
        binary.uuid(identity for identity, _, _ in new),
        binary.uuid(outcome for _, outcome, _ in new),
        binary.text(body for _, _, body in new),
    )
    return stored


async def _copy_trajectories(
    connection: Connection, env_id: int, batch: Batch, worlds: Mapping[str, int], stored: Mapping[Id, str]
) -> None:
    columns = "env_id, id, world_id, source, goal, body, digest"
    new = [found for found in batch.trajectories if found.id not in batch.positions]
    placed = [found for found in batch.trajectories if found.id in batch.positions]
    await binary.copy(connection, f"trajectories ({columns})", *_trajectory_columns(env_id, batch, new, worlds))
    await binary.copy(
        connection,
        f"trajectories ({columns}, position)",
        *_trajectory_columns(env_id, batch, placed, worlds),
        binary.int8(batch.positions[found.id] for found in placed),
    )
    # equal transitions share one body; a step keeps its own only if it differs, for example in its reasoning
    shared = {identity: stored.get(identity, body) for identity, (_, body) in batch.transitions.items()}
    await binary.copy(
        connection,
        "trajectory_steps (env_id, trajectory_id, step, transition_id, body)",
        binary.int2([env_id] * len(batch.steps)),
        binary.text(trajectory for trajectory, _, _, _ in batch.steps),
        binary.int4(number for _, number, _, _ in batch.steps),
        binary.uuid(identity for _, _, identity, _ in batch.steps),
        binary.optional_text(None if body == shared[identity] else body for _, _, identity, body in batch.steps),
    )


def _trajectory_columns(
    env_id: int, batch: Batch, found: Sequence[Trajectory], worlds: Mapping[str, int]
) -> tuple[Iterable[bytes], ...]:
    return (
        binary.int2([env_id] * len(found)),
        binary.text(one.id for one in found),
        binary.int4(worlds[one.world_id] for one in found),
        binary.int2(SOURCE_CODES[one.source] for one in found),
        binary.uuid(digest_bytes(one.task.goal) for one in found),
        binary.text(batch.serialized[one.id].body for one in found),
        binary.raw(batch.serialized[one.id].digest for one in found),
    )


async def _store_sightings(
    connection: Connection,
    env_id: int,
    batch: Batch,
    worlds: Mapping[str, int],
    position: int,
    known_transitions: Collection[Id],
) -> None:
    # retrieval must never return a transition that only the running episode has seen: `only_trajectory` is the id of
    # the only trajectory with a sighting, and becomes NULL when a second one has it
    def fields(sightings: Sequence[Sighting]) -> dict[str, Iterable[bytes]]:
        return {
            "key uuid": binary.uuid(key for key, *_ in sightings),
            "transition_id uuid": binary.uuid(transition for _, transition, *_ in sightings),
            "world_id int4": binary.int4(worlds[world] for _, _, world, _, _ in sightings),
            "source int2": binary.int2(source for _, _, _, source, _ in sightings),
            "goal uuid": binary.uuid(goal for *_, goal in sightings),
            "only_trajectory text": binary.optional_text(map(batch.sightings.__getitem__, sightings)),
            "first_at int8": binary.int8(map(batch.first_at.get, sightings, repeat(position))),
        }

    new = [sighting for sighting in batch.sightings if sighting[1] not in known_transitions]
    await _copy(connection, f"sightings_{env_id}", env_id, len(new), fields(new))
    await _insert(
        connection,
        f"sightings_{env_id}",
        env_id,
        fields([sighting for sighting in batch.sightings if sighting[1] in known_transitions]),
        "(env_id, key, transition_id, world_id, source, goal) DO UPDATE SET only_trajectory = NULL, "
        "first_at = least(old.first_at, excluded.first_at) "
        "WHERE old.only_trajectory IS NOT NULL OR excluded.first_at < old.first_at",
    )


async def _store_states(
    connection: Connection,
    env_id: int,
    batch: Batch,
    worlds: Mapping[str, int],
    position: int,
    known_worlds: Collection[str],
) -> None:
    def fields(states: Sequence[tuple[Id, str]]) -> dict[str, Iterable[bytes]]:
        return {
            "state uuid": binary.uuid(state for state, _ in states),
            "world_id int4": binary.int4(worlds[world] for _, world in states),
            "sources int2": binary.int2(map(batch.states.__getitem__, states)),
            "first_at int8": binary.int8(map(batch.first_at.get, states, repeat(position))),
        }

    new = [state for state in batch.states if state[1] not in known_worlds]
    await _copy(connection, f"world_states_{env_id}", env_id, len(new), fields(new))
    await _insert(
        connection,
        f"world_states_{env_id}",
        env_id,
        fields([state for state in batch.states if state[1] in known_worlds]),
        "(env_id, state, world_id) DO UPDATE SET sources = old.sources | excluded.sources, "
        "first_at = least(old.first_at, excluded.first_at) "
        "WHERE old.sources | excluded.sources <> old.sources OR excluded.first_at < old.first_at",
    )


async def _copy(
    connection: Connection, table: str, env_id: int, count: int, fields: Mapping[str, Iterable[bytes]]
) -> None:
    """Copy rows that are certainly not stored, in half the time of `_insert`, which explains `fields`."""
    names = ", ".join(column.partition(" ")[0] for column in fields)
    await binary.copy(connection, f"{table} (env_id, {names})", binary.int2([env_id] * count), *fields.values())


async def _insert(
    connection: Connection, table: str, env_id: int, fields: Mapping[str, Iterable[bytes]], on_conflict: str
) -> None:
    """Insert rows, some of which may be stored. `fields` maps the name and type of each column to its fields."""
    names, types = zip(*(column.split() for column in fields), strict=True)
    arrays = ", ".join(f"%s::{kind}[]" for kind in types)
    await connection.execute(
        f"INSERT INTO {table} AS old (env_id, {', '.join(names)}) SELECT {env_id}, new.* FROM unnest({arrays}) AS new "
        f"ON CONFLICT {on_conflict}",
        [binary.array(kind, values) for kind, values in zip(types, fields.values(), strict=True)],
    )
