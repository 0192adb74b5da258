"""Compares one recorded call with another answer to it: of a dream, or of the real system that played it again.

An answer is exact if error flag, structured content and text agree. JSON is compared as JSON, and a block that is not
text by its kind. The similarity is an F1 over words; in JSON a word counts together with the keys that lead to it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from pydantic import JsonValue

from dreamgym.dream.task_check import accomplished
from dreamgym.environment import EnvironmentSpec
from dreamgym.evaluation.rates import Rate, clustered
from dreamgym.state import as_text, equal, parsed, shown_in
from dreamgym.tools import Tools, output_schema
from dreamgym.types import Frozen, StepResult, ToolCall, Trajectory, Transition

_WORD = re.compile(r"\w+|[^\w\s]")


class Compared(Frozen):
    """One recorded call, and how it was answered this time."""

    trajectory: str
    step: int
    """Counted from 1."""
    action: ToolCall
    recorded: StepResult
    got: StepResult | None = None
    failure: str | None = None
    """Why there is no answer."""
    invalid: str | None = None
    """How the answer breaks the tool's output schema; None if it does not."""
    has_schema: bool = False
    """The tool's output schema applies to the answer: there is one, and the answer is not an error."""
    before: str = ""
    """The recorded state in which the call was made."""
    after: str = ""
    """The recorded state that it led to."""
    accomplished: bool | None = None
    """True if the call accomplished the task in reality, by the task's own check of the state; None without a check."""
    fulfilled: bool = False
    """True if the task's own check is satisfied after the call in reality, by this call or by an earlier one."""
    claimed: bool | None = None
    """True if the call accomplished the task by the same check of the predicted state; None if either is missing."""
    predicted: Transition | None = None
    """The step as the dream remembers it; None without an answer, and if the real system answered."""
    features: tuple[float, ...] = ()
    """Features of the prediction's confidence (dreamgym.dream.confidence); empty unless a tier that infers answered."""
    seconds: float = 0.0
    """Time until the answer, or until the failure."""

    @property
    def errors_agree(self) -> bool:
        """True if the call was refused as recorded, or accepted as recorded."""
        return self.got is not None and self.got.is_error == self.recorded.is_error

    @property
    def told_by_check(self) -> bool:
        """True if only the task's check tells that it is accomplished: the recording has no reward for that."""
        return self.fulfilled and self.recorded.reward <= 0

    @property
    def exact(self) -> bool:
        return self.got is not None and is_same(self.got, self.recorded)

    @property
    def similarity(self) -> float:
        """Similarity of the answers between 0 and 1; 0 without an answer."""
        return 0.0 if self.got is None else similarity(self.recorded, self.got)

    @property
    def state_is_exact(self) -> bool:
        """True if the predicted state is the recorded one; JSON is compared as JSON."""
        if self.predicted is None:
            return False
        got, recorded = parsed(self.predicted.next_state), parsed(self.after)
        if got is None or recorded is None:
            return self.predicted.next_state == self.after
        return as_text(got) == as_text(recorded)

    @property
    def is_right(self) -> bool:
        """True if answer, state, reward and end are the recorded ones."""
        return (
            self.got is not None
            and self.exact
            and (self.predicted is None or self.state_is_exact)
            and self.got.reward == self.recorded.reward
            and self.got.terminated == self.recorded.terminated
        )


class Agreement(Frozen):
    """Agreement of the calls of one tool, or of all tools. A call without an answer counts as wrong."""

    calls: int
    answered: Rate
    valid: Rate
    """Share of the answers with an output schema that follow it."""
    errors: Rate
    """Share of the calls that are refused as recorded, or accepted as recorded."""
    exact: Rate
    similarity: Rate
    state: Rate | None = None
    """Share of the calls with the recorded state after them; None if states are not compared."""


def agreement(calls: Sequence[Compared]) -> Agreement:
    """The agreement over some calls; states are not compared.

    The intervals hold for other trajectories, see `clustered`.
    """
    with_schema = [call for call in calls if call.has_schema]
    return Agreement(
        calls=len(calls),
        answered=share(calls, lambda call: call.got is not None),
        valid=share(with_schema, lambda call: call.invalid is None),
        errors=share(calls, lambda call: call.errors_agree),
        exact=share(calls, lambda call: call.exact),
        similarity=share(calls, lambda call: call.similarity),
    )


def by_tool(
    calls: Sequence[Compared], measure: Callable[[Sequence[Compared]], Agreement] = agreement
) -> dict[str, Agreement]:
    """The agreement of each tool, in alphabetical order."""
    names = sorted({call.action.name for call in calls})
    return {name: measure([call for call in calls if call.action.name == name]) for name in names}


def share(calls: Sequence[Compared], score: Callable[[Compared], float]) -> Rate:
    """The mean score of the calls, or the share for which something holds, for other trajectories."""
    return clustered([float(score(call)) for call in calls], [call.trajectory for call in calls])


def compared(
    spec: EnvironmentSpec,
    tools: Tools,
    trajectory: Trajectory,
    step: int,
    got: StepResult | None,
    *,
    failure: str | None = None,
    predicted: Transition | None = None,
    features: tuple[float, ...] = (),
    seconds: float = 0.0,
) -> Compared:
    """Compare a recorded call (counted from 1) with an answer to it, or note the reason why there is none."""
    transition = trajectory.transitions[step - 1]
    answers = [one.result.observation for one in trajectory.transitions[: step - 1]]

    def is_done(state: str, answer: str) -> bool | None:
        return accomplished(trajectory.task, spec.explicit(state), [*answers, answer])

    def accomplishes(state: str, answer: str) -> bool | None:
        """True if the task is accomplished by this step, and was not before it."""
        done = is_done(state, answer)
        if not done:
            return done
        return accomplished(trajectory.task, spec.explicit(transition.state), answers) is not True

    return Compared(
        trajectory=trajectory.id,
        step=step,
        action=transition.action,
        recorded=transition.result,
        before=transition.state,
        after=transition.next_state,
        accomplished=accomplishes(transition.next_state, transition.result.observation),
        fulfilled=is_done(transition.next_state, transition.result.observation) is True,
        claimed=accomplishes(predicted.next_state, got.observation) if predicted and got else None,
        got=got,
        failure=failure,
        invalid=None if got is None else tools.violation(transition.action.name, got),
        has_schema=got is not None and not got.is_error and output_schema(spec, transition.action.name) is not None,
        predicted=predicted,
        features=features,
        seconds=seconds,
    )


def is_same(one: StepResult, other: StepResult) -> bool:
    """True if two answers are equal in error flag, structured content and text; JSON is compared as JSON."""
    return (
        one.is_error == other.is_error
        and equal(one.info.get("structured"), other.info.get("structured"))
        and (one.observation == other.observation or _is_same_json(one.observation, other.observation))
    )


def similarity(recorded: StepResult, got: StepResult) -> float:
    """F1 over the words of two answers; if both are JSON, each word together with the keys that lead to it.

    A punctuation mark counts as a word.
    """
    ours, theirs = facts(recorded, got)
    total = ours.total() + theirs.total()
    return 2 * (ours & theirs).total() / total if total else 1.0


def facts(recorded: StepResult, got: StepResult) -> tuple[Counter[object], Counter[object]]:
    """The words of two answers; if both are JSON, each word together with the keys that lead to it."""
    values = shown_in(recorded), shown_in(got)
    if values[0] is None or values[1] is None:
        return Counter(_WORD.findall(recorded.observation)), Counter(_WORD.findall(got.observation))
    return Counter(_leaves(values[0])), Counter(_leaves(values[1]))


def _is_same_json(one: str, other: str) -> bool:
    try:
        return equal(json.loads(one), json.loads(other))
    except (ValueError, RecursionError):  # a text, or nested too deeply
        return False


def _leaves(value: JsonValue, path: str = "") -> Iterator[tuple[str, str]]:
    """Each word with the keys above it; positions in a list do not count, so one more entry shifts nothing."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}")
    elif isinstance(value, list):
        yield path, "[]"
        for inner in value:
            yield from _leaves(inner, f"{path}[]")
    else:
        number = int(value) if isinstance(value, float) and value.is_integer() else value  # 5.0 is 5
        for word in _WORD.findall(number if isinstance(number, str) else json.dumps(number)):
            yield path, word
