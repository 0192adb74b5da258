"""The reward of final answers: an experience model's verdict on recorded episodes whose success is known.

The steps are the recorded ones, so that only the verdict is compared. If the task has a check, the check on the
recorded last state decides, as in a dream, and the judge is measured separately.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from contextlib import suppress

from dreamgym.dream.model import ExperienceModel, Judge, Part
from dreamgym.dream.task_check import accomplished
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import PredictionError
from dreamgym.evaluation.rates import Rate, wilson
from dreamgym.evaluation.steps import Detection, detected
from dreamgym.types import Frozen, Source, StopReason, Trajectory


class EpisodeVerdict(Frozen):
    """The success of one recorded episode, as recorded and as the dream decides."""

    trajectory: str
    recorded: bool
    """Its final reward was positive."""
    judged: bool | None = None
    """The judge's verdict; None if the model cannot judge or gave no verdict, or if the agent did not finish."""
    checked: bool | None = None
    """The result of the task's check; None if the task has none, or checks are left out."""

    @property
    def rewarded(self) -> bool | None:
        """True if the dream would reward the episode: the check decides, else the judge."""
        return self.judged if self.checked is None else self.checked


class FinalAnswers(Frozen):
    """The verdicts on all episodes."""

    episodes: int
    known: int | None = None
    """Number of recorded episodes whose success is known. If they are more, `episodes` of them were drawn. None: not
    told, by an older report."""
    decided: Rate
    """Share of the episodes with a verdict."""
    reward: Detection
    """How well the dream's reward finds the successes; an episode without a verdict is not rewarded."""
    judge: Detection
    """How well the judge alone finds them, over the episodes that it judged."""
    disagreed: Rate
    """Share of the episodes on which judge and check disagree, of those that both decided."""


def final_answers(verdicts: Sequence[EpisodeVerdict], *, known: int) -> FinalAnswers | None:
    """The measures; None if there are no verdicts. `known`: number of recorded episodes whose success is known."""
    if not verdicts:
        return None
    judged = [one for one in verdicts if one.judged is not None]
    both = [one for one in judged if one.checked is not None]
    return FinalAnswers(
        episodes=len(verdicts),
        known=known,
        decided=wilson(sum(one.rewarded is not None for one in verdicts), len(verdicts)),
        reward=detected([(one.recorded, one.rewarded is True) for one in verdicts]),
        judge=detected([(one.recorded, one.judged is True) for one in judged]),
        disagreed=wilson(sum(one.judged is not one.checked for one in both), len(both)),
    )


def with_outcome(trajectories: Iterable[Trajectory]) -> list[Trajectory]:
    """The trajectories that have steps and whose final reward is recorded. An import writes it into the last step."""
    return [one for one in trajectories if one.transitions and (one.final_reward is not None or _is_judged(one))]


def _is_judged(one: Trajectory) -> bool:
    return one.source is Source.IMPORTED and one.transitions[-1].result.terminated


async def verdicts_on(
    spec: EnvironmentSpec,
    model: ExperienceModel,
    trajectories: Iterable[Trajectory],
    *,
    without: Collection[Part] = (),
    seed: int = 0,
) -> AsyncGenerator[EpisodeVerdict, None]:
    """The dream's verdict on each recorded episode, one after another."""
    for one in trajectories:
        answers = [step.result.observation for step in one.transitions]
        checked = (
            accomplished(one.task, spec.explicit(one.transitions[-1].next_state), answers)
            if Part.CHECKS not in without
            else None
        )
        judged, has_finished = None, one.stop_reason is StopReason.FINISHED
        # a server also asks about an agent that has finished without an answer, if no check decides
        if (one.answer is not None or (checked is None and has_finished)) and isinstance(model, Judge):
            with suppress(PredictionError):
                judged = await model.judge(spec, one.task, one.transitions, one.answer, seed=seed)
        yield EpisodeVerdict(trajectory=one.id, recorded=one.success, judged=judged, checked=checked)
