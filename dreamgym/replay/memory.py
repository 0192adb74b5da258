"""The replay buffer and the episode store in memory: for tests, notebooks and comparisons.

They keep the same promises as the PostgreSQL ones and pass the same contract suite. Nothing survives the process.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from dreamgym.embedding import Encoder
from dreamgym.errors import InvalidInput, StaleEpisode, UnknownEpisode, UnknownName
from dreamgym.replay.buffer import GROUNDED, BufferCounts, Demonstration, Retrieval, TaskValue
from dreamgym.replay.episodes import Episode, stale
from dreamgym.replay.keys import (
    Key,
    KeyEncoder,
    check_storable,
    check_trajectories,
    key_of,
    outcome_id,
    source_mask,
    transition_id,
)
from dreamgym.replay.ranking import EXACT_SCORE, SIMILAR_KEYS, Candidate, rank, seen_states, similarity
from dreamgym.types import Source, StopReason, Task, Trajectory, Transition

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass
class _Stored:
    """A distinct transition and where it was seen."""

    id: UUID
    outcome: UUID
    transition: Transition
    seen_in: dict[tuple[str, Source], set[str]] = field(default_factory=lambda: defaultdict(set))
    """World and source to the ids of the trajectories."""
    first_at: dict[tuple[str, Source], int] = field(default_factory=dict)
    """The same to the position of the first."""

    def sightings(self, retrieval: Retrieval) -> Iterator[tuple[str, Source]]:
        """Where it may be taken from: allowed sources, nothing too new, and never the running episode."""
        for (world, source), trajectories in self.seen_in.items():
            is_there = retrieval.as_of is None or self.first_at[world, source] <= retrieval.as_of
            if is_there and source in retrieval.sources and trajectories - {retrieval.exclude}:
                yield world, source


@dataclass
class _Environment:
    """All that is remembered of one environment."""

    tasks: dict[str, Task] = field(default_factory=dict)
    trajectories: dict[str, Trajectory] = field(default_factory=dict)
    transitions: dict[UUID, _Stored] = field(default_factory=dict)
    keys: dict[Key, list[_Stored]] = field(default_factory=lambda: defaultdict(list))
    states: dict[str, dict[str, tuple[int, int]]] = field(default_factory=lambda: defaultdict(dict))
    """State to the worlds it belongs to, each with the sources that say so, as bits, and the position of the first."""
    watermarks: dict[str, int] = field(default_factory=dict)
    outcomes: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    vectors: NDArray[np.float32] | None = None
    """Of the first keys, in their order; the rest is embedded when first needed."""

    def add(self, trajectory: Trajectory) -> None:
        self.tasks.setdefault(trajectory.task.id, trajectory.task)
        self.trajectories[trajectory.id] = trajectory
        bit, position = source_mask({trajectory.source}), len(self.trajectories)
        for transition in trajectory.transitions:
            identity = transition_id(transition)
            if identity not in self.transitions:
                stored = _Stored(identity, outcome_id(transition), transition)
                self.transitions[identity] = stored
                self.keys[key_of(transition)].append(stored)
            sighting = trajectory.world_id, trajectory.source
            self.transitions[identity].seen_in[sighting].add(trajectory.id)
            self.transitions[identity].first_at.setdefault(sighting, position)
            for state in (transition.state, transition.next_state):
                sources, first_at = self.states[state].get(trajectory.world_id, (0, position))
                self.states[state][trajectory.world_id] = sources | bit, first_at

    def agreement(self, retrieval: Retrieval) -> Counter[str]:
        """How many of the seen states each world contains."""
        allowed = source_mask(retrieval.sources)
        counts: Counter[str] = Counter()
        for state in seen_states(retrieval):
            for world, (sources, first_at) in self.states.get(state, {}).items():
                if sources & allowed and (retrieval.as_of is None or first_at <= retrieval.as_of):
                    counts[world] += 1
        return counts

    def candidates(
        self, key: Key, score: float, retrieval: Retrieval, agreement: Counter[str], *, exact: bool
    ) -> Iterator[Candidate]:
        for stored in self.keys.get(key, ()):
            for world, source in stored.sightings(retrieval):
                yield Candidate(stored.id, stored.outcome, world, source, agreement[world], score, exact)


class MemoryBuffer:
    """A ReplayBuffer in dictionaries; exact search with numpy."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = KeyEncoder(encoder)
        self._environments: dict[str, _Environment] = defaultdict(_Environment)
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
            )
            for candidate in rank(candidates, retrieval)
        )

    async def _similar(self, environment: _Environment, key: Key, retrieval: Retrieval) -> list[tuple[Key, float]]:
        """The stored keys nearest to this one that have an allowed transition, with their scores."""
        import numpy as np

        vectors = await self._vectors(environment)
        asked = _unit(await self._encoder.encode([key]))[0]
        cosines = vectors @ asked
        found: list[tuple[Key, float]] = []
        keys = list(environment.keys)[: len(vectors)]
        for row in np.argsort(-cosines, kind="stable"):
            if retrieval.tool and not keys[row][1].startswith(f"{retrieval.tool}{{"):
                continue
            if any(True for stored in environment.keys[keys[row]] for _ in stored.sightings(retrieval)):
                found.append((keys[row], similarity(key, keys[row], float(cosines[row]))))
            if len(found) == SIMILAR_KEYS:
                break
        return found

    async def _vectors(self, environment: _Environment) -> NDArray[np.float32]:
        import numpy as np

        async with self._embedding:
            known = environment.vectors
            missing = list(environment.keys)[0 if known is None else len(known) :]
            if known is None or missing:
                fresh = _unit(await self._encoder.encode(missing))
                known = fresh if known is None else np.concatenate([known, fresh])
                environment.vectors = known
            return known

    async def watermark(self, env: str, group: str = "") -> int:
        """How far the buffer has got; for a named group, how far it had got when this was first asked."""
        environment = self._environments[env]
        position = len(environment.trajectories)
        return environment.watermarks.setdefault(group, position) if group else position

    async def trajectories(
        self, env: str, *, sources: frozenset[Source] = GROUNDED, limit: int | None = None
    ) -> tuple[Trajectory, ...]:
        """Stored trajectories, oldest first."""
        environment = self._environments.get(env, _Environment())
        return tuple(found for found in environment.trajectories.values() if found.source in sources)[:limit]

    async def add_tasks(self, tasks: Sequence[Task]) -> None:
        """Store tasks; one with an id already there is left alone."""
        for task in tasks:
            check_storable(task, f"task {task.id!r}")
        for task in tasks:
            self._environments[task.env].tasks.setdefault(task.id, task)

    async def tasks(self, env: str) -> tuple[Task, ...]:
        """All tasks of an environment, in the order they were stored."""
        return tuple(self._environments.get(env, _Environment()).tasks.values())

    async def record_outcomes(self, env: str, task_id: str, policy_version: int, rewards_G: Sequence[float]) -> None:
        """Add one group's outcome rewards to the statistics of the task."""
        environment = self._environments.get(env, _Environment())
        if task_id not in environment.tasks:
            raise UnknownName("task", task_id, list(environment.tasks)[:20], f"{len(environment.tasks)} in all")
        environment.outcomes[task_id, policy_version].extend(rewards_G)

    async def task_values(self, env: str) -> tuple[TaskValue, ...]:
        """Statistics of every task that was attempted, newest policy version of each."""
        environment = self._environments.get(env, _Environment())
        newest = {
            task: version for task, version in sorted(environment.outcomes) if environment.outcomes[task, version]
        }
        return tuple(
            _value(task, newest[task], environment.outcomes[task, newest[task]])
            for task in environment.tasks
            if task in newest
        )

    async def counts(self, env: str) -> BufferCounts:
        """How much there is."""
        environment = self._environments.get(env, _Environment())
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


def _value(task_id: str, policy_version: int, rewards: Sequence[float]) -> TaskValue:
    mean = sum(rewards) / len(rewards)
    return TaskValue(
        task_id=task_id,
        policy_version=policy_version,
        attempts=len(rewards),
        mean=mean,
        variance=sum((reward - mean) ** 2 for reward in rewards) / len(rewards),
    )


def _mark(episode: Episode) -> tuple[object, ...]:
    return episode.version, episode.stop_reason, episode.undelivered


class MemoryEpisodeStore:
    """An EpisodeStore in a dictionary."""

    def __init__(self) -> None:
        self._episodes: dict[str, Episode] = {}
        self._keys: dict[str, str] = {}

    async def create(self, episode: Episode, *, idempotency_key: str | None = None) -> Episode:
        """Store a new episode, or return the one that an earlier call with the same key made."""
        check_storable(episode, f"episode {episode.id!r}")
        if idempotency_key is not None and idempotency_key in self._keys:
            return self._episodes[self._keys[idempotency_key]]
        if episode.id in self._episodes:
            raise InvalidInput(f"episode {episode.id!r} exists already: a new episode needs an id of its own")
        self._episodes[episode.id] = episode
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
        del self._episodes[episode_id]
        self._keys = {key: value for key, value in self._keys.items() if value != episode_id}

    async def running(self, now: datetime) -> int:
        """How many episodes run and are not expired."""
        episodes = self._episodes.values()
        return sum(episode.stop_reason is None and episode.expires_at > now for episode in episodes)

    async def ended(self, episode_ids: Sequence[str]) -> frozenset[str]:
        """Those of the given episodes that are over or forgotten."""
        found = {name: self._episodes.get(name) for name in episode_ids}
        return frozenset(name for name, episode in found.items() if episode is None or episode.stop_reason is not None)

    async def expired(self, now: datetime) -> tuple[Episode, ...]:
        """Running episodes whose time is over."""
        running = (episode for episode in self._episodes.values() if episode.stop_reason is None)
        return tuple(episode for episode in running if episode.expires_at <= now)

    async def close(self) -> None:
        """Nothing to release."""

    def _update(self, episode: Episode, **changes: object) -> Episode:
        self._episodes[episode.id] = episode.model_copy(update=changes)
        return self._episodes[episode.id]
