"""Deletes from the store what is no longer needed."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from dreamgym.runs.opening import open_store

if TYPE_CHECKING:
    from dreamgym.replay.postgres.prune import Pruned


async def prune(days: int, dsn: str | None = None) -> Pruned:
    """Delete dreams of tasks that are always solved, and episodes, predictions and watermarks older than `days`."""
    from dreamgym.replay.postgres.prune import prune as prune_store

    async with open_store(dsn) as store:
        return await prune_store(store, older_than=timedelta(days=days))
