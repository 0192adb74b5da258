"""The replay buffer in memory, for tests, notebooks and comparisons. Nothing survives the process."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from dreamgym.embedding import Encoder
from dreamgym.errors import UnknownName
from dreamgym.replay.buffer import (
    GROUNDED,
    KEPT,
    SATURATED_GROUPS,
    SATURATED_VARIANCE,
    BufferCounts,
    Demonstration,
    Retrieval,
    TaskValue,
    Upserted,
)
from dreamgym.replay.keys import (
    Key,
    KeyEncoder,
    KeyVectors,
    check_kept,
    check_storable,
    check_trajectories,
    goal_id,
    key_of,
    outcome_id,
    source_mask,
    stored_elsewhere,
    transition_id,
)
from dreamgym.replay.ranking import (
    EXACT_SCORE,
    SIMILAR_KEYS,
    Candidate,
    is_disputed,
    rank,
    seen_states,
    similarities,
)
from dreamgym.types import Source, StopReason, Task, Trajectory, Transition

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


SIMILAR_KEPT = 4096
"""Number of queries whose similar keys are cached."""


class Sighting(NamedTuple):
    """The world, source and goal of a trajectory that contains a transition."""

    world: str
    source: Source
    goal: UUID

    @classmethod
    def of(cls, trajectory: Trajectory) -> Sighting:
        """The sighting that all transitions of a trajectory share."""
        return cls(trajectory.world_id, trajectory.source, goal_id(trajectory.task.goal))


FIRST_ROWS = 8 * SIMILAR_KEYS
"""Number of nearest keys that are sorted first. Few queries need more, because they may not use those."""


@dataclass
class Stored:
    """A distinct transition and the sightings of it."""

    id: UUID
    outcome: UUID
    transition: Transition
    seen_in: dict[Sighting, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Sighting to the ids of the trajectories that contain the transition."""
    first_at: dict[Sighting, int] = field(default_factory=dict)
    """Sighting to the position of the first such trajectory."""

    def sightings(self, retrieval: Retrieval) -> Iterator[Sighting]:
        """The sightings that a query may use: an allowed source, not too new, and not of the running episode alone."""
        for sighting, trajectories in self.seen_in.items():
            is_there = retrieval.as_of is None or self.first_at[sighting] <= retrieval.as_of
            is_seen = len(trajectories) > 1 or retrieval.exclude not in trajectories
            if is_there and is_seen and sighting.source in retrieval.sources:
                yield sighting


@dataclass
class EnvironmentIndex:
    """Tasks, trajectories, transitions and outcomes of one environment, in dictionaries."""

    tasks: dict[str, Task] = field(default_factory=dict)
    trajectories: dict[str, Trajectory] = field(default_factory=dict)
    transitions: dict[UUID, Stored] = field(default_factory=dict)
    keys: dict[Key, list[Stored]] = field(default_factory=lambda: defaultdict(list))
    states: dict[str, dict[str, tuple[int, int]]] = field(default_factory=lambda: defaultdict(dict))
    """State to the worlds that contain it; for each world, a bit mask of the sources and the position of the first
    trajectory."""
    position: int = 0
    """Position of the newest trajectory. A trajectory that is retired leaves a gap."""
    positions: dict[str, int] = field(default_factory=dict)
    """Trajectory id to its position."""
    replaced: int = 0
    """How often a stored trajectory was replaced."""
    watermarks: dict[str, int] = field(default_factory=dict)
    instructions: dict[UUID, str] = field(default_factory=dict)
    """Goal id to the instruction of the first task with this goal."""
    outcomes: dict[str, dict[tuple[str, int], list[float]]] = field(default_factory=lambda: defaultdict(dict))
    """Task id to (run, policy version) to rewards. The pair that was recorded last comes last."""
    sources: set[Source] = field(default_factory=set)
    """Sources of all trajectories that were ever stored."""
    similar: dict[tuple[Key, str], list[tuple[Key, float]]] = field(default_factory=dict)
    """Key and tool of a query to the most similar stored keys with their scores, for queries that may see everything. A
    policy repeats the same queries again and again."""
    embedded: KeyVectors | None = None
    """The first keys of `keys` with their vectors. The others are embedded when a query needs them."""

    def add(self, trajectory: Trajectory) -> None:
        """Store a new trajectory and its task."""
        self.position += 1
        self.positions[trajectory.id] = self.position
        self._index(trajectory)

    def replace(self, trajectory: Trajectory) -> None:
        """Replace the stored trajectory of the same id."""
        old = self.trajectories[trajectory.id]
        self.replaced += 1
        self._forget_steps(old)
        self._index(trajectory)
        for transition in trajectory.transitions:  # equal steps may differ in their reasoning
            self.transitions[transition_id(transition)].transition = transition
        self._forget_states({old.world_id}, old.source)
        self.embedded = None

    def sees_all(self, retrieval: Retrieval) -> bool:
        """True if nothing that is stored is hidden from a query."""
        return (
            (retrieval.as_of is None or self.position <= retrieval.as_of)
            and self.sources <= retrieval.sources
            and retrieval.exclude not in self.trajectories
        )

    def _index(self, trajectory: Trajectory) -> None:
        self.similar = {}  # a running search writes into the old one
        self.sources.add(trajectory.source)
        if not trajectory.task.is_blank:
            self.tasks.setdefault(trajectory.task.id, trajectory.task)
        self.trajectories[trajectory.id] = trajectory
        bit, position = source_mask({trajectory.source}), self.positions[trajectory.id]
        sighting = Sighting.of(trajectory)
        self.instructions.setdefault(sighting.goal, trajectory.task.instruction)
        for transition in trajectory.transitions:
            identity = transition_id(transition)
            if identity not in self.transitions:
                stored = Stored(identity, outcome_id(transition), transition)
                self.transitions[identity] = stored
                self.keys[key_of(transition)].append(stored)
            self.transitions[identity].seen_in[sighting].add(trajectory.id)
            first = self.transitions[identity].first_at
            first[sighting] = min(position, first.get(sighting, position))
            for state in (transition.state, transition.next_state):
                sources, first_at = self.states[state].get(trajectory.world_id, (0, position))
                self.states[state][trajectory.world_id] = sources | bit, min(position, first_at)

    def agreement(self, retrieval: Retrieval) -> Counter[str]:
        """World to the number of states seen by the running episode that it contains."""
        allowed = source_mask(retrieval.sources)
        counts: Counter[str] = Counter()
        for state in seen_states(retrieval):
            for world, (sources, first_at) in self.states.get(state, {}).items():
                if sources & allowed and (retrieval.as_of is None or first_at <= retrieval.as_of):
                    counts[world] += 1
        return counts

    def candidates(
        self, scores: Iterable[tuple[Key, float]], retrieval: Retrieval, agreement: Counter[str], *, exact: bool
    ) -> Iterator[Candidate]:
        """The transitions under some keys that a query may return, one candidate per sighting."""
        asked = goal_id(retrieval.goal)
        for key, score in scores:
            for stored in self.keys.get(key, ()):
                sightings = list(stored.sightings(retrieval))
                recorded = any(source in GROUNDED for _, source, _ in sightings)
                same_goal = any(goal == asked for _, source, goal in sightings if source in GROUNDED or not recorded)
                for world, source, goal in sightings:
                    told = (stored.id, stored.outcome, world, source, agreement[world], score, exact)
                    yield Candidate(*told, asked if same_goal else goal, same_goal, recorded)

    def values(self) -> Iterator[TaskValue]:
        """Statistics of every task that was attempted, in the order of the tasks."""
        for task_id in self.tasks:
            tried = {policy: rewards for policy, rewards in self.outcomes.get(task_id, {}).items() if rewards}
            if tried:
                (_, version), last = list(tried.items())[-1]
                mean, variance = _moments(last)
                every = [reward for rewards in tried.values() for reward in rewards]
                yield TaskValue(
                    task_id=task_id,
                    policy_version=version,
                    attempts=len(last),
                    mean=mean,
                    variance=variance,
                    total_attempts=len(every),
                    total_mean=_moments(every)[0],
                )

    def retire(self, keep: int) -> list[str]:
        """Delete most dreams of the tasks that are always solved; return the ids of the deleted trajectories."""
        kept: Counter[tuple[str, StopReason]] = Counter()
        gone: list[Trajectory] = []
        for trajectory in reversed(self.trajectories.values()):
            if trajectory.source is Source.SYNTHETIC and self._always_solved(trajectory.task.id):
                kind = trajectory.task.id, trajectory.stop_reason
                kept[kind] += 1
                if kept[kind] > keep:
                    gone.append(trajectory)
        for trajectory in gone:
            del self.trajectories[trajectory.id], self.positions[trajectory.id]
            self._forget_steps(trajectory)
        if gone:
            self._forget_states({trajectory.world_id for trajectory in gone}, Source.SYNTHETIC)
            self.embedded = None
        return [trajectory.id for trajectory in gone]

    def _always_solved(self, task_id: str) -> bool:
        last = [rewards for rewards in self.outcomes.get(task_id, {}).values() if rewards][-SATURATED_GROUPS:]
        moments = [_moments(rewards) for rewards in last]
        return len(last) == SATURATED_GROUPS and all(m > 0 and v <= SATURATED_VARIANCE for m, v in moments)

    def _forget_steps(self, trajectory: Trajectory) -> None:
        self.similar = {}  # a running search writes into the old one
        sighting = Sighting.of(trajectory)
        for transition in trajectory.transitions:
            stored = self.transitions.get(transition_id(transition))
            if stored is None or sighting not in stored.seen_in:
                continue  # the trajectory had this step twice
            stored.seen_in[sighting].discard(trajectory.id)
            if not stored.seen_in[sighting]:
                del stored.seen_in[sighting], stored.first_at[sighting]
            if not stored.seen_in:
                del self.transitions[stored.id]
                key = key_of(transition)
                self.keys[key].remove(stored)
                if not self.keys[key]:
                    del self.keys[key]

    def _forget_states(self, worlds: set[str], source: Source) -> None:
        """Delete the states of these worlds that no remaining trajectory of this source contains."""
        bit = source_mask({source})
        held = {
            (state, trajectory.world_id)
            for trajectory in self.trajectories.values()
            if trajectory.source is source and trajectory.world_id in worlds
            for transition in trajectory.transitions
            for state in (transition.state, transition.next_state)
        }
        for state, in_worlds in list(self.states.items()):
            for world in in_worlds.keys() & worlds:
                sources, first_at = in_worlds[world]
                if (state, world) not in held and sources & bit:
                    in_worlds[world] = sources & ~bit, first_at
                    if sources == bit:
                        del in_worlds[world]
            if not in_worlds:
                del self.states[state]


class MemoryBuffer:
    """A ReplayBuffer in dictionaries; exact search with numpy."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = KeyEncoder(encoder)
        self._environments: dict[str, EnvironmentIndex] = defaultdict(EnvironmentIndex)
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
        """Store trajectories and tasks; replace a stored one of the same id if the content differs."""
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
            stored = environment.trajectories.get(trajectory.id)
            # by their JSON: in Python 1 and true are equal
            if stored is not None and stored is not trajectory and stored.digest() != trajectory.digest():
                environment.replace(trajectory)
                changed.append(trajectory.id)
        return Upserted(new=await self.add(trajectories), changed=tuple(changed))

    async def nearest(self, retrieval: Retrieval) -> tuple[Demonstration, ...]:
        """At most k transitions, best first; only identical ones if there are any."""
        environment = self._environments.get(retrieval.env)
        if environment is None or retrieval.k < 1:
            return ()
        key = (retrieval.state, retrieval.action.canonical())
        agreement = environment.agreement(retrieval)
        candidates = [*environment.candidates([(key, EXACT_SCORE)], retrieval, agreement, exact=True)]
        if not candidates:
            near = await self._similar(environment, key, retrieval)
            candidates = [*environment.candidates(near, retrieval, agreement, exact=False)]
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
                disputed=is_disputed(
                    environment.transitions[candidate.id].transition,
                    (environment.transitions[rival].transition for rival in candidate.rivals),
                ),
            )
            for candidate in rank(candidates, retrieval)
        )

    async def _similar(self, environment: EnvironmentIndex, key: Key, retrieval: Retrieval) -> list[tuple[Key, float]]:
        """The stored keys nearest to this key, with their scores. Keys without an allowed transition are left out."""
        asked, remembered = (key, retrieval.tool), environment.similar
        sees_all = environment.sees_all(retrieval)
        if sees_all and asked in remembered:
            return remembered[asked]
        stored = await self._vectors(environment)
        keys, cosines = stored.keys, stored.cosines((await self._encoder.encode([key]))[0])
        rows: list[int] = []
        for row in _descending(cosines):
            if retrieval.tool and not keys[row][1].startswith(f"{retrieval.tool}{{"):
                continue
            if any(True for stored in environment.keys.get(keys[row], ()) for _ in stored.sightings(retrieval)):
                rows.append(row)
            if len(rows) == SIMILAR_KEYS:
                break
        near = [keys[row] for row in rows]
        found = [*zip(near, similarities(key, near, cosines[rows].tolist()), strict=True)]
        if sees_all:
            if len(remembered) >= SIMILAR_KEPT:
                remembered.clear()
            remembered[asked] = found
        return found

    async def _vectors(self, environment: EnvironmentIndex) -> KeyVectors:
        """All stored keys with their vectors."""
        async with self._embedding:
            known = environment.embedded
            if known is not None and len(known.keys) == len(environment.keys):
                return known
            missing = [*islice(environment.keys, 0 if known is None else len(known.keys), None)]
            fresh = KeyVectors.of(missing, await self._encoder.encode(missing))
            found = fresh if known is None else known.extended(fresh)
            if found.keys == [*islice(environment.keys, len(found.keys))]:  # nothing was retired in the meantime
                environment.embedded = found
            return found

    async def watermark(self, env: str, group: str = "") -> int:
        """Position of the newest trajectory; for a named group, the position at the first call for this group."""
        environment = self._environments[env]
        return environment.watermarks.setdefault(group, environment.position) if group else environment.position

    async def newest_recording(self, env: str) -> int:
        """Position of the newest trajectory that was not dreamed; each replaced trajectory counts as one more."""
        environment = self._environments.get(env, EnvironmentIndex())
        recorded = (one.id for one in environment.trajectories.values() if one.source in GROUNDED)
        return max((environment.positions[identity] for identity in recorded), default=0) + environment.replaced

    async def trajectories(
        self, env: str, *, sources: frozenset[Source] = GROUNDED, limit: int | None = None
    ) -> tuple[Trajectory, ...]:
        """Stored trajectories of one environment from these sources, oldest first; at most `limit` of them."""
        environment = self._environments.get(env, EnvironmentIndex())
        return tuple(found for found in environment.trajectories.values() if found.source in sources)[:limit]

    async def add_tasks(self, tasks: Sequence[Task]) -> None:
        """Store tasks. A task whose id is already stored is left alone."""
        for task in tasks:
            check_storable(task, f"task {task.id!r}")
        for task in tasks:
            self._environments[task.env].tasks.setdefault(task.id, task)

    async def tasks(self, env: str) -> tuple[Task, ...]:
        """All tasks of an environment, in the order they were stored."""
        return tuple(self._environments.get(env, EnvironmentIndex()).tasks.values())

    async def record_outcomes(
        self, env: str, task_id: str, policy_version: int, rewards_G: Sequence[float], *, run: str = ""
    ) -> None:
        """Add one group's outcome rewards to the statistics of the task."""
        environment = self._environments.get(env, EnvironmentIndex())
        if task_id not in environment.tasks:
            raise UnknownName("task", task_id, list(environment.tasks)[:20], f"{len(environment.tasks)} in all")
        outcomes, policy = environment.outcomes[task_id], (run, policy_version)
        outcomes[policy] = [*outcomes.pop(policy, []), *rewards_G]  # the update that played the task last comes last

    async def task_values(self, env: str) -> tuple[TaskValue, ...]:
        """Statistics of every task that was attempted, in the order of the tasks."""
        return tuple(self._environments.get(env, EnvironmentIndex()).values())

    async def retire(self, env: str, *, keep: int = KEPT) -> int:
        """Delete most dreams of the tasks that are always solved. Call it while no episode runs: it does not check."""
        check_kept(keep)
        gone = self._environments.get(env, EnvironmentIndex()).retire(keep)
        self._ids -= set(gone)
        return len(gone)

    async def counts(self, env: str) -> BufferCounts:
        """Numbers of tasks, trajectories, distinct transitions and worlds of one environment."""
        environment = self._environments.get(env, EnvironmentIndex())
        return BufferCounts(
            tasks=len(environment.tasks),
            trajectories=len(environment.trajectories),
            transitions=len(environment.transitions),
            worlds=len({trajectory.world_id for trajectory in environment.trajectories.values()}),
        )

    async def close(self) -> None:
        pass


def _descending(values: NDArray[np.float32]) -> Iterator[int]:
    """The rows from the greatest value to the least, equal ones in their order; the first ones without sorting all."""
    import numpy as np

    first = min(FIRST_ROWS, len(values))
    least = np.partition(values, -first)[-first] if first else 0.0
    for rows in (np.flatnonzero(values >= least), np.flatnonzero(values < least)):
        yield from rows[np.argsort(-values[rows], kind="stable")].tolist()


def _moments(rewards: Sequence[float]) -> tuple[float, float]:
    """Mean and variance, divided by n."""
    mean = sum(rewards) / len(rewards)
    return mean, sum((reward - mean) ** 2 for reward in rewards) / len(rewards)
