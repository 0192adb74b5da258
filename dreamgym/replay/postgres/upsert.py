"""Adds trajectories to PostgreSQL and replaces stored ones whose content has changed.

In one transaction under the write lock, the old trajectory is deleted, the new one takes its position, and then
everything that only the old one contained is deleted. In this order, everything that both contain stays as it is,
vectors included.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence

from dreamgym.replay.buffer import Upserted
from dreamgym.replay.keys import KeyEncoder, check_storable, check_trajectories, stored_elsewhere
from dreamgym.replay.postgres import binary
from dreamgym.replay.postgres.add import Batch, batches_of, insert_tasks, store
from dreamgym.replay.postgres.database import WRITE_LOCK, Connection, Database
from dreamgym.replay.postgres.retire import GOALS, clean_up, remove
from dreamgym.replay.postgres.vectors import NO_VECTORS, encode
from dreamgym.types import Task, Trajectory, Transition

READ = """
SELECT trajectory.body::text, ARRAY(
  SELECT coalesce(step.body, transition.body)::text
  FROM trajectory_steps AS step
  JOIN transitions_{env} AS transition ON transition.env_id = {env} AND id = transition_id
  WHERE trajectory_id = trajectory.id ORDER BY step.step)
FROM trajectories AS trajectory
WHERE env_id = {env}"""
"""Query for stored trajectories; `trajectory_of` reads its rows."""

KNOWN = "SELECT id, env_id, digest, world_id, source, position, goal FROM trajectories WHERE id = ANY (%s)"

SHARED_BODIES = (
    # a trajectory that shares the body of a transition keeps the old one as a body of its own
    """
    UPDATE trajectory_steps AS step SET body = stored.body
    FROM transitions_{env} AS stored, unnest(%(ids)s::uuid[], %(bodies)s::text[]) AS new (id, body)
    WHERE stored.env_id = {env} AND stored.id = new.id AND stored.body::text <> new.body
      AND step.env_id = {env} AND step.transition_id = new.id AND step.body IS NULL
    """,
    """
    UPDATE transitions_{env} AS stored SET body = new.body::json
    FROM unnest(%(ids)s::uuid[], %(bodies)s::text[]) AS new (id, body)
    WHERE stored.env_id = {env} AND stored.id = new.id AND stored.body::text <> new.body
    """,
)
"""Retrieval returns the shared body of a transition. These statements replace it with that of the changed trajectory,
whose reasoning may differ."""


def trajectory_of(body: str, steps: Sequence[str]) -> Trajectory:
    """A trajectory from a row of `READ`."""
    transitions = tuple(Transition.model_validate_json(step) for step in steps)
    return Trajectory.model_validate({**json.loads(body), "transitions": transitions})


async def upsert(
    database: Database,
    encoder: KeyEncoder,
    encoder_id: int,
    envs: Mapping[str, int],
    trajectories: Sequence[Trajectory],
    tasks: Sequence[Task],
) -> Upserted:
    """See `ReplayBuffer.upsert`. The environments must exist."""
    serialized = await asyncio.to_thread(check_trajectories, trajectories)
    for task in tasks:
        check_storable(task, f"task {task.id!r}")
    given = {trajectory.id: trajectory for trajectory in trajectories}
    digests = {name: one.digest for name, one in serialized.items()}
    rows = await database.fetch("SELECT id, digest FROM trajectories WHERE id = ANY (%(ids)s)", {"ids": list(given)})
    same = {row[0] for row in rows if row[1] == digests[row[0]]}
    unlike = [name for name in given if name not in same]
    likely = await batches_of([given[name] for name in unlike], serialized, envs)
    vectors = {env_id: await encode(database, encoder, encoder_id, env_id, batch) for env_id, batch in likely.items()}
    async with database.transaction() as connection:
        for env_id in sorted(envs.values()):
            await connection.execute("SELECT pg_advisory_xact_lock(%s, %s)", [WRITE_LOCK, env_id])
        known = {row[0]: row[1:] for row in await (await connection.execute(KNOWN, [list(given)])).fetchall()}
        names = {number: env for env, number in envs.items()}
        for name, (env_id, *_) in known.items():
            if env_id != envs[given[name].task.env]:
                raise stored_elsewhere(given[name], names.get(env_id) or await _name(connection, env_id))
        for env, env_id in envs.items():
            await insert_tasks(connection, env_id, [task for task in tasks if task.env == env], replace=True)
        changed = {name for name, row in known.items() if row[1] is not None and row[1] != digests[name]}
        changed |= await _changed_of_old(connection, known, given, digests)
        positions = {name: int(known[name][4]) for name in changed}
        held: dict[tuple[int, int], tuple[list[str], list[int]]] = defaultdict(lambda: ([], []))
        for name in changed:
            env_id, _, world, source, *_ = known[name]
            held[env_id, source][0].append(name)
            held[env_id, source][1].append(world)
        gone = {of: await remove(connection, ids) for of, (ids, _) in held.items()}
        ordered = sorted(changed, key=lambda name: positions[name])
        new = [name for name in given if name not in known]
        replacing = await batches_of([given[name] for name in ordered], serialized, envs, positions)
        for env_id, batch in replacing.items():
            await store(connection, encoder, encoder_id, env_id, batch, vectors.get(env_id, NO_VECTORS))
            await _share(connection, env_id, batch)
        if new != unlike:  # some replace stored ones, or another writer has stored some of them meanwhile
            likely = await batches_of([given[name] for name in new], serialized, envs)
        for env_id, batch in likely.items():
            await store(connection, encoder, encoder_id, env_id, batch, vectors.get(env_id, NO_VECTORS))
        for (env_id, source), (_, worlds) in held.items():
            await clean_up(connection, encoder_id, env_id, gone[env_id, source], sorted(set(worlds)), source)
        for env_id, _ in held:
            goals = [known[name][5] for name in changed if known[name][0] == env_id]
            await connection.execute(GOALS, {"env_id": env_id, "goals": goals})
    return Upserted(new=len(new), changed=tuple(name for name in given if name in changed))


async def _name(connection: Connection, env_id: int) -> str:
    row = await (await connection.execute("SELECT name FROM environments WHERE id = %s", [env_id])).fetchone()
    return str(row[0]) if row else ""


async def _changed_of_old(
    connection: Connection,
    known: Mapping[str, Sequence[object]],
    given: Mapping[str, Trajectory],
    digests: Mapping[str, bytes],
) -> set[str]:
    """Ids of changed trajectories among those that an older version stored without a digest; all get a digest."""
    changed = set()
    for env_id in {row[0] for row in known.values() if row[1] is None}:
        ids = [name for name, row in known.items() if row[0] == env_id and row[1] is None]
        cursor = await connection.execute(f"{READ.format(env=env_id)} AND id = ANY (%s)", [ids])
        stored = [trajectory_of(body, steps) for body, steps in await cursor.fetchall()]
        changed |= {one.id for one in stored if one != given[one.id]}
        await connection.execute(
            "UPDATE trajectories SET digest = new.digest FROM unnest(%s::text[], %s::bytea[]) AS new (id, digest) "
            "WHERE trajectories.id = new.id",
            [ids, [digests[name] for name in ids]],
        )
    return changed


async def _share(connection: Connection, env_id: int, batch: Batch) -> None:
    ids = binary.array("uuid", binary.uuid(batch.transitions))
    names = {"ids": ids, "bodies": [body for _, body in batch.transitions.values()]}
    for statement in SHARED_BODIES:
        await connection.execute(statement.format(env=env_id), names)
