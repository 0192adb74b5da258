"""New goals that nobody recorded, tried out in the dream: the common part for dreams of objects and of pages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import islice
from typing import ClassVar, Generic, TypeVar

from dreamgym.types import Task

Trial = TypeVar("Trial")
"""The data that is needed to try a goal."""


class DreamedVariation(ABC, Generic[Trial]):
    """Varies the goal of a task, within what recordings show. A goal is taken if it is reached in the dream.

    Needs no LLM.

    Args:
        on_failure: called with a parent that gives no new goal, and the reason.
    """

    most_trials: ClassVar[int]
    """Most goals that are tried for one variation."""

    def __init__(self, on_failure: Callable[[Task, str], None]) -> None:
        self._on_failure = on_failure

    @abstractmethod
    def is_recorded(self, task: Task) -> bool:
        """True if enough was recorded of the task to look for other goals."""

    @abstractmethod
    def _candidates(self, parent: Task, seed: int) -> Iterator[tuple[Task, Trial]]:
        """Tasks like the parent, in an order drawn by `seed`, each with the data that is needed to try it."""

    @abstractmethod
    async def _is_reached(self, task: Task, trial: Trial) -> bool:
        """True if the task is accomplished in the dream."""

    async def vary(self, parents: Sequence[Task], *, seed: int) -> list[Task]:
        """One new goal per parent; none for a parent that gives none."""
        tasks = []
        for parent in parents:
            task = await anext(self.new_goals(parent, seed=seed, trials=self.most_trials), None)
            if task is not None:
                tasks.append(task)
        return tasks

    async def new_goals(self, parent: Task, *, seed: int, trials: int | None = None) -> AsyncIterator[Task]:
        """Tasks with goals like the parent's that can be reached in the dream, in an order drawn by `seed`.

        Args:
            parent: a task of which something was recorded.
            seed: fixes the order.
            trials: most goals that are tried; None: all.
        """
        tried, made = 0, 0
        for task, trial in islice(self._candidates(parent, seed), trials):
            tried += 1
            if await self._is_reached(task, trial):
                made += 1
                yield task
        if not made:
            told = f"no goal other than that of {parent.id!r} could be reached in the dream of world {parent.world!r}"
            self._on_failure(parent, f"{told} ({tried} tried)")
