"""The store of running episodes. Any replica can serve any request, and a restart loses nothing.

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
    """The result of `reset`."""
    transitions: tuple[Transition, ...] = ()
    stop_reason: StopReason | None = None
    """None while the episode runs."""
    answer: str | None = None
    final_reward: float | None = None
    """Reward of the final answer if that was not a tool call; None until `finish`."""
    error: str | None = None
    undelivered: bool = False
    """True if the client of the last step left before the answer was sent. A resend then gets that answer, not a new
    step."""
    policy_version: int | None = None
    as_of: int | None = None
    """The buffer's watermark that the episode's group shares. A dream does not see what was stored after it."""
    is_kept: bool = True
    """False if the replay buffer must not store the episode, whoever ends it."""
    expires_at: datetime

    @property
    def version(self) -> int:
        """Number of steps taken. An append must give the version that it was computed from."""
        return len(self.transitions)


class SteadyClock:
    """A clock that starts at a given moment and then follows this process's monotonic clock.

    So no episode becomes an hour older if a machine's clock is set. A store takes the moment from its database, so that
    processes on machines whose clocks differ agree on when an episode is over.
    """

    def __init__(self, moment: datetime) -> None:
        self._moment, self._measured_s = moment, time.monotonic()

    def now(self) -> datetime:
        return self._moment + timedelta(seconds=time.monotonic() - self._measured_s)


class EpisodeStore(Protocol):
    """Keeps episodes. Every method may be called from any replica. What has been stored survives any crash."""

    def now(self) -> datetime:
        """The current time by the store's clock, against which `expires_at` is compared. It never jumps."""

    async def check(self) -> None:
        """Raises StoreError if the store does not answer at once, or takes no writes."""

    async def create(self, episode: Episode, *, idempotency_key: str | None = None) -> Episode:
        """Store a new episode, or return the one that an earlier call with the same key made.

        An episode with `is_kept` false counts as archived from the start.
        """

    async def find(self, idempotency_key: str) -> Episode | None:
        """Return the episode that was created with this key; None if there is none."""

    async def load(self, episode_id: str) -> Episode:
        """Return the episode in its current state. Raises UnknownEpisode."""

    async def is_current(self, episode: Episode) -> bool:
        """True if nobody has added a step to the episode, ended it or delivered its answer since it was read."""

    async def append(
        self,
        episode_id: str,
        transition: Transition,
        *,
        version: int,
        stop_reason: StopReason | None = None,
        undelivered: bool = False,
    ) -> None:
        """Add a step on top of `version` steps; with a `stop_reason`, end the episode too.

        The step's answer counts as delivered unless `undelivered` is set because its client has left.

        Raises:
            StaleEpisode: the episode has another number of steps by now, or is over.
            UnknownEpisode: no episode has this id.
        """

    async def mark_undelivered(self, episode_id: str, *, version: int, undelivered: bool) -> None:
        """Record whether the answer of step `version` reached its client; ignored if a later step was taken."""

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
        """End the episode and return it in its current state. An episode that is over keeps its first end.

        Raises:
            StaleEpisode: `version` is given, and the episode runs and has another number of steps.
        """

    async def delete(self, episode_id: str) -> None:
        """Delete the episode with its steps. Raises UnknownEpisode."""

    async def running(self, now: datetime, idle_since: datetime) -> int:
        """Number of running episodes that have not expired and were created or stepped after `idle_since`."""

    async def ended(self, episode_ids: Sequence[str]) -> frozenset[str]:
        """The ids among these whose episodes are over or deleted."""

    async def expired(self, envs: Sequence[str], now: datetime, idle_since: datetime) -> tuple[Episode, ...]:
        """Running episodes of these environments that expired before `now`, or that nobody used since `idle_since`."""

    async def unarchived(self, envs: Sequence[str], *, after: str = "", limit: int) -> tuple[Episode, ...]:
        """Episodes of these environments that are over and not marked as archived, in the order of their ids.

        Episodes with a policy version are left out: a training run stores its own, and may take some of them back.

        Args:
            envs: names of environments.
            after: only ids greater than this.
            limit: number of episodes at most.
        """

    async def mark_archived(self, episode_ids: Sequence[str]) -> None:
        """Mark episodes as archived: the replay buffer has stored what it keeps of them."""

    async def close(self) -> None:
        """Release connections."""


def stale(episode: Episode, version: int) -> str:
    """The error message for a step that cannot be appended on top of `version` steps."""
    if episode.stop_reason is not None:
        return f"episode {episode.id!r} is over ({episode.stop_reason}): no step can be added"
    return f"episode {episode.id!r} has {episode.version} steps, not {version}: load it again first"
