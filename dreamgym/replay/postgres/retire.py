"""Retires dreams in PostgreSQL, so that the buffer does not fill up with tasks that the policy always solves.

This happens under the write lock. What only the retired trajectories contain is deleted with them: sightings, states of
their worlds, vectors, transitions, worlds. The position at which anything else was first seen is not changed, so that
older watermarks see it as before. When a run continues from a checkpoint, `take_back` deletes what it stored after the
checkpoint in the same way.
"""

from __future__ import annotations

from uuid import UUID

from dreamgym.replay.buffer import SATURATED_GROUPS, SATURATED_VARIANCE
from dreamgym.replay.keys import SOURCE_CODES
from dreamgym.replay.postgres.database import WRITE_LOCK, Connection, Database
from dreamgym.types import Source

SYNTHETIC, REAL = SOURCE_CODES[Source.SYNTHETIC], SOURCE_CODES[Source.REAL]

RETIRABLE = """
WITH outcome AS (
  SELECT task_id, attempts, reward_sum, reward_squares,
         row_number() OVER (PARTITION BY task_id ORDER BY recorded_at DESC, policy_version DESC) AS place
  FROM task_outcomes WHERE env_id = %(env)s AND attempts > 0
), saturated AS (
  SELECT task_id FROM outcome WHERE place <= %(groups)s
  GROUP BY task_id
  HAVING count(*) = %(groups)s
    AND bool_and(reward_sum > 0 AND reward_squares / attempts - (reward_sum / attempts) ^ 2 <= %(variance)s)
), dream AS MATERIALIZED (
  SELECT id, world_id, position, body -> 'task' ->> 'id' AS task_id, body ->> 'stop_reason' AS stop_reason
  FROM trajectories WHERE env_id = %(env)s AND source = %(synthetic)s
), aged AS (
  SELECT id, world_id, position,
         row_number() OVER (PARTITION BY task_id, stop_reason ORDER BY position DESC) AS place
  FROM dream WHERE task_id IN (SELECT task_id FROM saturated)
)
SELECT id, world_id FROM aged
WHERE place > %(keep)s AND position > (
  SELECT coalesce(max(coalesce((body ->> 'as_of')::bigint, 9223372036854775807)), 0) FROM episodes
  WHERE stop_reason IS NULL AND expires_at > now() AND body ->> 'env' = %(name)s
)
"""

SEEN = """
SELECT DISTINCT transition_id FROM trajectory_steps WHERE trajectory_id = ANY (%(ids)s)
"""

STATEMENTS = (
    # transitions that remain in the worlds of the deleted trajectories; a table, so that the planner knows its size
    """
    CREATE TEMP TABLE still (world_id int, goal uuid, transition_id uuid, times bigint, one text COLLATE "C")
    ON COMMIT DROP
    """,
    """
    INSERT INTO still SELECT world_id, goal, transition_id, count(DISTINCT trajectory_id), min(trajectory_id)
    FROM trajectories JOIN trajectory_steps ON trajectory_id = id
    WHERE trajectories.env_id = {env} AND source = {source} AND world_id = ANY (%(worlds)s)
    GROUP BY world_id, goal, transition_id
    """,
    "ANALYZE still",
    """
    DELETE FROM sightings_{env} AS sighting
    WHERE env_id = {env} AND source = {source} AND world_id = ANY (%(worlds)s)
      AND transition_id = ANY (%(transitions)s)
      AND NOT EXISTS (SELECT FROM still WHERE still.world_id = sighting.world_id AND still.goal = sighting.goal
                        AND still.transition_id = sighting.transition_id)
    """,
    """
    UPDATE sightings_{env} AS sighting SET only_trajectory = one FROM still
    WHERE env_id = {env} AND source = {source} AND sighting.transition_id = ANY (%(transitions)s) AND times = 1
      AND still.world_id = sighting.world_id AND still.goal = sighting.goal
      AND still.transition_id = sighting.transition_id
    """,
    """
    WITH held AS MATERIALIZED (
      SELECT DISTINCT world_id,
        encode(substring(sha256(convert_to(text, 'UTF8')) FROM 1 FOR 16), 'hex')::uuid AS state  -- keys.digest_id
      FROM still
      JOIN transitions_{env} ON env_id = {env} AND id = transition_id
      CROSS JOIN LATERAL (VALUES (body ->> 'state'), (body ->> 'next_state')) AS texts (text)
    )
    UPDATE world_states_{env} AS old SET sources = sources & {others}
    WHERE env_id = {env} AND world_id = ANY (%(worlds)s) AND sources & {others} <> sources
      AND NOT EXISTS (SELECT FROM held WHERE held.world_id = old.world_id AND held.state = old.state)
    """,
    "DELETE FROM world_states_{env} WHERE env_id = {env} AND world_id = ANY (%(worlds)s) AND sources = 0",
    """
    UPDATE vectors_{encoder}_{env} AS old SET sources = sources & {others}
    WHERE env_id = {env} AND sources & {others} <> sources
      AND NOT EXISTS (SELECT FROM sightings_{env} WHERE env_id = {env} AND key = old.key AND source = {source})
    """,
    "DELETE FROM vectors_{encoder}_{env} WHERE env_id = {env} AND sources = 0",
    """
    DELETE FROM transitions_{env} WHERE env_id = {env} AND id = ANY (%(transitions)s)
      AND NOT EXISTS (SELECT FROM sightings_{env} WHERE env_id = {env} AND transition_id = id)
    """,
    """
    DELETE FROM worlds WHERE id = ANY (%(worlds)s)
      AND NOT EXISTS (SELECT FROM trajectories WHERE env_id = {env} AND world_id = worlds.id)
    """,
)
"""Statements that delete what only the deleted trajectories contained, in this order."""

CHANGED = """
INSERT INTO watermarks (env_id, name, position)
VALUES (%(env)s, '', nextval(pg_get_serial_sequence('trajectories', 'position')))
ON CONFLICT (env_id, name) DO UPDATE SET position = excluded.position, asked_at = now()
"""
"""Notes that a recording was replaced or deleted, at a position of its own, so that `newest_recording` changes. No
group has an empty name."""

GOALS = """
DELETE FROM goals WHERE env_id = %(env_id)s AND id = ANY (%(goals)s)
  AND NOT EXISTS (SELECT FROM trajectories WHERE env_id = %(env_id)s AND goal = goals.id)
"""
"""Deletes the goals that only deleted trajectories had."""

PLAYED = """
SELECT id FROM episodes
WHERE body ->> 'env' = %(env)s
  AND substring(body ->> 'group' FROM '^' || %(run)s::text || '-([0-9]+)-')::int >= %(iteration)s
"""
"""Query for the episodes of a run's groups from an iteration on, running or over."""
STORED = """
SELECT id, world_id, source, goal FROM trajectories
WHERE env_id = %(env_id)s
  AND (id = ANY (%(episodes)s) OR substring(id FROM '^' || %(run)s::text || '-([0-9]+)-')::int >= %(iteration)s)
"""
"""Query for the trajectories of these episodes, and for those whose ids begin with the name of such a group, although
their episodes were never stored."""
REAL_STEPS = """
SELECT (SELECT count(*) FROM episode_steps
        WHERE episode_id = ANY (%(episodes)s) AND body -> 'provenance' ->> 'tier' = 'real')
     + (SELECT count(*) FROM trajectory_steps JOIN trajectories ON id = trajectory_id
        WHERE trajectory_id = ANY (%(stored)s) AND trajectory_id <> ALL (%(episodes)s) AND source = %(real)s)
"""
NOT_PLAYED = (
    "DELETE FROM episodes WHERE id = ANY (%(episodes)s)",
    """
    DELETE FROM task_outcomes WHERE env_id = %(env_id)s AND run = %(run)s AND policy_version >= %(iteration)s
    """,
    """
    DELETE FROM watermarks
    WHERE env_id = %(env_id)s
      AND substring(name FROM ':' || %(run)s::text || '-([0-9]+)-')::int >= %(iteration)s
    """,
)


async def retire_dreams(database: Database, encoder_id: int, env: str, env_id: int, keep: int) -> int:
    """Delete the retirable dreams, all or none; return how many. Dreams that a running episode may see stay.

    Their episodes count as archived, so that nothing stores them again.
    A group is not protected while all its episodes so far are over, even if it begins more.
    """
    async with database.transaction() as connection:
        await connection.execute("SELECT pg_advisory_xact_lock(%s, %s)", [WRITE_LOCK, env_id])
        cursor = await connection.execute(
            RETIRABLE,
            {
                "env": env_id,
                "name": env,
                "keep": keep,
                "synthetic": SYNTHETIC,
                "groups": SATURATED_GROUPS,
                "variance": SATURATED_VARIANCE,
            },
        )
        rows = await cursor.fetchall()
        ids = [str(row[0]) for row in rows]
        if ids:
            await _forget(connection, encoder_id, env_id, ids, sorted({int(row[1]) for row in rows}), SYNTHETIC)
            await connection.execute("UPDATE episodes SET archived = true WHERE id = ANY (%s)", [ids])
    return len(ids)


async def take_back(database: Database, encoder_id: int, env: str, env_id: int, run: str, iteration: int) -> int:
    """See `PostgresBuffer.take_back`. All or nothing."""
    names = {"env": env, "env_id": env_id, "run": run, "iteration": iteration}
    async with database.transaction() as connection:
        await connection.execute("SELECT pg_advisory_xact_lock(%s, %s)", [WRITE_LOCK, env_id])
        episodes = [str(row[0]) for row in await (await connection.execute(PLAYED, names)).fetchall()]
        names["episodes"] = episodes
        rows = await (await connection.execute(STORED, names)).fetchall()
        cursor = await connection.execute(REAL_STEPS, {**names, "stored": [row[0] for row in rows], "real": REAL})
        counted = await cursor.fetchone()
        for source in sorted({int(row[2]) for row in rows}):
            ids = [str(row[0]) for row in rows if row[2] == source]
            worlds = sorted({int(row[1]) for row in rows if row[2] == source})
            await _forget(connection, encoder_id, env_id, ids, worlds, source)
        await connection.execute(GOALS, {"env_id": env_id, "goals": [row[3] for row in rows]})
        for statement in NOT_PLAYED:
            await connection.execute(statement, names)
    assert counted is not None
    return int(counted[0])


async def _forget(
    connection: Connection, encoder_id: int, env_id: int, ids: list[str], worlds: list[int], source: int
) -> None:
    """Delete trajectories of one source, played in these worlds, and everything that only they contain."""
    transitions = await remove(connection, ids)
    await clean_up(connection, encoder_id, env_id, transitions, worlds, source)


async def remove(connection: Connection, ids: list[str]) -> list[UUID]:
    """Delete trajectories with their steps; return the ids of their transitions, for `clean_up`."""
    transitions = [row[0] for row in await (await connection.execute(SEEN, {"ids": ids})).fetchall()]
    await connection.execute("DELETE FROM trajectories WHERE id = ANY (%s)", [ids])
    return transitions


async def clean_up(
    connection: Connection, encoder_id: int, env_id: int, transitions: list[UUID], worlds: list[int], source: int
) -> None:
    """Delete rows of these transitions and these worlds' states that no trajectory of this source contains any more."""
    names = {"env": env_id, "encoder": encoder_id, "source": source, "others": ~(1 << source)}
    for statement in STATEMENTS:
        asks = "%(" in statement  # PostgreSQL takes no parameters for CREATE TABLE
        parameters = {"worlds": worlds, "transitions": transitions} if asks else None
        await connection.execute(statement.format(**names), parameters)
    await connection.execute("DROP TABLE still")
    if source != SYNTHETIC:
        await connection.execute(CHANGED, names)
