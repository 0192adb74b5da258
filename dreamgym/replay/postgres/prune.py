"""Deletes what a store no longer needs: dreams that teach nothing any more, and old rows.

An episode that is over is needed until the replay buffer has its trajectory, which repeats all of it, and by a training
run that goes on from its last checkpoint: that one takes back the episodes that it played since.

Predictions and watermarks grow with every step and every group. A watermark is needed while episodes of its group
begin, which takes minutes; a prediction only makes an answer the same again, and costs one question to the model where
it is missing. Whether somebody will ask again is unknown, so age decides, and nothing is pruned unasked.
"""

from __future__ import annotations

from datetime import timedelta

from dreamgym.replay.buffer import KEPT
from dreamgym.replay.postgres import Store
from dreamgym.replay.postgres.database import Database
from dreamgym.types import Frozen

SHORTEST = timedelta(days=1)
"""No episode lasts this long, so a running episode needs nothing that is older."""

STORED = "stop_reason IS NOT NULL AND (archived OR body ->> 'policy_version' IS NOT NULL)"
"""Condition on episodes that are not needed: over, and archived or played by a training run.

A training run stores its own episodes; it does not want those that it has not stored."""


class Pruned(Frozen):
    """The number of rows that were deleted."""

    trajectories: int
    """Number of deleted dreams of tasks that are always solved."""
    episodes: int
    """Number of deleted episodes; their steps went too."""
    predictions: int
    watermarks: int


async def prune(store: Store, *, older_than: timedelta, keep: int = KEPT) -> Pruned:
    """Retire dreams in every environment, and delete episodes, predictions and watermarks older than this."""
    older_than = max(SHORTEST, older_than)
    rows = await store.database.fetch("SELECT name FROM environments ORDER BY id", {})
    retired = [await store.buffer.retire(str(row[0]), keep=keep) for row in rows]
    return Pruned(
        trajectories=sum(retired),
        episodes=await _delete_old(store.database, "episodes", "used_at", older_than, STORED),
        predictions=await _delete_old(store.database, "predictions", "made_at", older_than),
        watermarks=await _delete_old(store.database, "watermarks", "asked_at", older_than),
    )


async def _delete_old(database: Database, table: str, made_at: str, age: timedelta, condition: str = "true") -> int:
    rows = await database.fetch(
        f"WITH gone AS (DELETE FROM {table} WHERE {made_at} < now() - %(age)s::interval AND {condition} RETURNING 1) "
        "SELECT count(*) FROM gone",
        {"age": age},
    )
    return int(rows[0][0])
