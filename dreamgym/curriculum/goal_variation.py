"""New goals in recorded worlds, worded and decided by the environment and tried out in the dream.

A goal is taken if the state decides whether it is reached, if it is not reached at the start, and if a behaviour that
knows what an agent reads reaches it in the dream. So a world with few recordings gives few goals, or none. If it gives
none, `on_failure` is called.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from dreamgym.curriculum.dreamed_variation import DreamedVariation
from dreamgym.curriculum.generator import variation
from dreamgym.curriculum.page_variation import PageVariation
from dreamgym.dream.mapped import MappedWorlds
from dreamgym.dream.objects import ObjectEpisode, ObjectWorlds
from dreamgym.dream.pages import PageWorlds
from dreamgym.environment import Behaviour, EnvironmentSpec, installed_real
from dreamgym.errors import InvalidInput, MissingPackage
from dreamgym.goals import Goals
from dreamgym.redaction import redact_by, redacted_task
from dreamgym.types import JsonObject, StepResult, Task, ToolCall


class GoalVariation(DreamedVariation[ObjectEpisode]):
    """Varies the goal of a task within the parent's recorded world, from the same start.

    Args:
        spec: gives the step limit.
        known: what the recordings show.
        goals: goals of the environment.
        behaviour: plays a trial.
        on_failure: called with a parent whose world gives no new goal, and the reason.
    """

    most_trials = 60

    def __init__(
        self,
        spec: EnvironmentSpec,
        known: ObjectWorlds,
        goals: Goals,
        behaviour: Behaviour,
        on_failure: Callable[[Task, str], None],
    ) -> None:
        super().__init__(on_failure)
        self._spec = spec
        self._known = known
        self._goals = goals
        self._behaviour = behaviour

    def is_recorded(self, task: Task) -> bool:
        """True if the task's world was recorded, so that it may contain other goals."""
        return task.world in self._known.worlds

    def _candidates(self, parent: Task, seed: int) -> Iterator[tuple[Task, ObjectEpisode]]:
        """Tasks whose goal can be decided from the state and is not reached at the start."""
        world = self._known.worlds.get(parent.world)
        if world is None or world.fault is not None:
            return
        asked = self._goals.check(parent.instruction, world.start)
        proposals = list(self._goals.proposals(world.start, self._known.shown))
        random.Random(f"{seed}:{parent.world}").shuffle(proposals)
        for goal in proposals:
            check = self._goals.check(goal.instruction, world.start)
            if check is None or check == asked:  # undecidable, or the parent's own goal, perhaps in other words
                continue
            origin = parent.model_copy(update={"metadata": {**parent.metadata, **goal.metadata}})
            task = variation(origin, goal.instruction, parent.initial_state)
            task = task.model_copy(update={"metadata": {**task.metadata, "success": check}})
            episode = self._known.episode(task)
            if episode is not None and not episode.is_accomplished:
                yield task, episode

    async def _is_reached(self, task: Task, trial: ObjectEpisode) -> bool:
        """True if the behaviour accomplishes the task within the step limit."""
        await self._behaviour(self._spec.first(task), _Trial(task, trial, self._spec.max_steps), 0)
        return trial.is_accomplished


def goal_variation(
    spec: EnvironmentSpec,
    known: MappedWorlds | None,
    on_failure: Callable[[Task, str], None] = lambda parent, reason: None,
) -> GoalVariation | PageVariation | None:
    """The variation for an environment that is dreamed on objects or pages; None for others, or if it has no goals."""
    real = installed_real(spec)
    if known is None or known.goals is None or real is None:
        return None
    if isinstance(known, PageWorlds):
        return PageVariation(known, known.goals, on_failure, lambda: held_out(spec))
    return GoalVariation(spec, known, known.goals, real.behaviours[known.goals.behaviour], on_failure)


def held_out(spec: EnvironmentSpec) -> list[Task]:
    """The tasks of dev and test, redacted: of the folder, and of the real environment if it is installed."""
    found, real = [task for task in spec.tasks if task.metadata.get("split", "train") != "train"], installed_real(spec)
    if real is not None:
        with suppress(InvalidInput, MissingPackage):  # its data is not on this machine; a dream plays without them
            found += [*real.tasks("dev"), *real.tasks("test")]
    redact = redact_by(spec.redact)
    return [redacted_task(task, redact) for task in found]


class _Trial:
    """An environment in which a behaviour tries one task. It ends if the recordings have no answer."""

    tools: Sequence[JsonObject] = ()

    def __init__(self, task: Task, episode: ObjectEpisode, max_steps: int) -> None:
        self.task = task
        self._episode = episode
        self._left = max_steps

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        """The first observation of the only task, which has already begun."""
        return StepResult(observation=task.initial_state or "")

    async def step(self, action: ToolCall) -> StepResult:
        """Take one step. The last one that may be taken is truncated."""
        self._left -= 1
        answer = self._episode.answer(action)
        if answer is None:
            return StepResult(observation="", truncated=True)
        return StepResult(
            observation=answer.observation,
            reward=float(answer.success),
            terminated=answer.terminated,
            truncated=self._left <= 0 and not answer.terminated,
            is_error=answer.is_error,
        )

    async def close(self) -> None:
        """Does nothing: there is nothing to release."""
