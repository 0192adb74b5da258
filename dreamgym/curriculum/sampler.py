"""Chooses the tasks to play next: seed tasks, and at most a share of generated ones.

The curriculum is plain data plus a seed: `state()` goes into the checkpoint, and `restore()` continues as if nothing
had happened. Recorded outcomes belong to the iteration that was sampled last.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from pydantic import ValidationError

from dreamgym.curriculum.evidence import Evidence
from dreamgym.curriculum.generator import content_of
from dreamgym.curriculum.strategy import Strategy, choose
from dreamgym.curriculum.value import group_variance
from dreamgym.errors import InvalidInput
from dreamgym.types import JsonObject, Task

HOPELESS_ATTEMPTS = 16
"""A generated task is dropped if it was not solved in this many attempts, or at once if a whole group solved it."""
KEPT_GENERATED = 64
"""Most generated tasks that can be drawn; the least valuable are dropped first."""


def each_alone(task: Task) -> str:
    """Group of a task if only its own rewards give it its V_tau: the task's own id."""
    return task.id


class Curriculum:
    """Samples tasks and keeps the outcomes of each.

    Args:
        seeds: the tasks that were given; they keep the original distribution covered.
        share: lambda of the paper: at most this share of the tasks of one iteration is generated, in [0, 1].
        seed: fixes every draw, together with the iteration.
        strategy: how the next tasks are chosen, among the given and among the generated ones.
        groups: names the group whose rewards give a task its V_tau. For PPO, it is a cluster of similar tasks, as in
            the paper.
        held_out: returns the tasks of dev and test, which are never added. It is called when the first task is added.
    """

    def __init__(
        self,
        seeds: Sequence[Task],
        *,
        share: float,
        seed: int,
        strategy: Strategy = Strategy.VALUE,
        groups: Callable[[Task], str] = each_alone,
        held_out: Callable[[], Iterable[Task]] = tuple,
    ) -> None:
        if not seeds:
            raise InvalidInput("a curriculum needs at least one task: run `dreamgym collect` or `dreamgym seed` first")
        if not 0 <= share <= 1:
            raise InvalidInput(f"the share of generated tasks must be between 0 and 1, got {share}")
        self._seeds = list({task.id: task for task in seeds}.values())
        self._share = share
        self._seed = seed
        self._strategy = Strategy(strategy)
        self._group_of = groups
        self._held_out = held_out
        self._generated: dict[str, Task] = {}
        self._dropped: set[str] = set()
        self._recorded: dict[str, Task] = {}
        """The generated tasks that have an outcome in this iteration."""
        self._evidence = Evidence()
        self._iteration = 0

    def sample(self, n: int, iteration: int) -> list[Task]:
        """Draw n tasks for an iteration; the same iteration of the same curriculum draws the same."""
        self._iteration, self._recorded = iteration, {}
        draw = random.Random(f"{self._seed}:{iteration}")
        n_generated = min(int(self._share * n), len(self._generated))
        seeds = self._chosen(self._seeds, n - n_generated, draw)
        return [*seeds, *self._chosen(list(self._generated.values()), n_generated, draw)]

    def _chosen(self, tasks: Sequence[Task], n: int, draw: random.Random) -> list[Task]:
        if n == 0:
            return []
        keys = [self._group_of(task) for task in tasks]
        positions = choose(n, self._strategy, keys, self._evidence, self._iteration, draw)
        return [tasks[position] for position in positions]

    def record(self, task: Task, rewards_G: Sequence[float | None]) -> float | None:
        """Record outcomes of a task in the iteration that was sampled last; return V_tau of these outcomes alone.

        None stands for a failed rollout and is ignored. A generated task from which nothing can be learned is dropped
        and never added again, unless a later outcome of the same iteration shows that something can be learned.
        """
        valid = [reward for reward in rewards_G if reward is not None]
        if valid:
            self._evidence.record(self._group_of(task), valid, self._iteration)
            if task.id in self._generated:
                self._recorded[task.id] = task
            for one in self._recorded.values():  # tasks of one group share what this outcome shows
                if self._teaches_nothing(one):
                    self._generated.pop(one.id, None)
                    self._dropped.add(one.id)
                elif one.id in self._dropped:
                    self._dropped.discard(one.id)
                    self._generated[one.id] = one
        return group_variance(rewards_G)

    def _teaches_nothing(self, task: Task) -> bool:
        groups = self._evidence.groups(self._group_of(task))
        if not groups or groups[-1].variance > 0:
            return False
        if groups[-1].total > 0:
            return groups[-1].attempts > 1
        return sum(group.total for group in groups) <= 0 and groups[-1].unsolved >= HOPELESS_ATTEMPTS

    def most_valuable(self, m: int) -> list[Task]:
        """The m tasks with the highest value whose last group had a mixed outcome, as parents (paper, eq. 6)."""
        draw = random.Random(f"{self._seed}:{self._iteration}:parents")
        known = [task for task in (*self._seeds, *self._generated.values()) if self._was_mixed(task)]
        values = self._evidence.values([self._group_of(task) for task in known], self._iteration)
        ranks = [(-value, draw.random()) for value in values]  # tasks of one cluster share their value
        return [known[i] for i in sorted(range(len(known)), key=ranks.__getitem__)[:m]]

    def _was_mixed(self, task: Task) -> bool:
        groups = self._evidence.groups(self._group_of(task))
        return bool(groups) and groups[-1].variance > 0

    def add(self, tasks: Iterable[Task]) -> None:
        """Add generated tasks, except tasks that were given, held out or dropped before.

        If there are too many, the most valuable stay; of equally valuable ones, the newest.
        """
        for task in tasks:
            if task.id not in self._dropped and content_of(task) not in self._taken:
                self._generated[task.id] = task
        if len(self._generated) > KEPT_GENERATED:
            newest_first = list(reversed(self._generated.values()))
            values = self._evidence.values([self._group_of(task) for task in newest_first], self._iteration)
            by_value = sorted(range(len(newest_first)), key=lambda i: -values[i])
            kept = {newest_first[i].id for i in by_value[:KEPT_GENERATED]}
            self._generated = {task_id: task for task_id, task in self._generated.items() if task_id in kept}

    @cached_property
    def _taken(self) -> set[tuple[str, str, str | None]]:
        """What the tasks that were given or held out play."""
        return {content_of(task) for task in (*self._seeds, *self._held_out())}

    @property
    def generated(self) -> tuple[Task, ...]:
        """The generated tasks that can be drawn now."""
        return tuple(self._generated.values())

    def state(self) -> JsonObject:
        """Everything that changes while training, as JSON."""
        return {
            "strategy": self._strategy.value,
            "iteration": self._iteration,
            "generated": [task.model_dump(mode="json") for task in self._generated.values()],
            "dropped": [*sorted(self._dropped)],
            "groups": self._evidence.state(),
        }

    def restore(self, state: JsonObject) -> None:
        """Continue from a saved state. Raises InvalidInput if it is not a state, or one of another strategy."""
        strategy, iteration, generated = state.get("strategy"), state.get("iteration"), state.get("generated")
        dropped, groups = state.get("dropped"), state.get("groups")
        if not (
            isinstance(iteration, int)
            and isinstance(generated, list)
            and isinstance(dropped, list)
            and isinstance(groups, dict)
        ):
            raise InvalidInput(
                "not a saved curriculum of this version: expected 'strategy', 'iteration', 'generated', 'dropped' and "
                "'groups'; start a new run"
            )
        if strategy != self._strategy.value:
            raise InvalidInput(
                f"this curriculum was saved with the strategy {strategy!r}, but the run uses "
                f"{self._strategy.value!r}: continue with the same strategy"
            )
        try:
            evidence = Evidence.of(groups)
            tasks = [Task.model_validate(task) for task in generated]
        except ValidationError as error:
            raise InvalidInput(f"not a saved curriculum: {error}") from error
        self._iteration, self._recorded = iteration, {}
        self._generated = {task.id: task for task in tasks}
        self._dropped = {str(task_id) for task_id in dropped}
        self._evidence = evidence
