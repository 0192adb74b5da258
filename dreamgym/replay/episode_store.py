"""Where running episodes live, so that any replica can serve any request and a restart loses nothing.

Writes are optimistic: a step is appended only on top of the version it was computed from.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol

from dreamgym.types import Frozen, StepResult, StopReason, Task, Transition


class Episode(Frozen):
    """A running or finished episode as the server remembers it."""

    id: str
    env: str
    task: Task
    seed: int
    max_steps: int
    group: str | None = None
    initial: StepResult
    """What `reset` returned."""
    transitions: tuple[Transition, ...] = ()
    stop_reason: StopReason | None = None
    """None while it runs."""
    answer: str | None = None
    final_reward: float | None = None
    """Reward of the final answer, where it was no tool call; None until `finish`."""
    error: str | None = None
    undelivered: bool = False
    """The client of the last step had gone before the answer was sent: a resend gets that answer, not a new step."""
    policy_version: int | None = None
    as_of: int | None = None
    """The buffer's watermark that the episode's group shares: what was stored after it is not there for a dream."""
    expires_at: datetime

    @property
    def version(self) -> int:
        """Number of steps taken: what an append must be based on."""
        return len(self.transitions)


class SteadyClock:
    """The time at a moment, and from then on as this process measures it.

    Where a machine's clock is set anew, no episode becomes an hour older. A store takes the moment from what all
    processes share, so that those on machines whose clocks differ agree on when an episode is over.
    """

    def __init__(self, moment: datetime) -> None:
        self._moment, self._measured_s = moment, time.monotonic()

    def now(self) -> datetime:
        return self._moment + timedelta(seconds=time.monotonic() - self._measured_s)


class EpisodeStore(Protocol):
    """Keeps episodes. Every method may be called from any replica. What has been stored survives any crash."""

    def now(self) -> datetime:
        """The time by which episodes are over; it never jumps."""

    async def check(self) -> None:
        """Raises StoreError where the store does not answer at once."""

    async def create(self, episode: Episode, *, idempotency_key: str | None = None) -> Episode:
        """Store a new episode, or return the one that an earlier call with the same key made."""

    async def load(self, episode_id: str) -> Episode:
        """The episode as it stands. Raises UnknownEpisode."""

    async def is_current(self, episode: Episode) -> bool:
        """Nobody has added a step to the episode, ended it or delivered its answer since it was read."""

    async def append(
        self,
        episode_id: str,
        transition: Transition,
        *,
        version: int,
        stop_reason: StopReason | None = None,
        undelivered: bool = False,
    ) -> None:
        """Add a step on top of `version` steps, ending the episode where `stop_reason` is given.

        Its answer counts as delivered unless `undelivered` says that its client has gone.

        Raises:
            StaleEpisode: the episode has another number of steps by now, or is over.
            UnknownEpisode: there is none.
        """

    async def mark_undelivered(self, episode_id: str, *, version: int, undelivered: bool) -> None:
        """Note whether the answer of step `version` reached its client; ignored when the episode has moved on."""

    async def finish(
        self,
        episode_id: str,
        stop_reason: StopReason,
        *,
        answer: str | None = None,
        final_reward: float | None = None,
        error: str | None = None,
        version: int | None = None,
    ) -> Episode:
        """End the episode; one that is over keeps its first end. Returns it as it stands.

        Raises:
            StaleEpisode: it runs and has not `version` steps, where that is given.
        """

    async def delete(self, episode_id: str) -> None:
        """Forget the episode. Raises UnknownEpisode."""

    async def running(self, now: datetime, idle_since: datetime) -> int:
        """How many episodes run, are not expired, and were created, stepped or ended after `idle_since`."""

    async def ended(self, episode_ids: Sequence[str]) -> frozenset[str]:
        """Those of the given episodes that are over or forgotten."""

    async def expired(self, now: datetime, idle_since: datetime) -> tuple[Episode, ...]:
        """Running episodes whose time is over, or that nobody has used since."""

    async def unarchived(self, envs: Sequence[str], *, after: str = "", limit: int) -> tuple[Episode, ...]:
        """Episodes that are over and not marked as archived, of these environments, in the order of their ids.

        Those of a policy's version are left out: a training run looks for its own, and takes some of them back.

        Args:
            envs: names of environments.
            after: only greater ids.
            limit: at most so many.
        """

    async def mark_archived(self, episode_ids: Sequence[str]) -> None:
        """The replay buffer has what it keeps of these episodes."""

    async def close(self) -> None:
        """Release connections."""


def stale(episode: Episode, version: int) -> str:
    """Why a step on top of `version` steps cannot be appended."""
    if episode.stop_reason is not None:
        return f"episode {episode.id!r} is over ({episode.stop_reason}): no step can be added"
    return f"episode {episode.id!r} has {episode.version} steps, not {version}: read it again and decide anew"
