"""Deletes what a store no longer needs: dreams from which nothing more can be learned, and old rows.

An episode that is over is needed until the replay buffer has its trajectory, which contains all of it. It is also
needed by a training run that continues from its last checkpoint, because the run takes back the episodes that it has
played since.

The table of predictions grows with every step, that of watermarks with every group. A watermark is needed while
episodes of its group begin, which takes minutes. A prediction only makes an answer the same again; a missing one costs
one call to the model. It is unknown whether the same question will come again, so age decides, and nothing is pruned
unless a user asks for it.
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

A training run stores its own episodes; those that it has not stored are not wanted.
"""
OF_GROUPS = "name <> ''"
"""Condition on watermarks that may go. The one without a name notes the last change of a recording (retire.py)."""


class Pruned(Frozen):
    """The number of rows that were deleted."""

    trajectories: int
    """Number of deleted dreams of tasks that are always solved."""
    episodes: int
    """Number of deleted episodes; their steps are deleted too."""
    predictions: int
    watermarks: int


async def prune(store: Store, *, older_than: timedelta, keep: int = KEPT) -> Pruned:
    """Retire dreams in every environment, and delete episodes, predictions and watermarks older than `older_than`."""
    older_than = max(SHORTEST, older_than)
    rows = await store.database.fetch("SELECT name FROM environments ORDER BY id", {})
    retired = [await store.buffer.retire(str(row[0]), keep=keep) for row in rows]
    return Pruned(
        trajectories=sum(retired),
        episodes=await _delete_old(store.database, "episodes", "used_at", older_than, STORED),
        predictions=await _delete_old(store.database, "predictions", "made_at", older_than),
        watermarks=await _delete_old(store.database, "watermarks", "asked_at", older_than, OF_GROUPS),
    )


async def _delete_old(database: Database, table: str, made_at: str, age: timedelta, condition: str = "true") -> int:
    rows = await database.fetch(
        f"WITH gone AS (DELETE FROM {table} WHERE {made_at} < now() - %(age)s::interval AND {condition} RETURNING 1) "
        "SELECT count(*) FROM gone",
        {"age": age},
    )
    return int(rows[0][0])
