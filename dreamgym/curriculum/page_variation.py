"""Goals that nobody recorded, over recorded pages: worded and decided by the environment, tried out in the dream.

A goal is made of a recorded success: the same product with other options, at another price. It is taken if the calls
that the environment names reach it in the dream.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import islice
from random import Random

from dreamgym.curriculum.generator import variation
from dreamgym.dream.pages import PageWorlds
from dreamgym.goals import PageGoal, PageGoals
from dreamgym.types import Task

TRIALS = 20
"""Most goals that are tried for one variation."""


class PageVariation:
    """Varies what is asked for, where the recordings hold a success for the parent's own goal. Needs no LLM.

    Args:
        known: what the recordings show.
        goals: of the environment.
        on_failure: called with a parent that gives no new goal, and the reason.
    """

    def __init__(
        self,
        known: PageWorlds,
        goals: PageGoals,
        *,
        on_failure: Callable[[Task, str], None] = lambda parent, reason: None,
    ) -> None:
        self._known = known
        self._goals = goals
        self._on_failure = on_failure

    def is_recorded(self, task: Task) -> bool:
        """True if a success is recorded for the task's goal, so that others can be made of it."""
        return task.goal in self._known.successes

    async def vary(self, parents: Sequence[Task], *, seed: int) -> list[Task]:
        """One new goal per parent; none for a parent that gives none."""
        tasks = []
        for parent in parents:
            task = await anext(self.new_goals(parent, seed=seed, trials=TRIALS), None)
            if task is not None:
                tasks.append(task)
        return tasks

    async def new_goals(self, parent: Task, *, seed: int, trials: int | None = None) -> AsyncIterator[Task]:
        """The goals made of a parent's recorded success that can be reached, in an order that the seed draws.

        Args:
            parent: a task.
            seed: fixes the order.
            trials: most goals that are tried; None: all.
        """
        tried, made = 0, 0
        for goal in islice(self._proposals(parent, Random(f"{seed}:{parent.id}")), trials):
            tried += 1
            task = self._worded(parent, goal)
            episode = self._known.episode(task)
            for call in goal.calls:
                episode.answer(call)
            if episode.is_accomplished:
                made += 1
                yield task
        if not made:
            self._on_failure(parent, f"no goal over the pages of {parent.id!r} could be validated ({tried} tried)")

    def _proposals(self, parent: Task, draw: Random) -> Iterator[PageGoal]:
        origin = parent if parent.parent_id is None else parent.model_copy(update={"metadata": {}})
        calls = self._known.successes.get(origin.goal)
        if calls is None:
            return
        episode = self._known.episode(origin)
        for call in calls[:-1]:
            episode.answer(call)
        yield from self._goals.proposals(parent.instruction, episode.state, draw)

    def _worded(self, parent: Task, goal: PageGoal) -> Task:
        """The task: its start is the parent's with the other instruction, and it is decided by its own check."""
        old, new = parent.instruction.strip(), goal.instruction.strip()
        start = None if parent.initial_state is None else parent.initial_state.replace(old, new)
        bare = parent.model_copy(update={"metadata": {"world": parent.world}})
        task = variation(bare, goal.instruction, start)
        return task.model_copy(update={"metadata": {**task.metadata, "success": goal.check}})
