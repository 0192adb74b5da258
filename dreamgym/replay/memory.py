"""The replay buffer and the episode store in memory: for tests, notebooks and comparisons.

They keep the same promises as the PostgreSQL ones and pass the same contract suite. Nothing survives the process.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from dreamgym.embedding import Encoder
from dreamgym.errors import InvalidInput, StaleEpisode, UnknownEpisode, UnknownName
from dreamgym.replay.buffer import GROUNDED, KEPT, BufferCounts, Demonstration, Retrieval, TaskValue, Upserted
from dreamgym.replay.episodes import Episode, SteadyClock, stale
from dreamgym.replay.keys import (
    Key,
    KeyEncoder,
    check_kept,
    check_storable,
    check_trajectories,
    stored_elsewhere,
)
from dreamgym.replay.ranking import EXACT_SCORE, SIMILAR_KEYS, rank, similarity_to
from dreamgym.replay.remembered import Remembered
from dreamgym.types import Source, StopReason, Task, Trajectory, Transition

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class MemoryBuffer:
    """A ReplayBuffer in dictionaries; exact search with numpy."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = KeyEncoder(encoder)
        self._environments: dict[str, Remembered] = defaultdict(Remembered)
        self._ids: set[str] = set()
        self._embedding = asyncio.Lock()

    async def add(self, trajectories: Sequence[Trajectory]) -> int:
        """Store trajectories with their tasks and return how many were new."""
        check_trajectories(trajectories)
        before = len(self._ids)
        for trajectory in trajectories:
            if trajectory.id not in self._ids:
                self._ids.add(trajectory.id)
                self._environments[trajectory.task.env].add(trajectory)
        return len(self._ids) - before

    async def upsert(self, trajectories: Sequence[Trajectory], tasks: Sequence[Task] = ()) -> Upserted:
        """Store trajectories and tasks; one whose content differs from the stored one of its id takes its place."""
        check_trajectories(trajectories)
        for task in tasks:
            check_storable(task, f"task {task.id!r}")
        for name, environment in self._environments.items():
            for trajectory in trajectories:
                if trajectory.id in environment.trajectories and trajectory.task.env != name:
                    raise stored_elsewhere(trajectory, name)
        for task in tasks:
            self._environments[task.env].tasks[task.id] = task
        changed = []
        for trajectory in trajectories:
            environment = self._environments[trajectory.task.env]
            if environment.trajectories.get(trajectory.id, trajectory) != trajectory:
                environment.replace(trajectory)
                changed.append(trajectory.id)
        return Upserted(new=await self.add(trajectories), changed=tuple(changed))

    async def nearest(self, retrieval: Retrieval) -> tuple[Demonstration, ...]:
        """At most k transitions, best first; where identical ones exist, only those."""
        environment = self._environments.get(retrieval.env)
        if environment is None or retrieval.k < 1:
            return ()
        key = (retrieval.state, retrieval.action.canonical())
        agreement = environment.agreement(retrieval)
        candidates = list(environment.candidates(key, EXACT_SCORE, retrieval, agreement, exact=True))
        if not candidates:
            for near, score in await self._similar(environment, key, retrieval):
                candidates.extend(environment.candidates(near, score, retrieval, agreement, exact=False))
        return tuple(
            Demonstration(
                id=str(candidate.id),
                transition=environment.transitions[candidate.id].transition,
                source=candidate.source,
                world=candidate.world,
                score=candidate.score,
                exact=candidate.exact,
                instruction=environment.instructions[candidate.goal],
                same_goal=candidate.same_goal,
            )
            for candidate in rank(candidates, retrieval)
        )

    async def _similar(self, environment: Remembered, key: Key, retrieval: Retrieval) -> list[tuple[Key, float]]:
        """The stored keys nearest to this one that have an allowed transition, with their scores."""
        import numpy as np

        keys, vectors = await self._vectors(environment)
        asked = _unit(await self._encoder.encode([key]))[0]
        cosines = vectors @ asked
        found: list[tuple[Key, float]] = []
        similarity = similarity_to(key)
        for row in np.argsort(-cosines, kind="stable"):
            if retrieval.tool and not keys[row][1].startswith(f"{retrieval.tool}{{"):
                continue
            if any(True for stored in environment.keys.get(keys[row], ()) for _ in stored.sightings(retrieval)):
                found.append((keys[row], similarity(keys[row], float(cosines[row]))))
            if len(found) == SIMILAR_KEYS:
                break
        return found

    async def _vectors(self, environment: Remembered) -> tuple[list[Key], NDArray[np.float32]]:
        """The keys there are, and their vectors in this order."""
        import numpy as np

        async with self._embedding:
            keys, known = list(environment.keys), environment.vectors
            missing = keys[0 if known is None else len(known) :]
            if known is None or missing:
                fresh = _unit(await self._encoder.encode(missing))
                known = fresh if known is None else np.concatenate([known, fresh])
                if keys == list(environment.keys)[: len(keys)]:  # nothing was retired in the meantime
                    environment.vectors = known
            return keys, known

    async def watermark(self, env: str, group: str = "") -> int:
        """How far the buffer has got; for a named group, how far it had got when this was first asked."""
        environment = self._environments[env]
        return environment.watermarks.setdefault(group, environment.position) if group else environment.position

    async def trajectories(
        self, env: str, *, sources: frozenset[Source] = GROUNDED, limit: int | None = None
    ) -> tuple[Trajectory, ...]:
        """Stored trajectories, oldest first."""
        environment = self._environments.get(env, Remembered())
        return tuple(found for found in environment.trajectories.values() if found.source in sources)[:limit]

    async def add_tasks(self, tasks: Sequence[Task]) -> None:
        """Store tasks; one with an id already there is left alone."""
        for task in tasks:
            check_storable(task, f"task {task.id!r}")
        for task in tasks:
            self._environments[task.env].tasks.setdefault(task.id, task)

    async def tasks(self, env: str) -> tuple[Task, ...]:
        """All tasks of an environment, in the order they were stored."""
        return tuple(self._environments.get(env, Remembered()).tasks.values())

    async def record_outcomes(
        self, env: str, task_id: str, policy_version: int, rewards_G: Sequence[float], *, run: str = ""
    ) -> None:
        """Add one group's outcome rewards to the statistics of the task."""
        environment = self._environments.get(env, Remembered())
        if task_id not in environment.tasks:
            raise UnknownName("task", task_id, list(environment.tasks)[:20], f"{len(environment.tasks)} in all")
        environment.record(task_id, run, policy_version, rewards_G)

    async def task_values(self, env: str) -> tuple[TaskValue, ...]:
        """Statistics of every task that was attempted, in the order of the tasks."""
        return tuple(self._environments.get(env, Remembered()).values())

    async def retire(self, env: str, *, keep: int = KEPT) -> int:
        """Forget most dreams of the tasks that are always solved; knows of no episodes: none may be running."""
        check_kept(keep)
        gone = self._environments.get(env, Remembered()).retire(keep)
        self._ids -= set(gone)
        return len(gone)

    async def counts(self, env: str) -> BufferCounts:
        """How much there is."""
        environment = self._environments.get(env, Remembered())
        return BufferCounts(
            tasks=len(environment.tasks),
            trajectories=len(environment.trajectories),
            transitions=len(environment.transitions),
            worlds=len({trajectory.world_id for trajectory in environment.trajectories.values()}),
        )

    async def close(self) -> None:
        """Nothing to release."""


def _unit(vectors: NDArray[np.float16]) -> NDArray[np.float32]:
    import numpy as np

    exact = vectors.astype(np.float32)
    unit: NDArray[np.float32] = exact / np.maximum(np.linalg.norm(exact, axis=1, keepdims=True), 1e-12)
    return unit


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
        """The time when this store was made, and from then on as this process measures it."""
        return self._clock.now()

    async def check(self) -> None:
        """Memory always answers."""

    async def create(self, episode: Episode, *, idempotency_key: str | None = None) -> Episode:
        """Store a new episode, or return the one that an earlier call with the same key made."""
        check_storable(episode, f"episode {episode.id!r}")
        if idempotency_key is not None and idempotency_key in self._keys:
            return self._episodes[self._keys[idempotency_key]]
        if episode.id in self._episodes:
            raise InvalidInput(f"episode {episode.id!r} exists already: a new episode needs an id of its own")
        self._episodes[episode.id], self._used[episode.id] = episode, self.now()
        if idempotency_key is not None:
            self._keys[idempotency_key] = episode.id
        return episode

    async def load(self, episode_id: str) -> Episode:
        """The episode as it stands."""
        if episode_id not in self._episodes:
            raise UnknownEpisode(episode_id)
        return self._episodes[episode_id]

    async def is_current(self, episode: Episode) -> bool:
        """Nobody has added a step to the episode, ended it or delivered its answer since it was read."""
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
        """Add a step on top of `version` steps."""
        check_storable(transition, f"step {version} of episode {episode_id!r}")
        episode = await self.load(episode_id)
        if episode.version != version or episode.stop_reason is not None:
            raise StaleEpisode(stale(episode, version))
        transitions = (*episode.transitions, transition)
        self._update(episode, transitions=transitions, stop_reason=stop_reason, undelivered=undelivered)
        self._used[episode_id] = self.now()

    async def mark_undelivered(self, episode_id: str, *, version: int, undelivered: bool) -> None:
        """Note whether the answer of step `version` reached its client."""
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
        """End the episode; one that is over keeps its first end."""
        episode = await self.load(episode_id)
        if episode.stop_reason is not None:
            return episode
        if version is not None and version != episode.version:
            raise StaleEpisode(stale(episode, version))
        return self._update(episode, stop_reason=stop_reason, answer=answer, final_reward=final_reward, error=error)

    async def delete(self, episode_id: str) -> None:
        """Forget the episode."""
        await self.load(episode_id)
        del self._episodes[episode_id], self._used[episode_id]
        self._archived.discard(episode_id)
        self._keys = {key: value for key, value in self._keys.items() if value != episode_id}

    async def running(self, now: datetime, idle_since: datetime) -> int:
        """How many episodes run, are not expired, and were used since."""
        running = sum(episode.stop_reason is None for episode in self._episodes.values())
        return running - len(await self.expired(now, idle_since))

    async def ended(self, episode_ids: Sequence[str]) -> frozenset[str]:
        """Those of the given episodes that are over or forgotten."""
        found = {name: self._episodes.get(name) for name in episode_ids}
        return frozenset(name for name, episode in found.items() if episode is None or episode.stop_reason is not None)

    async def expired(self, now: datetime, idle_since: datetime) -> tuple[Episode, ...]:
        """Running episodes whose time is over, or that nobody has used since."""
        running = (episode for episode in self._episodes.values() if episode.stop_reason is None)
        return tuple(found for found in running if found.expires_at <= now or self._used[found.id] <= idle_since)

    async def unarchived(self, envs: Sequence[str], *, after: str = "", limit: int) -> tuple[Episode, ...]:
        """Episodes that are over and not marked as archived, in the order of their ids."""
        found = (self._episodes[name] for name in sorted(self._episodes.keys() - self._archived) if name > after)
        waiting = [one for one in found if one.stop_reason is not None and one.policy_version is None]
        return tuple([episode for episode in waiting if episode.env in envs][:limit])

    async def mark_archived(self, episode_ids: Sequence[str]) -> None:
        """The replay buffer has what it keeps of these episodes."""
        self._archived.update(self._episodes.keys() & set(episode_ids))

    async def close(self) -> None:
        """Nothing to release."""

    def _update(self, episode: Episode, **changes: object) -> Episode:
        self._episodes[episode.id] = episode.model_copy(update=changes)
        return self._episodes[episode.id]
