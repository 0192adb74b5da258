"""Moves finished episodes into the replay buffer.

This happens after the agent has got its answer, and in batches, because every add is a transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import StoreError
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.episode_store import Episode, EpisodeStore
from dreamgym.types import Source, StopReason, Tier, Trajectory

logger = logging.getLogger(__name__)

ATTEMPTS = 3
AT_ONCE = 100
"""Number of episodes that are read and stored together."""


def source_of(episode: Episode) -> Source:
    """Where an episode is played.

    This follows from its steps, because a server of real environments may close episodes that a server of dreams
    left running. If it has none, only a dream has a watermark.
    """
    tiers = {transition.provenance.tier for transition in episode.transitions}
    is_real = tiers == {Tier.REAL} if tiers else episode.as_of is None
    return Source.REAL if is_real else Source.SYNTHETIC


def trajectory_of(episode: Episode, spec: EnvironmentSpec) -> Trajectory | None:
    """The trajectory of a finished episode; None while it runs."""
    if episode.stop_reason is None:
        return None
    return Trajectory(
        id=episode.id,
        task=episode.task,
        transitions=episode.transitions,
        source=source_of(episode),
        stop_reason=episode.stop_reason,
        world=episode.task.world if spec.deterministic else "",
        policy_version=episode.policy_version,
        answer=episode.answer,
        final_reward=episode.final_reward,
        error=episode.error,
    )


def stored_as(episode: Episode, spec: EnvironmentSpec) -> Trajectory | None:
    """The trajectory that the buffer keeps of an episode; None while it runs, and for a failed or empty episode."""
    trajectory = trajectory_of(episode, spec)
    return None if trajectory is None else _kept(trajectory)


def _kept(trajectory: Trajectory) -> Trajectory | None:
    if trajectory.stop_reason is StopReason.OUT_OF_SUPPORT:  # its last step says nothing about the environment
        trajectory = trajectory.model_copy(update={"transitions": trajectory.transitions[:-1]})
    return trajectory if trajectory.transitions and trajectory.stop_reason is not StopReason.ERROR else None


class Archive:
    """A queue in front of the buffer. Failed and empty episodes are left out.

    An episode is marked in its store when the buffer has it. `rest` finds and stores those that a killed server left
    without the mark. The buffer stores a trajectory once, even if it is added several times.
    """

    def __init__(self, buffer: ReplayBuffer, episodes: EpisodeStore) -> None:
        self._buffer = buffer
        self._episodes = episodes
        self._queue: asyncio.Queue[Trajectory] = asyncio.Queue()
        self._handled: set[str] = set()
        """Ids of trajectories in the queue, and of those that the buffer refused. A later process tries these again."""
        self._given_up: set[str] = set()
        """Ids of trajectories that could not be stored in time. `rest` stores them."""

    @property
    def backlog(self) -> int:
        """Number of trajectories that wait in the queue, could not be stored yet, or were refused by the buffer."""
        return len(self._handled | self._given_up)

    def put(self, trajectory: Trajectory) -> None:
        self._handled.add(trajectory.id)
        self._queue.put_nowait(trajectory)

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
                await self._insist(batch)
            finally:
                for _ in batch:
                    self._queue.task_done()

    async def rest(self, specs: Mapping[str, EnvironmentSpec]) -> None:
        """Store the finished episodes of these environments that no process has stored. Raises StoreError."""
        after = ""
        while found := await self._episodes.unarchived(list(specs), after=after, limit=AT_ONCE):
            trajectories = [
                trajectory
                for episode in found
                if episode.id not in self._handled and (trajectory := trajectory_of(episode, specs[episode.env]))
            ]
            if trajectories:
                logger.info("storing %d episodes that no server has stored yet", len(trajectories))
                await self.store(trajectories)
            after = found[-1].id
        self._given_up.clear()

    async def _insist(self, batch: list[Trajectory]) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self.store(batch)
                return
            except StoreError as error:
                logger.warning("storing %d trajectories failed (%d of %d): %s", len(batch), attempt, ATTEMPTS, error)
                await asyncio.sleep(attempt)
            except Exception:  # the queue must outlive one bad batch; its episodes remain in the episode store
                logger.exception("storing %d trajectories failed", len(batch))
                break
        ids = {trajectory.id for trajectory in batch}
        self._handled -= ids  # so that `rest` finds them
        self._given_up |= ids

    async def store(self, batch: Sequence[Trajectory]) -> None:
        """Store these now. If the buffer refuses one, the others are stored all the same. Raises StoreError."""
        kept = [kept for trajectory in batch if (kept := _kept(trajectory)) is not None]
        refused = await self._refused(kept)
        done = {trajectory.id for trajectory in batch} - refused
        await self._episodes.mark_archived(sorted(done))
        self._handled -= done
        self._handled |= refused

    async def _refused(self, kept: list[Trajectory]) -> set[str]:
        """Add trajectories to the buffer; return the ids of those that it refuses."""
        try:
            if kept:
                await self._buffer.add(kept)
        except StoreError:
            raise
        except Exception:  # a fault of one trajectory must not affect the others
            if len(kept) == 1:
                logger.exception("trajectory %s cannot be stored", kept[0].id)
                return {kept[0].id}
            return set().union(*[await self._refused([trajectory]) for trajectory in kept])
        return set()
