"""Finished episodes on their way into the replay buffer.

Outside the agent's answer, and many at a time, because every add is a transaction.
"""

from __future__ import annotations

import asyncio
import logging

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import DreamGymError
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.episodes import Episode
from dreamgym.types import Source, StopReason, Tier, Trajectory

logger = logging.getLogger(__name__)

ATTEMPTS = 3


def trajectory_of(episode: Episode, spec: EnvironmentSpec) -> Trajectory | None:
    """A finished episode as the trajectory that it was, or None while it runs.

    Its steps say where it was played: a server of real worlds may close what a server of dreams left behind.
    """
    if episode.stop_reason is None:
        return None
    is_real = all(transition.provenance.tier is Tier.REAL for transition in episode.transitions)
    return Trajectory(
        id=episode.id,
        task=episode.task,
        transitions=episode.transitions,
        source=Source.REAL if is_real else Source.SYNTHETIC,
        stop_reason=episode.stop_reason,
        world=episode.task.world if spec.deterministic else "",
        policy_version=episode.policy_version,
        answer=episode.answer,
        final_reward=episode.final_reward,
        error=episode.error,
    )


def stored_as(episode: Episode, spec: EnvironmentSpec) -> Trajectory | None:
    """What the buffer keeps of an episode; None while it runs, and for a failed or empty one: it teaches nothing."""
    trajectory = trajectory_of(episode, spec)
    return None if trajectory is None else _kept(trajectory)


def _kept(trajectory: Trajectory) -> Trajectory | None:
    if trajectory.stop_reason is StopReason.OUT_OF_SUPPORT:  # its last step says nothing of the environment
        trajectory = trajectory.model_copy(update={"transitions": trajectory.transitions[:-1]})
    return trajectory if trajectory.transitions and trajectory.stop_reason is not StopReason.ERROR else None


class Archive:
    """A queue in front of the buffer. Failed and empty episodes stay out."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer
        self._queue: asyncio.Queue[Trajectory] = asyncio.Queue()

    def put(self, trajectory: Trajectory) -> None:
        """Store it soon."""
        if (kept := _kept(trajectory)) is not None:
            self._queue.put_nowait(kept)

    async def flush(self) -> None:
        """Wait until everything put so far is stored."""
        await self._queue.join()

    async def run(self) -> None:
        """Store what arrives, until cancelled."""
        while True:
            batch = [await self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            try:
                await self._store(batch)
            finally:
                for _ in batch:
                    self._queue.task_done()

    async def _store(self, batch: list[Trajectory]) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self._buffer.add(batch)
                return
            except DreamGymError as error:
                logger.warning("storing %d trajectories failed (%d of %d): %s", len(batch), attempt, ATTEMPTS, error)
                await asyncio.sleep(attempt)
            except Exception:  # the queue must outlive one bad batch; its episodes remain in the episode store
                logger.exception("storing %d trajectories failed", len(batch))
                return
