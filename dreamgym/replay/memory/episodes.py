"""The episode store in memory, for tests, notebooks and comparisons. Nothing survives the process."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from dreamgym.errors import InvalidInput, StaleEpisode, UnknownEpisode
from dreamgym.replay.episode_store import Episode, SteadyClock, stale
from dreamgym.replay.keys import check_storable
from dreamgym.types import StopReason, Transition


def _mark(episode: Episode) -> tuple[object, ...]:
    return episode.version, episode.stop_reason, episode.undelivered


class MemoryEpisodeStore:
    """An EpisodeStore in a dictionary."""

    def __init__(self) -> None:
        self._episodes: dict[str, Episode] = {}
        self._keys: dict[str, str] = {}
        self._used: dict[str, datetime] = {}
        self._archived: set[str] = set()
        self._clock = SteadyClock(datetime.now(UTC))

    def now(self) -> datetime:
        """The system's time when this store was made, advanced by this process's monotonic clock."""
        return self._clock.now()

    async def check(self) -> None:
        """Does nothing: a store in memory always answers."""

    async def create(self, episode: Episode, *, idempotency_key: str | None = None) -> Episode:
        check_storable(episode, f"episode {episode.id!r}")
        if idempotency_key is not None and (known := await self.find(idempotency_key)):
            return known
        if episode.id in self._episodes:
            raise InvalidInput(f"episode {episode.id!r} exists already: a new episode needs an id of its own")
        self._episodes[episode.id], self._used[episode.id] = episode, self.now()
        if not episode.is_kept:
            self._archived.add(episode.id)
        if idempotency_key is not None:
            self._keys[idempotency_key] = episode.id
        return episode

    async def find(self, idempotency_key: str) -> Episode | None:
        return self._episodes.get(self._keys.get(idempotency_key, ""))

    async def load(self, episode_id: str) -> Episode:
        if episode_id not in self._episodes:
            raise UnknownEpisode(episode_id)
        return self._episodes[episode_id]

    async def is_current(self, episode: Episode) -> bool:
        stored = self._episodes.get(episode.id)
        return stored is not None and _mark(stored) == _mark(episode)

    async def append(
        self,
        episode_id: str,
        transition: Transition,
        *,
        version: int,
        stop_reason: StopReason | None = None,
        undelivered: bool = False,
    ) -> None:
        check_storable(transition, f"step {version} of episode {episode_id!r}")
        episode = await self.load(episode_id)
        if episode.version != version or episode.stop_reason is not None:
            raise StaleEpisode(stale(episode, version))
        transitions = (*episode.transitions, transition)
        self._update(episode, transitions=transitions, stop_reason=stop_reason, undelivered=undelivered)
        self._used[episode_id] = self.now()

    async def mark_undelivered(self, episode_id: str, *, version: int, undelivered: bool) -> None:
        episode = self._episodes.get(episode_id)
        if episode is not None and episode.version == version:
            self._update(episode, undelivered=undelivered)

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
        episode = await self.load(episode_id)
        if episode.stop_reason is not None:
            return episode
        if version is not None and version != episode.version:
            raise StaleEpisode(stale(episode, version))
        return self._update(episode, stop_reason=stop_reason, answer=answer, final_reward=final_reward, error=error)

    async def delete(self, episode_id: str) -> None:
        await self.load(episode_id)
        del self._episodes[episode_id], self._used[episode_id]
        self._archived.discard(episode_id)
        self._keys = {key: value for key, value in self._keys.items() if value != episode_id}

    async def running(self, now: datetime, idle_since: datetime) -> int:
        running = (one for one in self._episodes.values() if one.stop_reason is None)
        return sum(one.expires_at > now and self._used[one.id] > idle_since for one in running)

    async def ended(self, episode_ids: Sequence[str]) -> frozenset[str]:
        found = {name: self._episodes.get(name) for name in episode_ids}
        return frozenset(name for name, episode in found.items() if episode is None or episode.stop_reason is not None)

    async def expired(self, envs: Sequence[str], now: datetime, idle_since: datetime) -> tuple[Episode, ...]:
        running = (one for one in self._episodes.values() if one.stop_reason is None and one.env in envs)
        return tuple(found for found in running if found.expires_at <= now or self._used[found.id] <= idle_since)

    async def unarchived(self, envs: Sequence[str], *, after: str = "", limit: int) -> tuple[Episode, ...]:
        found = (self._episodes[name] for name in sorted(self._episodes.keys() - self._archived) if name > after)
        waiting = [one for one in found if one.stop_reason is not None and one.policy_version is None]
        return tuple([episode for episode in waiting if episode.env in envs][:limit])

    async def mark_archived(self, episode_ids: Sequence[str]) -> None:
        self._archived.update(self._episodes.keys() & set(episode_ids))

    def clear(self) -> tuple[Episode, ...]:
        """Forget the episodes that are over, and return them."""
        over = tuple(episode for episode in self._episodes.values() if episode.stop_reason is not None)
        for episode in over:
            del self._episodes[episode.id], self._used[episode.id]
        self._archived.clear()
        self._keys = {key: name for key, name in self._keys.items() if name in self._episodes}
        return over

    async def close(self) -> None:
        pass

    def _update(self, episode: Episode, **changes: object) -> Episode:
        self._episodes[episode.id] = episode.model_copy(update=changes)
        return self._episodes[episode.id]
