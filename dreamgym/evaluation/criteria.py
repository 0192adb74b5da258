"""The paper's four criteria (appendix C.4), each from 0 to 2: scored by a judge model, and computed from recordings.

The judge is shown what the paper's judge was shown: state before, action, predicted outcome. It does not see what
really happened. The exact scores compare the prediction with what really happened. If the two disagree, do not believe
the judge.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import AsyncGenerator, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from pydantic import Field, JsonValue

from dreamgym.dream.prompt import as_data
from dreamgym.dream.questions import Answer, ask
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import PredictionError
from dreamgym.evaluation.calls import Compared, facts, similarity
from dreamgym.evaluation.rates import Rate, bootstrap, clustered, numbered, widened, with_width
from dreamgym.evaluation.steps import changes, field_score
from dreamgym.llm import LLM, Message
from dreamgym.state import difference, parsed, relevant
from dreamgym.types import Frozen, JsonObject, StepResult

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CRITERIA = ("causal_consistency", "diversity", "informativeness", "hallucination")
JUDGED = 100
"""Steps that the judge scores, drawn by the seed; the paper's judge saw 100 trajectories."""
MAX_TOKENS = 400
_WORD = re.compile(r"\w+")
_SCORE: JsonObject = {"type": "integer", "enum": [0, 1, 2]}
SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "reasoning": {"type": "string"},
        "rubric_scores": {
            "type": "object",
            "properties": dict.fromkeys(CRITERIA, _SCORE),
            "required": list(CRITERIA),
            "additionalProperties": False,
        },
    },
    "required": ["reasoning", "rubric_scores"],
    "additionalProperties": False,
}


class Scores(Answer):
    """One score per criterion; `hallucination` is freedom from it."""

    causal_consistency: int = Field(ge=0, le=2)
    diversity: int = Field(ge=0, le=2)
    informativeness: int = Field(ge=0, le=2)
    hallucination: int = Field(ge=0, le=2)


class Rubric(Answer):
    """The judge's answer; its keys are those of SCHEMA."""

    reasoning: str
    rubric_scores: Scores


class JudgedStep(Frozen):
    """The judge's scores of one step."""

    trajectory: str
    step: int
    scores: dict[str, int]


class Criterion(Frozen):
    """One criterion over all steps; means from 0 to 2."""

    exact: Rate
    """Mean over all steps; a step without an answer scores 0."""
    exact_of_judged: Rate | None = None
    """Mean of the exact score over the steps that the judge scored."""
    judged: Rate | None = None
    kappa: Rate | None = None
    """Cohen's kappa of judged and rounded exact scores, with quadratic weights; None if one of them never varies."""


class Criteria(Frozen):
    """The four criteria."""

    judge: str | None
    judged: int
    distinct: float | None
    """Distinct predicted outcomes divided by distinct recorded ones; below 1 the dream is less diverse than reality."""
    criteria: dict[str, Criterion]


def exact_scores(call: Compared, *, explicit: bool) -> dict[str, float]:
    """The exact scores of a call, each from 0 to 2.

    Consistency: F1 of the changes of an explicit state, or of the words of a text state. Diversity: how close the
    number of changed fields is to reality. Informativeness: share of the recorded answer's facts that the answer has.
    Hallucination: share of the answer's words that are in the recorded answer, the states or the call; 0 if error,
    reward or end differ from the recording.
    """
    if call.got is None or call.predicted is None:
        return dict.fromkeys(CRITERIA, 0.0)
    real, dreamed = facts(call.recorded, call.got)
    return {
        "causal_consistency": 2
        * (
            field_score(call)
            if explicit
            else similarity(StepResult(observation=call.after), StepResult(observation=call.predicted.next_state))
        ),
        "diversity": 2 * _as_much_changed(call, explicit=explicit),
        "informativeness": 2 * ((real & dreamed).total() / real.total() if real else 1.0),
        "hallucination": 2 * _nothing_invented(call),
    }


def criteria(
    calls: Sequence[Compared],
    judged: Sequence[JudgedStep] = (),
    *,
    explicit: bool,
    judge: str | None = None,
    seed: int = 0,
) -> Criteria:
    """The criteria over some compared calls, and over the judged ones among them."""
    exact = {(call.trajectory, call.step): exact_scores(call, explicit=explicit) for call in calls}
    both = [one for one in judged if (one.trajectory, one.step) in exact]
    pairs = [(call, call.predicted) for call in calls if call.predicted is not None]
    real = {(call.recorded.observation, call.recorded.is_error, call.after) for call, _ in pairs}
    dreamed = {(one.result.observation, one.result.is_error, one.next_state) for _, one in pairs}

    def criterion(name: str) -> Criterion:
        all_of = _mean([scores[name] for scores in exact.values()], [trajectory for trajectory, _ in exact])
        if not both:
            return Criterion(exact=all_of)
        clusters = [one.trajectory for one in both]
        truths = [exact[one.trajectory, one.step][name] for one in both]
        given = [one.scores[name] for one in both]
        return Criterion(
            exact=all_of,
            exact_of_judged=_mean(truths, clusters),
            judged=_mean(given, clusters),
            kappa=weighted_kappa([int(score + 0.5) for score in truths], given, clusters, seed=seed),
        )

    return Criteria(
        judge=judge if both else None,
        judged=len(both),
        distinct=len(dreamed) / len(real) if real else None,
        criteria={name: criterion(name) for name in CRITERIA},
    )


async def judge_steps(
    llm: LLM, spec: EnvironmentSpec, calls: Sequence[Compared], *, seed: int = 0
) -> AsyncGenerator[JudgedStep, None]:
    """Score answered steps, one after another. A step is left out if the judge gives no valid score for it."""
    for call in calls:
        try:
            asked = await ask(llm, rubric_messages(spec, call), Rubric, SCHEMA, max_tokens=MAX_TOKENS, seed=seed)
        except PredictionError:
            continue
        yield JudgedStep(trajectory=call.trajectory, step=call.step, scores=asked.answer.rubric_scores.model_dump())


def judged_sample(calls: Sequence[Compared], *, seed: int) -> list[Compared]:
    """The answered steps that a judge is shown."""
    answered = [call for call in calls if call.predicted is not None]
    return answered if len(answered) <= JUDGED else random.Random(seed).sample(answered, JUDGED)


def rubric_messages(spec: EnvironmentSpec, call: Compared) -> list[Message]:
    """The judge's question about one step."""
    assert call.predicted is not None
    before, after = parsed(call.before), parsed(call.predicted.next_state)
    result = call.predicted.result
    outcome: JsonObject = {"answer": result.structured or result.observation, "refused": result.is_error}
    outcome |= {"end": result.terminated, "success": result.reward > 0}
    state: JsonValue = call.before
    if spec.state is not None and before is not None:
        state = relevant(before, call.action.arguments, spec.state)
        if after is not None:
            outcome["changes"] = [change.model_dump() for change in difference(before, after)]
    elif call.predicted.next_state != result.observation:
        outcome["state"] = call.predicted.next_state
    action: JsonObject = {"tool": call.action.name, "arguments": call.action.arguments}
    if call.action.answers:
        action["answers"] = call.action.answers
    parts = {"environment": spec.description, "state": state, "action": action, "predicted": outcome}
    content = "\n".join(f"<{name}>{as_data(value)}</{name}>" for name, value in parts.items())
    rules = (files("dreamgym.evaluation") / "criteria.txt").read_text(encoding="utf-8")
    return [Message(role="system", content=rules), Message(role="user", content=content)]


def weighted_kappa(
    ours: Sequence[int], theirs: Sequence[int], clusters: Sequence[str], *, seed: int = 0
) -> Rate | None:
    """Cohen's kappa of two scores from 0 to 2 with quadratic weights (Cohen 1968).

    The interval is a bootstrap over clusters, wider for few of them. None if one of the two never varies: its agreement
    is by chance alone, and kappa means nothing.
    """
    import numpy as np

    if min(len(set(ours)), len(set(theirs))) < 2:
        return None

    owners, n = numbered(clusters)
    tables = np.zeros((n, 3, 3))
    np.add.at(tables, (owners, list(ours), list(theirs)), 1)
    weights = (np.arange(3)[:, None] - np.arange(3)[None, :]) ** 2

    def kappas(tables_R: NDArray[np.float64]) -> NDArray[np.float64]:
        """The kappa of each table; tables in which neither score varies are left out."""
        by_ours, by_theirs, totals = tables_R.sum(axis=2), tables_R.sum(axis=1), tables_R.sum(axis=(1, 2))
        chance = np.einsum("ni,nj,ij->n", by_ours, by_theirs, weights) / totals
        seen = np.einsum("nij,ij->n", tables_R, weights)
        varies = chance > 0
        found: NDArray[np.float64] = 1 - seen[varies] / chance[varies]
        return found

    mean = float(kappas(tables.sum(axis=0, keepdims=True))[0])
    low, high = widened(mean, *bootstrap(lambda drawn_RC: kappas(tables[drawn_RC].sum(axis=1)), n, seed=seed), n)
    return with_width(Rate(mean=mean, low=max(-1.0, min(low, mean)), high=min(1.0, max(high, mean)), n=len(ours)), n)


def _mean(scores: Sequence[float], clusters: Sequence[str]) -> Rate:
    """Mean of scores from 0 to 2."""
    half = clustered([score / 2 for score in scores], clusters)
    return Rate(mean=2 * half.mean, low=2 * half.low, high=2 * half.high, n=half.n)


def _as_much_changed(call: Compared, *, explicit: bool) -> float:
    assert call.predicted is not None
    if not explicit:
        return float((call.before != call.after) == (call.before != call.predicted.next_state))
    real = len(changes(call.before, call.after))
    dreamed = len(changes(call.before, call.predicted.next_state))
    return min(real, dreamed) / max(real, dreamed) if real or dreamed else 1.0


def _nothing_invented(call: Compared) -> float:
    got, recorded = call.got, call.recorded
    assert got is not None
    if (got.is_error, got.reward, got.terminated) != (recorded.is_error, recorded.reward, recorded.terminated):
        return 0.0
    known = {*_words(recorded), *_WORD.findall(f"{call.before} {call.after} {json.dumps(call.action.arguments)}")}
    words = _words(got)
    return sum(word in known for word in words) / len(words) if words else 1.0


def _words(result: StepResult) -> list[str]:
    return _WORD.findall(result.observation) + _WORD.findall(json.dumps(result.structured or {}))
