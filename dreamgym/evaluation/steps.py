"""How well single steps are predicted: recorded calls that the model does not know, compared one by one.

Everything here is computed from `Compared` (dreamgym.evaluation.calls): the recorded and the predicted answer of one
call, given the recorded history. A call without an answer agrees with nothing. Proportions of steps have Wilson
intervals; means of scores between 0 and 1 have a bootstrap over trajectories.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from pydantic import JsonValue

from dreamgym.evaluation.calls import Compared
from dreamgym.evaluation.rates import Rate, clustered, wilson
from dreamgym.state import fields, parsed
from dreamgym.types import Frozen, JsonObject, StepResult

BUCKETS = ("0", "1", "2", "3-4", "5+")
"""By how many fields of an explicit state the recorded call changed."""
WORDS = ("unchanged", "changed")
"""The same of a state that is a text."""


class StateMatch(Frozen):
    """The state after the call."""

    exact: Rate
    """It is the recorded one, whole."""
    fields: Rate | None = None
    """F1 over the changed fields with their new values; None where states are texts."""


class Detection(Frozen):
    """How well a rare event (a reward, an end) is foreseen. Both are about steps."""

    precision: Rate
    """Of the steps that are predicted to have it."""
    recall: Rate
    """Of the steps that had it."""


class Refusals(Frozen):
    """Invalid actions: what the real environment refused."""

    refused: Rate
    """Of the recorded refusals."""
    same_words: Rate
    """Of the recorded refusals: refused, and with the recorded answer."""
    played_along: Rate
    """Of the recorded refusals: accepted as if nothing were wrong."""
    too_strict: Rate
    """Of the recorded acceptances: refused."""


class Claims(Frozen):
    """Predicted successes that both a judge and the task's own check decided."""

    asked: int
    disagreed: Rate


class ToolSteps(Frozen):
    """The calls of one tool."""

    steps: int
    state: Rate
    observation: Rate
    similarity: Rate
    errors: Rate


class StepFidelity(Frozen):
    """How well single steps are predicted."""

    steps: int
    trajectories: int
    answered: Rate
    state: dict[str, StateMatch]
    """By the number of changed fields; `all` together."""
    unseen: StateMatch
    """Of the calls that are not recorded word for word in this very state: what no repetition can answer."""
    observation: Rate
    """The recorded answer, JSON compared as JSON."""
    similarity: Rate
    """F1 over its words."""
    errors: Rate
    """Refused as recorded, or accepted as recorded."""
    reward: Detection
    termination: Detection
    open_ends: Rate
    """Of the answers: nobody could say whether the step ended its task, so that it did not."""
    refusals: Refusals
    tiers: dict[str, Rate]
    """Share of the steps that each tier answered."""
    accomplished: Detection
    """The step that accomplishes its task, by the task's own check of the state, where it has one."""
    claims: Claims
    tools: dict[str, ToolSteps]
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    """Of all steps together."""


def step_fidelity(calls: Sequence[Compared], *, explicit: bool) -> StepFidelity:
    """The measures over some compared calls.

    Args:
        calls: in any order.
        explicit: the environment has an explicit state (`spec.state`); else states are texts.
    """
    told = [call.predicted.provenance for call in calls if call.predicted is not None]
    claimed = [one for one in told if one.judged is not None and one.checked is not None]
    tiers = Counter(one.tier.value for one in told)
    return StepFidelity(
        steps=len(calls),
        trajectories=len({call.trajectory for call in calls}),
        answered=share(calls, lambda call: call.got is not None),
        state=state_matches(calls, explicit=explicit),
        unseen=_state_match([call for call in calls if not _is_repeated(call)], explicit=explicit),
        observation=share(calls, lambda call: call.exact),
        similarity=clustered([call.similarity for call in calls], [call.trajectory for call in calls]),
        errors=share(calls, lambda call: call.errors_agree),
        reward=_detection(calls, lambda result: result.reward > 0),
        termination=_detection(calls, lambda result: result.terminated),
        open_ends=wilson(sum(one.open_end for one in told), len(told)),
        refusals=_refusals(calls),
        tiers={tier: wilson(n, len(calls)) for tier, n in sorted(tiers.items())},
        accomplished=detected([(call.accomplished is True, call.claimed is True) for call in calls]),
        claims=Claims(
            asked=len(claimed), disagreed=wilson(sum(one.judged != one.checked for one in claimed), len(claimed))
        ),
        tools={name: _tool([call for call in calls if call.action.name == name]) for name in _names(calls)},
        prompt_tokens=sum(one.prompt_tokens for one in told),
        completion_tokens=sum(one.completion_tokens for one in told),
        seconds=sum(call.seconds for call in calls),
    )


def share(calls: Sequence[Compared], holds: Callable[[Compared], bool]) -> Rate:
    """The share of the calls of which something holds."""
    return wilson(sum(map(holds, calls)), len(calls))


def state_matches(calls: Sequence[Compared], *, explicit: bool) -> dict[str, StateMatch]:
    """State match by how much the recorded call changed; every bucket is there, also an empty one."""
    names = BUCKETS if explicit else WORDS
    groups: dict[str, list[Compared]] = {name: [] for name in names}
    for call in calls:
        groups[bucket(call, explicit=explicit)].append(call)
    return {
        **{name: _state_match(group, explicit=explicit) for name, group in groups.items()},
        "all": _state_match(calls, explicit=explicit),
    }


def bucket(call: Compared, *, explicit: bool) -> str:
    """How much of the state the recorded call changed, as one of BUCKETS, or of WORDS."""
    if not explicit:
        return WORDS[call.before != call.after]
    changed = len(changes(call.before, call.after))
    return BUCKETS[changed] if changed < 3 else BUCKETS[3] if changed < 5 else BUCKETS[4]


def state_is_exact(call: Compared) -> bool:
    """The predicted state is the recorded one; JSON compared as JSON."""
    return call.predicted is not None and _canonical(call.predicted.next_state) == _canonical(call.after)


def field_score(call: Compared) -> float:
    """F1 over the changed fields with their new values: 1 where nothing should change and nothing did."""
    if call.predicted is None:
        return 0.0
    truth = changes(call.before, call.after)
    if parsed(call.predicted.next_state) is None and call.predicted.next_state != call.before:
        return 0.0  # words where there should be a state
    got = changes(call.before, call.predicted.next_state)
    total = len(truth) + len(got)
    return 2 * len(truth & got) / total if total else 1.0


def changes(before: str, after: str) -> frozenset[tuple[str, str | None]]:
    """(path, new value as JSON) of every single field that came or changed, (path, None) of one that went."""
    ours, theirs = _fields(before), _fields(after)
    set_ = {(path, value) for path, value in theirs.items() if ours.get(path) != value}
    return frozenset(set_ | {(path, None) for path in ours.keys() - theirs.keys()})


def _fields(state: str) -> dict[str, str]:
    world: JsonObject = parsed(state) or {}
    return {path: _as_json(value) for path, value in fields(world)}


def _as_json(value: JsonValue) -> str:
    return json.dumps(value, sort_keys=True)


def _canonical(state: str) -> str:
    world = parsed(state)
    return state if world is None else _as_json(world)


def _state_match(calls: Sequence[Compared], *, explicit: bool) -> StateMatch:
    return StateMatch(
        exact=share(calls, state_is_exact),
        fields=clustered([field_score(call) for call in calls], [call.trajectory for call in calls])
        if explicit
        else None,
    )


def _is_repeated(call: Compared) -> bool:
    return call.predicted is not None and call.predicted.provenance.exact


def _detection(calls: Iterable[Compared], holds: Callable[[StepResult], bool]) -> Detection:
    return detected([(holds(call.recorded), call.got is not None and holds(call.got)) for call in calls])


def detected(pairs: Sequence[tuple[bool, bool]]) -> Detection:
    """Precision and recall, from what was so and what was said to be so."""
    hits = sum(true and said for true, said in pairs)
    return Detection(
        precision=wilson(hits, sum(said for _, said in pairs)), recall=wilson(hits, sum(true for true, _ in pairs))
    )


def _refusals(calls: Sequence[Compared]) -> Refusals:
    refused = [call for call in calls if call.recorded.is_error]
    accepted = [call for call in calls if not call.recorded.is_error]
    return Refusals(
        refused=share(refused, lambda call: call.errors_agree),
        same_words=share(refused, lambda call: call.exact),
        played_along=share(refused, lambda call: call.got is not None and not call.got.is_error),
        too_strict=share(accepted, lambda call: call.got is not None and call.got.is_error),
    )


def _names(calls: Iterable[Compared]) -> list[str]:
    return sorted({call.action.name for call in calls})


def _tool(calls: Sequence[Compared]) -> ToolSteps:
    return ToolSteps(
        steps=len(calls),
        state=share(calls, state_is_exact),
        observation=share(calls, lambda call: call.exact),
        similarity=clustered([call.similarity for call in calls], [call.trajectory for call in calls]),
        errors=share(calls, lambda call: call.errors_agree),
    )
