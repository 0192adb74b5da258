"""The part of a buffer in memory that holds one environment: its trajectories, and the indexes to find them by."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from dreamgym.replay.buffer import SATURATED_GROUPS, SATURATED_VARIANCE, Retrieval, TaskValue
from dreamgym.replay.keys import Key, goal_id, key_of, outcome_id, source_mask, transition_id
from dreamgym.replay.ranking import Candidate, seen_states
from dreamgym.types import Source, StopReason, Task, Trajectory, Transition

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Sighting(NamedTuple):
    """The world, source and goal of a trajectory that contains a transition."""

    world: str
    source: Source
    goal: UUID

    @classmethod
    def of(cls, trajectory: Trajectory) -> Sighting:
        """The sighting that all transitions of a trajectory share."""
        return cls(trajectory.world_id, trajectory.source, goal_id(trajectory.task.goal))


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
            if is_there and sighting.source in retrieval.sources and trajectories - {retrieval.exclude}:
                yield sighting


@dataclass
class EnvironmentIndex:
    """Tasks, trajectories, transitions and outcomes of one environment, in dictionaries."""

    tasks: dict[str, Task] = field(default_factory=dict)
    trajectories: dict[str, Trajectory] = field(default_factory=dict)
    transitions: dict[UUID, Stored] = field(default_factory=dict)
    keys: dict[Key, list[Stored]] = field(default_factory=lambda: defaultdict(list))
    states: dict[str, dict[str, tuple[int, int]]] = field(default_factory=lambda: defaultdict(dict))
    """State to the worlds that contain it: for each, a bit mask of the sources, and the position of the first."""
    position: int = 0
    """Position of the newest trajectory. A trajectory that is retired leaves a gap."""
    positions: dict[str, int] = field(default_factory=dict)
    """Trajectory id to its position."""
    watermarks: dict[str, int] = field(default_factory=dict)
    instructions: dict[UUID, str] = field(default_factory=dict)
    """Goal id to the instruction of the first task with this goal."""
    outcomes: dict[str, dict[tuple[str, int], list[float]]] = field(default_factory=lambda: defaultdict(dict))
    """Task id to (run, policy version) to rewards. The pair that was recorded last comes last."""
    vectors: NDArray[np.float32] | None = None
    """Vectors of the first keys of `keys`, shape (n, dim). The other keys are embedded when a query needs them."""

    def add(self, trajectory: Trajectory) -> None:
        """Store a new trajectory and its task."""
        self.position += 1
        self.positions[trajectory.id] = self.position
        self._index(trajectory)

    def replace(self, trajectory: Trajectory) -> None:
        """Replace the stored trajectory of the same id."""
        old = self.trajectories[trajectory.id]
        self._forget_steps(old)
        self._index(trajectory)
        for transition in trajectory.transitions:  # equal steps may differ in their reasoning
            self.transitions[transition_id(transition)].transition = transition
        self._forget_states({old.world_id}, old.source)
        self.vectors = None

    def _index(self, trajectory: Trajectory) -> None:
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
            self.transitions[identity].first_at.setdefault(sighting, position)
            for state in (transition.state, transition.next_state):
                sources, first_at = self.states[state].get(trajectory.world_id, (0, position))
                self.states[state][trajectory.world_id] = sources | bit, first_at

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
        self, key: Key, score: float, retrieval: Retrieval, agreement: Counter[str], *, exact: bool
    ) -> Iterator[Candidate]:
        """The transitions under a key that a query may return, one candidate per sighting."""
        asked = goal_id(retrieval.goal)
        for stored in self.keys.get(key, ()):
            sightings = list(stored.sightings(retrieval))
            same_goal = any(goal == asked for _, _, goal in sightings)
            for world, source, goal in sightings:
                shown = asked if same_goal else goal
                yield Candidate(
                    stored.id, stored.outcome, world, source, agreement[world], score, exact, shown, same_goal
                )

    def record(self, task_id: str, run: str, policy_version: int, rewards: Sequence[float]) -> None:
        """Add rewards of a policy, which becomes the policy that tried the task last."""
        outcomes = self.outcomes[task_id]
        before = outcomes.pop((run, policy_version), [])
        outcomes[run, policy_version] = [*before, *rewards]

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
            self.vectors = None
        return [trajectory.id for trajectory in gone]

    def _always_solved(self, task_id: str) -> bool:
        last = [rewards for rewards in self.outcomes.get(task_id, {}).values() if rewards][-SATURATED_GROUPS:]
        moments = [_moments(rewards) for rewards in last]
        return len(last) == SATURATED_GROUPS and all(m > 0 and v <= SATURATED_VARIANCE for m, v in moments)

    def _forget_steps(self, trajectory: Trajectory) -> None:
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


def _moments(rewards: Sequence[float]) -> tuple[float, float]:
    """Mean and variance, divided by n."""
    mean = sum(rewards) / len(rewards)
    return mean, sum((reward - mean) ** 2 for reward in rewards) / len(rewards)
