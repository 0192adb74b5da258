"""Decides whether a predicted step ends its task, and whether it is a success: the reward of a dream.

The first of these that applies decides:

1. The task's own check (dreamgym.dream.task_check). If a model's word alone has changed the state that the check
   believes (`Provenance.unbounded`), a judge that is not shown this state must agree. A judge must also agree if the
   check needs an answer that a model made up.
2. The recording, if the step was recorded for a task with the same goal and no invented answer led to its state
   (`recorded_end_counts`).
3. The judge, if the model claims a success and can judge. The claim of a model that cannot judge is believed; that of a
   tier of another package is not.
4. The judge, if the model claims nothing, but similar recorded steps ended their tasks.

In a world that was left out of a dream of objects because its recordings contradict each other, only a judge decides.

If none can decide, the end is open: the episode goes on, and its reward is unknown unless it ends later. But a step
that certainly ended its episode, and of which only the success is unknown, still ends it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dreamgym.dream.model import ExperienceModel, Judge, Part, Prediction, Query
from dreamgym.dream.task_check import accomplished
from dreamgym.errors import MalformedAnswer, in_one_line
from dreamgym.replay.buffer import Demonstration
from dreamgym.spans import timed
from dreamgym.types import Provenance, Task, Tier, TokenUsage, ToolCall, Transition

logger = logging.getLogger(__name__)


async def ended(
    query: Query, prediction: Prediction, model: ExperienceModel, *, is_left_out: bool = False
) -> Prediction:
    """The prediction with its end and its success decided.

    Args:
        query: the step that was predicted.
        prediction: what a tier answered.
        model: the experience model; asked for a verdict if it can judge.
        is_left_out: the recordings of this world contradict each other, so that only a judge decides on a success.

    Raises:
        PredictionError: the judge cannot be reached. If the judge's answer is malformed, the end is open instead.
    """
    if Part.CHECKS in query.without:
        return prediction
    state = query.spec.explicit(prediction.next_state)
    told = [(step.result.observation, step.provenance) for step in query.history]
    told.append((prediction.observation, prediction.provenance))
    checked = accomplished(query.task, state, [observation for observation, _ in told])
    is_doubtful = checked is True and (
        is_unbounded(query.history, prediction.provenance) or needs_invented_answers(query.task, state, told)
    )
    is_doubtful |= is_left_out and checked is None and prediction.success
    is_claimed = prediction.success and not prediction.provenance.exact
    is_asked = is_claimed or is_doubtful or (checked is None and _may_have_ended(query, prediction))
    if is_asked and isinstance(model, Judge):  # in this order: `isinstance` on a protocol takes 20 microseconds
        prediction = await _judged(query, prediction, model)
    is_unjudged = checked is None and prediction.provenance.judged is None
    if is_doubtful and prediction.provenance.judged is not True:
        return _open(prediction)
    if is_unjudged and prediction.success and prediction.provenance.tier is Tier.PLUGIN:
        return _open(prediction)
    if checked is None or not (prediction.terminated or prediction.provenance.open_end):
        return prediction
    if prediction.provenance.judged not in {None, checked}:
        logger.warning(
            "task %r: the judge says %s, the task's own check says %s; the check counts",
            query.task.id,
            prediction.provenance.judged,
            checked,
        )
    return prediction.noted(checked=checked, open_end=False).model_copy(
        update={"success": checked, "terminated": prediction.terminated or checked}
    )


def is_unbounded(steps: Sequence[Transition], *last: Provenance) -> bool:
    """True if the state after some steps rests on a model's word alone."""
    return any(provenance.unbounded for provenance in (*(step.provenance for step in steps), *last))


def needs_invented_answers(task: Task, state: str, told: Sequence[tuple[str, Provenance]]) -> bool:
    """True if the task's check does not accept the episode without the answers that a model made up.

    The agent may have dictated these. `told` has the answers of the episode, and how each came about.
    """
    invented = {Tier.MODEL, Tier.CACHE}
    others = [answer for answer, provenance in told if provenance.exact or provenance.tier not in invented]
    return len(others) < len(told) and accomplished(task, state, others) is not True


def recorded_end_counts(query: Query, demonstration: Demonstration) -> bool:
    """True if a recorded end and a recorded success count for the running task too; otherwise its end is open.

    They count if the step was recorded for a task with the same goal, and the running task has a usable check. Without
    a check, two more conditions must hold. The step was not recorded with another outcome in the same world: else
    something decides that the state does not show. And no invented answer led to this state: such a state may be made
    of the agent's own words to look like a recorded one.
    """
    if not demonstration.same_goal:
        return False
    is_checked = accomplished(query.task, query.spec.explicit(demonstration.transition.next_state)) is not None
    return is_checked or not (
        is_invented(query.history) or demonstration.disputed or is_contradicted(query, demonstration)
    )


def is_contradicted(query: Query, demonstration: Demonstration) -> bool:
    """True if the same action in the same state was recorded with another outcome in the same world."""
    return any(
        other.exact and other.world == demonstration.world and other.id != demonstration.id
        for other in query.demonstrations
    )


def is_invented(history: Sequence[Transition]) -> bool:
    """True if an answer that was not recorded for this state and action has changed the state."""
    return any(
        step.provenance.tier is not Tier.REAL and not step.provenance.exact and step.next_state != step.state
        for step in history
    )


@timed("judge")
async def _judged(query: Query, prediction: Prediction, judge: Judge) -> Prediction:
    try:
        verdict = await judge.judge_step(query, prediction)
    except MalformedAnswer as error:
        logger.warning("task %r: no verdict on the end of a step: %s", query.task.id, in_one_line(error))
        used = TokenUsage.total([prediction.provenance, TokenUsage(**error.tokens)])
        return _open(prediction.noted(**used.model_dump()))
    told = prediction.provenance
    judged = prediction.noted(
        judged=verdict.accomplished,
        open_end=False,
        **TokenUsage.total([told, verdict]).model_dump(),
    )
    return judged.model_copy(
        update={"success": verdict.accomplished, "terminated": prediction.terminated or verdict.accomplished}
    )


def _may_have_ended(query: Query, prediction: Prediction) -> bool:
    """True if the end is open, or if it is undecided and a similar recorded step ended its task with a success."""
    if prediction.provenance.open_end:
        return True
    if prediction.terminated or prediction.is_error:
        return False
    repeated = prediction.provenance.retrieved if prediction.provenance.exact else ()
    if any(shown.same_goal and shown.id in repeated for shown in query.demonstrations):
        return False  # it was recorded for a task with this goal, and did not end it
    return any(
        shown.transition.result.terminated
        and shown.transition.result.reward > 0
        and _does_alike(shown.transition.action, query)
        for shown in query.demonstrations
    )


def _does_alike(action: ToolCall, query: Query) -> bool:
    """True if both call the same tool and, if the whole action is a text, begin with the same word."""
    if action.name != query.action.name or query.spec.text_argument is None:
        return action.name == query.action.name
    _, argument = query.spec.text_argument
    verbs = (str(one.arguments.get(argument, "")).split(maxsplit=1)[:1] for one in (action, query.action))
    return next(verbs) == next(verbs)


def _open(prediction: Prediction) -> Prediction:
    is_over = prediction.terminated and prediction.provenance.open_end  # as recorded: only the success is unknown
    return prediction.noted(open_end=True).model_copy(update={"success": False, "terminated": is_over})
