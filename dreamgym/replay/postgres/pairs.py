"""Pairs of episodes of one task, played in a dream and in reality, and how many first steps two episodes share."""

from __future__ import annotations

from dataclasses import dataclass

from dreamgym.replay.keys import SOURCE_CODES
from dreamgym.replay.postgres.database import Database
from dreamgym.replay.postgres.listing import PLACE
from dreamgym.types import Frozen, Source

ALIKE = """
WITH steps AS (
  SELECT trajectory_id, step.step, transition_id,
    strpos(coalesce(step.body, transition.body)::text, '"is_error":true') > 0 AS is_error
  FROM trajectory_steps AS step
  JOIN transitions AS transition ON transition.env_id = step.env_id AND transition.id = step.transition_id
  WHERE trajectory_id IN (%(one)s, %(other)s)
)
SELECT coalesce(min(step), 0) FROM (
  SELECT step FROM (SELECT * FROM steps WHERE trajectory_id = %(one)s) AS ours
  FULL JOIN (SELECT * FROM steps WHERE trajectory_id = %(other)s) AS theirs USING (step)
  WHERE (ours.transition_id, ours.is_error) IS DISTINCT FROM (theirs.transition_id, theirs.is_error)
  UNION ALL SELECT count(*) / 2 FROM steps
) AS differing
"""
"""Query for the number of equal first steps. An error flag inside a text does not match, since its quotes are
escaped."""

TWINS = """
SELECT task_id, (array_agg(id ORDER BY at DESC) FILTER (WHERE is_dream))[1],
  (array_agg(id ORDER BY at DESC) FILTER (WHERE NOT is_dream))[1], count(*) OVER ()
FROM (
  SELECT id, body -> 'task' ->> 'id' AS task_id, source = %(dreamed)s AS is_dream, added_at AS at FROM trajectories
  WHERE env_id = (SELECT id FROM environments WHERE name = %(env)s)
) AS told
GROUP BY task_id HAVING bool_or(is_dream) AND bool_or(NOT is_dream) ORDER BY max(at) DESC, task_id
LIMIT %(most)s
"""


class TaskPair(Frozen):
    """A task that was played in a dream and in reality."""

    env: str
    task: str
    dream: tuple[str, str]
    """Place and id of the newest dreamed episode."""
    real: tuple[str, str]
    """Place and id of the newest real or imported episode."""


@dataclass(frozen=True)
class StoredPairs:
    """Read-only access to pairs of stored episodes."""

    database: Database

    async def pairs(self, env: str, most: int) -> tuple[list[TaskPair], int]:
        """Tasks of an environment that were played in a dream and in reality, newest first, and their total number.

        Args:
            env: name of the environment.
            most: most tasks to return, 1 or more.
        """
        rows = await self.database.fetch(TWINS, {"env": env, "dreamed": SOURCE_CODES[Source.SYNTHETIC], "most": most})
        pairs = [
            TaskPair(env=env, task=task, dream=(PLACE, dream), real=(PLACE, real)) for task, dream, real, _ in rows
        ]
        return pairs, int(rows[0][3]) if rows else 0

    async def alike(self, one: str, other: str) -> int:
        """Number of first steps that are the same transition in both episodes, with the same error flag.

        At least this many first calls and answers are the same in both. 0 if the replay buffer lacks one of them.
        """
        rows = await self.database.fetch(ALIKE, {"one": one, "other": other})
        return int(rows[0][0])
