"""Lists what a store has of each environment, and deletes it: a whole environment, a run, or one trajectory.

Each deletion is one transaction under the environment's write lock. A server that serves a dream of the environment
goes on: the environment's tables stay, but the server no longer finds its running episodes. It keeps what it has
already learned until it ends. Cached answers of language models belong to no environment, and stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from dreamgym.errors import UnknownName
from dreamgym.replay.episode_store import Episode, SteadyClock
from dreamgym.replay.keys import SOURCE_CODES, SOURCES
from dreamgym.replay.postgres.database import WRITE_LOCK, Connection, Database
from dreamgym.replay.postgres.episodes import PostgresEpisodeStore
from dreamgym.replay.postgres.listing import IN_PROCESS
from dreamgym.replay.postgres.retire import GOALS, clean_up, remove
from dreamgym.types import Frozen, Source

LISTED = 20
"""Number of names that an error lists."""


class Held(Frozen):
    """The contents of a store for one environment."""

    env: str
    folder: str | None
    """Path of the environment folder when it was last stored; None if it was stored without one."""
    real: int
    """Number of recorded trajectories; `imported` and `synthetic` are numbers of trajectories too."""
    imported: int
    synthetic: int
    tasks: int
    episodes: int
    """Number of episodes that servers keep, running ones too."""
    runs: tuple[str, ...]
    """Names of training runs with outcomes in this environment."""
    stored_at: datetime | None
    """When a trajectory was last stored."""


class HeldTrajectory(Frozen):
    """A stored trajectory, without its steps."""

    id: str
    source: Source
    stored_at: datetime
    steps: int
    instruction: str
    stop_reason: str | None


class Forgotten(Frozen):
    """The number of rows that were deleted."""

    trajectories: int
    episodes: int
    tasks: int


HELD = """
WITH env AS (
  SELECT id, name, folder FROM environments
  UNION ALL
  SELECT DISTINCT NULL::int, body ->> 'env', NULL FROM episodes  -- a server that keeps no recordings stores no more
  WHERE NOT EXISTS (SELECT FROM environments WHERE name = body ->> 'env')
)
SELECT env.name, env.folder,
  count(*) FILTER (WHERE source = %(real)s), count(*) FILTER (WHERE source = %(imported)s),
  count(*) FILTER (WHERE source = %(synthetic)s),
  (SELECT count(*) FROM tasks WHERE tasks.env_id = env.id),
  (SELECT count(*) FROM episodes WHERE episodes.body ->> 'env' = env.name),
  (SELECT coalesce(array_agg(DISTINCT run ORDER BY run), '{}') FROM task_outcomes AS outcome
   WHERE outcome.env_id = env.id AND run <> ''),
  max(added_at)
FROM env LEFT JOIN trajectories ON env_id = env.id
GROUP BY env.id, env.name, env.folder ORDER BY env.name
"""

PART = f"""
  id = %(name)s OR id = %(env)s || '-' || %(name)s OR split_part(substring(id FROM '{IN_PROCESS}'), '-', 1) = %(name)s
"""
"""Condition on trajectories: the one with this id, the recorded run with this name, or those that this training run
played in its own process."""
PLAYED = """
SELECT id FROM episodes
WHERE body ->> 'env' = %(env)s AND (
  id = %(name)s OR starts_with(body ->> 'group', %(name)s || '-')
  AND substr(body ->> 'group', length(%(name)s) + 2) ~ '^[0-9]+-')
"""
"""Query for the ids of a training run's episodes, whose trajectories have the same ids, or for the episode with this
id."""
CHOSEN = f"""
SELECT id, world_id, source, goal, body -> 'task' ->> 'id' FROM trajectories
WHERE env_id = %(env_id)s AND (id = ANY (%(episodes)s) OR {PART})
"""
LIST = f"""
SELECT id, source, added_at, (SELECT count(*) FROM trajectory_steps WHERE trajectory_id = trajectories.id),
  body -> 'task' ->> 'instruction', body ->> 'stop_reason'
FROM trajectories
WHERE env_id = (SELECT id FROM environments WHERE name = %(env)s)
  AND (%(name)s::text IS NULL OR id = ANY (%(episodes)s) OR {PART})
ORDER BY position DESC LIMIT %(limit)s
"""

EVERYTHING = (
    "DELETE FROM trajectories WHERE env_id = %(env_id)s",
    "DELETE FROM sightings WHERE env_id = %(env_id)s",
    "DELETE FROM world_states WHERE env_id = %(env_id)s",
    "DELETE FROM transitions WHERE env_id = %(env_id)s",
    "DELETE FROM worlds WHERE env_id = %(env_id)s",
    "DELETE FROM goals WHERE env_id = %(env_id)s",
    "DELETE FROM watermarks WHERE env_id = %(env_id)s",
    "DELETE FROM task_outcomes WHERE env_id = %(env_id)s",
    "DELETE FROM vector_indexes WHERE env_id = %(env_id)s",
    "UPDATE environments SET identity = NULL, folder = NULL WHERE id = %(env_id)s",
)
"""Statements that delete everything of an environment except its episodes, its tasks and its vectors."""

RECORDED = """
SELECT id, world_id, source, goal, body -> 'task' ->> 'id' FROM trajectories
WHERE env_id = %(env_id)s AND source = %(source)s AND id = ANY (%(ids)s) ORDER BY id
"""

LEFTOVERS = (
    GOALS,
    "DELETE FROM task_outcomes WHERE env_id = %(env_id)s AND run = %(name)s AND run <> ''",
    """
    DELETE FROM watermarks
    WHERE env_id = %(env_id)s AND starts_with(substr(name, strpos(name, ':') + 1), %(name)s || '-')
      AND substr(name, strpos(name, ':') + length(%(name)s) + 2) ~ '^[0-9]+-'
    """,
)
"""Statements that delete what belongs to forgotten trajectories, or to a forgotten training run."""

TASKS = """
DELETE FROM tasks WHERE env_id = %(env_id)s AND id = ANY (%(tasks)s)
  AND NOT EXISTS (SELECT FROM trajectories WHERE env_id = %(env_id)s AND body -> 'task' ->> 'id' = tasks.id)
"""
"""Deletes the tasks that only forgotten trajectories had."""


async def held(database: Database) -> list[Held]:
    """The contents of the store, by environment. Empty environments are left out."""
    codes = {source.value: code for source, code in SOURCE_CODES.items()}
    rows = await database.fetch(HELD, codes)
    found = [Held.model_validate(dict(zip(Held.model_fields, row, strict=True))) for row in rows]
    return [one for one in found if one.stored_at is not None or one.tasks or one.episodes]


async def held_of(database: Database, env: str) -> Held:
    """The contents of the store for one environment. Raises UnknownName."""
    found = {one.env: one for one in await held(database)}
    if env not in found:
        raise UnknownName("environment", env, found, "`dreamgym db show` lists what is stored")
    return found[env]


async def held_trajectories(
    database: Database, env: str, name: str | None = None, *, limit: int | None = None
) -> list[HeldTrajectory]:
    """Stored trajectories of an environment, newest first.

    Args:
        database: of the store.
        env: name of the environment.
        name: a trajectory's id, a recorded run, or a training run; None: all.
        limit: number of trajectories at most.

    Raises:
        UnknownName: nothing is stored under this name.
    """
    names = {"env": env, "name": name or "", "limit": limit}
    played = [] if name is None else [str(row[0]) for row in await database.fetch(PLAYED, names)]
    rows = await database.fetch(LIST, {**names, "name": name, "episodes": played})
    if name is not None and not rows and not played:
        raise await _unknown(database, env, name)
    return [
        HeldTrajectory(
            id=identity,
            source=SOURCES[source],
            stored_at=stored_at,
            steps=steps,
            instruction=instruction or "",
            stop_reason=stop_reason,
        )
        for identity, source, stored_at, steps, instruction, stop_reason in rows
    ]


async def kept_episodes(database: Database, env: str, name: str) -> list[Episode]:
    """The episode with this id, or those of a training run, as servers keep them: also running and failed ones."""
    store = PostgresEpisodeStore(database, SteadyClock(await database.time()))
    rows = await database.fetch(PLAYED, {"env": env, "name": name})
    return [await store.load(str(row[0])) for row in rows]


async def forget(database: Database, env: str, name: str | None = None) -> Forgotten:
    """Delete what the store has of an environment, of a run or of one trajectory; all or nothing.

    Args:
        database: of the store.
        env: name of the environment.
        name: a trajectory's id, a recorded run, or a training run; None: all of the environment.

    Raises:
        UnknownName: nothing is stored under this name.
    """
    async with database.transaction() as connection:
        row = await (await connection.execute("SELECT id FROM environments WHERE name = %s", [env])).fetchone()
        names = {"env": env, "env_id": row[0] if row else 0, "name": name}
        await connection.execute("SELECT pg_advisory_xact_lock(%s, %s)", [WRITE_LOCK, names["env_id"]])
        done = await (_all(connection, names) if name is None else _part(connection, names))
        if any(done.model_dump().values()):
            return done
    if name is None:
        await held_of(database, env)
    raise await _unknown(database, env, name or "")


async def forget_recorded(database: Database, env: str, ids: Iterable[str]) -> list[str]:
    """Delete recorded trajectories, and everything that only they contain. Episodes that servers keep stay.

    Args:
        database: of the store.
        env: name of the environment.
        ids: ids of trajectories; those that are not stored, or were not recorded, are skipped.

    Returns:
        Ids of the deleted trajectories.
    """
    async with database.transaction() as connection:
        row = await (await connection.execute("SELECT id FROM environments WHERE name = %s", [env])).fetchone()
        encoder = await (await connection.execute("SELECT id FROM encoders WHERE ready")).fetchone()
        if row is None or encoder is None:
            return []
        names = {"env_id": row[0], "ids": sorted(ids), "source": SOURCE_CODES[Source.REAL]}
        await connection.execute("SELECT pg_advisory_xact_lock(%s, %s)", [WRITE_LOCK, row[0]])
        rows = await (await connection.execute(RECORDED, names)).fetchall()
        await _remove(connection, encoder[0], row[0], rows)
        found = {**names, "goals": [row[3] for row in rows], "tasks": [row[4] for row in rows]}
        await connection.execute(GOALS, found)
        await connection.execute(TASKS, found)
    return [str(row[0]) for row in rows]


async def _all(connection: Connection, names: Mapping[str, object]) -> Forgotten:
    trajectories = 0
    for number, statement in enumerate(EVERYTHING):
        cursor = await connection.execute(statement, names)
        trajectories = cursor.rowcount if number == 0 else trajectories
    encoders = await (await connection.execute("SELECT id FROM encoders")).fetchall()
    for (encoder,) in encoders:
        await connection.execute(f"DELETE FROM vectors_{encoder} WHERE env_id = %(env_id)s", names)
    tasks = await connection.execute("DELETE FROM tasks WHERE env_id = %(env_id)s", names)
    episodes = await connection.execute("DELETE FROM episodes WHERE body ->> 'env' = %(env)s", names)
    return Forgotten(trajectories=trajectories, episodes=episodes.rowcount, tasks=tasks.rowcount)


async def _part(connection: Connection, names: Mapping[str, object]) -> Forgotten:
    played = [row[0] for row in await (await connection.execute(PLAYED, names)).fetchall()]
    rows = await (await connection.execute(CHOSEN, {**names, "episodes": played})).fetchall()
    ids = [str(row[0]) for row in rows]
    encoder = await (await connection.execute("SELECT id FROM encoders WHERE ready")).fetchone()
    if encoder is not None:
        await _remove(connection, encoder[0], names["env_id"], rows)
    found = {**names, "goals": [row[3] for row in rows], "tasks": [row[4] for row in rows]}
    for statement in LEFTOVERS:
        await connection.execute(statement, found)
    tasks = await connection.execute(TASKS, found)
    episodes = await connection.execute("DELETE FROM episodes WHERE id = ANY (%s)", [sorted({*played, *ids})])
    return Forgotten(trajectories=len(ids), episodes=episodes.rowcount, tasks=tasks.rowcount)


async def _remove(connection: Connection, encoder: int, env_id: object, rows: Sequence[tuple[object, ...]]) -> None:
    """Delete trajectories and everything that only they contain, one source at a time, as `clean_up` needs it."""
    for source in sorted({int(str(row[2])) for row in rows}):
        of_source = [row for row in rows if row[2] == source]
        transitions = await remove(connection, [str(row[0]) for row in of_source])
        worlds = sorted({int(str(row[1])) for row in of_source})
        await clean_up(connection, encoder, int(str(env_id)), transitions, worlds, source)


async def _unknown(database: Database, env: str, name: str) -> UnknownName:
    """The error for a name under which nothing is stored. Raises UnknownName if the environment is unknown."""
    of_env = await held_of(database, env)
    newest = await held_trajectories(database, env, limit=LISTED)
    stored = of_env.real + of_env.imported + of_env.synthetic
    return UnknownName("run or trajectory", name, [*of_env.runs, *(one.id for one in newest)], f"{stored} in all")
