"""Keeps what tiers learn from an environment's recordings: once for all episodes, until the recordings change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.types import Trajectory

Learned = TypeVar("Learned")

SESSIONS = 200
"""Default for the most recorded episodes that a tier learns from; it takes the oldest."""


class LearnedOnce(Generic[Learned]):
    """Keeps what one tier has learned of each environment of each buffer.

    Episodes that ask during learning wait for the same result. If learning failed, the next request starts it again.

    Args:
        sessions: most recorded episodes to learn from, the oldest first; None: all.
    """

    def __init__(self, sessions: int | None = SESSIONS) -> None:
        self._sessions = sessions
        self._known: WeakKeyDictionary[ReplayBuffer, dict[str, tuple[int, asyncio.Task[Learned]]]] = WeakKeyDictionary()

    async def of(self, buffer: ReplayBuffer, env: str, learn: Callable[[Sequence[Trajectory]], Learned]) -> Learned:
        """Return what the recordings show now; learn again only if they have changed.

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
