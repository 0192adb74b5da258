"""The reward of final answers: what an experience model says of recorded episodes whose success is known.

The steps are the recorded ones, so that only the verdict is compared. Where the task has a check, the check on the
recorded last state decides, as it does in a dream, and the judge is measured beside it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Sequence

from dreamgym.dream.model import ExperienceModel, Judge, Part
from dreamgym.dream.task_check import accomplished
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import PredictionError
from dreamgym.evaluation.rates import Rate, wilson
from dreamgym.evaluation.steps import Detection, detected
from dreamgym.types import Frozen, Trajectory


class Verdict(Frozen):
    """What was said of one recorded episode."""

    trajectory: str
    recorded: bool
    """Its final reward was positive."""
    judged: bool | None = None
    """None where the model is no judge, gave no verdict, or there is no answer."""
    checked: bool | None = None
    """None where the task has no check, or checks are left out."""

    @property
    def said(self) -> bool | None:
        """What the dream would reward."""
        return self.judged if self.checked is None else self.checked


class Finals(Frozen):
    """The verdicts on all episodes."""

    episodes: int
    decided: Rate
    """Those with a verdict at all."""
    reward: Detection
    """Of what the dream would reward; an episode without a verdict is not rewarded."""
    judge: Detection
    """Of the judge alone, over the episodes that it judged."""
    disagreed: Rate
    """Judge and check, over the episodes that both decided."""


def finals(verdicts: Sequence[Verdict]) -> Finals | None:
    """The measures; None where no success is recorded."""
    if not verdicts:
        return None
    judged = [one for one in verdicts if one.judged is not None]
    both = [one for one in judged if one.checked is not None]
    return Finals(
        episodes=len(verdicts),
        decided=wilson(sum(one.said is not None for one in verdicts), len(verdicts)),
        reward=detected([(one.recorded, one.said is True) for one in verdicts]),
        judge=detected([(one.recorded, one.judged is True) for one in judged]),
        disagreed=wilson(sum(one.judged is not one.checked for one in both), len(both)),
    )


def with_outcome(trajectories: Iterable[Trajectory]) -> list[Trajectory]:
    """Those that ended with an answer or a stop, and of which somebody said whether they succeeded."""
    return [one for one in trajectories if one.final_reward is not None and one.transitions]


async def verdicts_on(
    spec: EnvironmentSpec,
    model: ExperienceModel,
    trajectories: Iterable[Trajectory],
    *,
    without: Collection[Part] = (),
    seed: int = 0,
) -> AsyncGenerator[Verdict, None]:
    """What the dream would say of each recorded episode, one after another."""
    for one in trajectories:
        checked = None if Part.CHECKS in without else _checked(one)
        judged = None
        if one.answer is not None and isinstance(model, Judge):
            try:
                judged = await model.judge(spec, one.task, one.transitions, one.answer, seed=seed)
            except PredictionError:
                judged = None
        yield Verdict(trajectory=one.id, recorded=(one.final_reward or 0) > 0, judged=judged, checked=checked)


def _checked(one: Trajectory) -> bool | None:
    return accomplished(one.task, one.transitions[-1].next_state, [step.result.observation for step in one.transitions])
