"""Episodes of one task that were played in a dream and in reality, and how long two episodes are the same."""

from __future__ import annotations

from collections.abc import Sequence
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
"""An error flag that stands in a text has its quotes escaped there."""

TWINS = """
SELECT task_id, array_agg(id ORDER BY at DESC) FILTER (WHERE is_dream),
  array_agg(id ORDER BY at DESC) FILTER (WHERE NOT is_dream), max(at)
FROM (
  SELECT id, body -> 'task' ->> 'id' AS task_id, source = %(dreamed)s AS is_dream, added_at AS at FROM trajectories
  WHERE env_id = (SELECT id FROM environments WHERE name = %(env)s)
) AS told
GROUP BY task_id HAVING bool_or(is_dream) AND bool_or(NOT is_dream) ORDER BY max(at) DESC, task_id
"""


class TaskPair(Frozen):
    """A task that was played in a dream and in reality."""

    env: str
    task: str
    dreams: tuple[tuple[str, str], ...]
    """Place and id of each dreamed episode, newest first."""
    real: tuple[tuple[str, str], ...]
    """Place and id of each real or imported episode, newest first."""


@dataclass(frozen=True)
class StoredPairs:
    """Pairs of stored episodes, for reading."""

    database: Database

    async def pairs(self, env: str) -> list[TaskPair]:
        """Tasks of an environment that were played in a dream and in reality, the newest first."""
        rows = await self.database.fetch(TWINS, {"env": env, "dreamed": SOURCE_CODES[Source.SYNTHETIC]})
        return [
            TaskPair(env=env, task=task, dreams=_placed(dreams), real=_placed(real)) for task, dreams, real, _ in rows
        ]

    async def alike(self, one: str, other: str) -> int:
        """Number of first steps that are the same transition in both episodes, with the same error flag.

        At least so many first calls and answers of the two are the same. 0 if the replay buffer has not both.
        """
        rows = await self.database.fetch(ALIKE, {"one": one, "other": other})
        return int(rows[0][0])


def _placed(ids: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((PLACE, identity) for identity in ids)
