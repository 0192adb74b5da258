"""What tiers learn from the recordings of an environment: once for all episodes, until something new is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.types import Trajectory

Learned = TypeVar("Learned")

SESSIONS = 200
"""Most recorded episodes that a tier learns from unless it says otherwise, the oldest."""


class LearnedOnce(Generic[Learned]):
    """What one tier has learned of each environment of each buffer.

    Episodes that ask while it is being learned wait for the same answer. What failed is learned anew when it is asked
    for again.

    Args:
        sessions: most recorded episodes that are learned from, the oldest; None: all.
    """

    def __init__(self, sessions: int | None = SESSIONS) -> None:
        self._sessions = sessions
        self._known: WeakKeyDictionary[ReplayBuffer, dict[str, tuple[int, asyncio.Task[Learned]]]] = WeakKeyDictionary()

    async def of(self, buffer: ReplayBuffer, env: str, learn: Callable[[Sequence[Trajectory]], Learned]) -> Learned:
        """What the recordings show now.

        Args:
            buffer: the recordings.
            env: name of the environment.
            learn: learns from recorded episodes; it runs in a thread.

        Raises:
            StoreError: the recordings cannot be read.
        """
        newest = await buffer.newest_recording(env)
        known = self._known.setdefault(buffer, {})
        if env not in known or known[env][0] != newest or _has_failed(known[env][1]):
            known[env] = newest, asyncio.create_task(self._learned(buffer, env, learn))
        return await asyncio.shield(known[env][1])

    async def _learned(
        self, buffer: ReplayBuffer, env: str, learn: Callable[[Sequence[Trajectory]], Learned]
    ) -> Learned:
        return await asyncio.to_thread(learn, await buffer.trajectories(env, limit=self._sessions))


def _has_failed(task: asyncio.Task[Learned]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
