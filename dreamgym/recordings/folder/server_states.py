"""States that a real server tells with its answers, as the states of its trajectories."""

from __future__ import annotations

from collections.abc import Sequence

from dreamgym.content import AFTER, BEFORE, told
from dreamgym.recordings.log import Exchange
from dreamgym.state import as_text
from dreamgym.types import JsonObject, Trajectory, Transition


def tells(exchange: Exchange) -> bool:
    """The answer tells the state that the call led to."""
    return told(exchange.result or {}, AFTER) is not None


def with_told_states(trajectory: Trajectory, exchanges: Sequence[Exchange]) -> Trajectory:
    """The trajectory with explicit states, an empty text where one is not known.

    An answer that tells none lies between what the calls around it tell; an error without any, such as one of the
    protocol, has changed nothing.

    Args:
        trajectory: of these calls.
        exchanges: one for each of its transitions.
    """
    answers = [exchange.result or {} for exchange in exchanges]
    before = [told(answer, BEFORE) for answer in answers]
    after = [told(answer, AFTER) for answer in answers]
    for place, transition in enumerate(trajectory.transitions):
        if before[place] is None and place > 0:
            before[place] = after[place - 1]
        if after[place] is None and place + 1 < len(before):
            after[place] = before[place + 1]
        if after[place] is None and transition.result.is_error:
            after[place] = before[place]
        if before[place] is None and transition.result.is_error:
            before[place] = after[place]
    steps = zip(trajectory.transitions, before, after, strict=True)
    transitions = tuple(_with_states(transition, start, end) for transition, start, end in steps)
    start = transitions[0].state
    task = trajectory.task.model_copy(update={"initial_state": start}) if start else trajectory.task
    return trajectory.model_copy(update={"transitions": transitions, "task": task})


def _with_states(transition: Transition, before: JsonObject | None, after: JsonObject | None) -> Transition:
    state, next_state = (as_text(known) if known is not None else "" for known in (before, after))
    info: JsonObject = {**transition.result.info, "state": next_state}
    result = transition.result.model_copy(update={"info": info})
    return transition.model_copy(update={"state": state, "next_state": next_state, "result": result})
