"""New goals on recorded pages, worded and decided by the environment and tried out in the dream.

A goal is made from a recorded success: the same product with other options, at another price. It is taken if the calls
that the environment proposes reach it in the dream, and if it is neither recorded nor held out for a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from random import Random

from dreamgym.curriculum.dreamed_variation import DreamedVariation
from dreamgym.curriculum.generator import variation, words_of
from dreamgym.dream.pages import PageWorlds
from dreamgym.goals import PageGoal, PageGoals
from dreamgym.types import Task, ToolCall


class PageVariation(DreamedVariation[tuple[ToolCall, ...]]):
    """Varies the goal of a task if the recordings contain a success for it.

    Args:
        known: what the recordings show.
        goals: goals of the environment.
        on_failure: called with a parent that gives no new goal, and the reason.
        held_out: returns the tasks whose goals must not be made. It is called at most once.
    """

    most_trials = 20

    def __init__(
        self,
        known: PageWorlds,
        goals: PageGoals,
        on_failure: Callable[[Task, str], None],
        held_out: Callable[[], Iterable[Task]] = tuple,
    ) -> None:
        super().__init__(on_failure)
        self._known = known
        self._goals = goals
        self._held_out = held_out

    @cached_property
    def _taken(self) -> set[str]:
        """The words of goals that are recorded or held out."""
        return {words_of(text) for text in (*self._known.worth, *(task.instruction for task in self._held_out()))}

    def is_recorded(self, task: Task) -> bool:
        """True if a success is recorded for the task's goal, so that other goals can be made from it."""
        return task.goal in self._known.successes

    def _candidates(self, parent: Task, seed: int) -> Iterator[tuple[Task, tuple[ToolCall, ...]]]:
        """Goals like the parent's, each with the calls that should reach it."""
        calls = self._known.successes.get(parent.goal)
        if calls is None:
            return
        episode = self._known.episode(parent)
        for call in calls[:-1]:
            episode.answer(call)
        for goal in self._goals.proposals(parent.instruction, episode.state, Random(f"{seed}:{parent.id}")):
            if words_of(goal.instruction) not in self._taken:
                yield _worded(parent, goal), goal.calls

    async def _is_reached(self, task: Task, trial: tuple[ToolCall, ...]) -> bool:
        """True if the calls accomplish the task."""
        episode = self._known.episode(task)
        for call in trial:
            episode.answer(call)
        return episode.is_accomplished


def _worded(parent: Task, goal: PageGoal) -> Task:
    """The task of a goal: it starts like the parent with the other instruction, and the goal's own check decides it."""
    old, new = parent.instruction.strip(), goal.instruction.strip()
    start = None if parent.initial_state is None else parent.initial_state.replace(old, new)
    bare = parent.model_copy(update={"metadata": {"world": parent.world}})
    task = variation(bare, goal.instruction, start)
    return task.model_copy(update={"metadata": {**task.metadata, "success": goal.check}})
