"""Measures single steps: predictions of recorded calls that the model does not know, compared one by one.

Everything here is computed from `Compared` (dreamgym.evaluation.calls): the recorded and the predicted answer of one
call, given the recorded history. A call without an answer counts as wrong in every comparison. Shares and means have
intervals for other trajectories; precision and recall of rare events, and shares of judged steps, Wilson's over steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from dreamgym.evaluation.calls import Agreement, Compared, agreement, by_tool, share
from dreamgym.evaluation.rates import Rate, wilson
from dreamgym.state import fields, parsed
from dreamgym.types import Frozen, StepResult

BUCKETS = ("0", "1", "2", "3-4", "5+")
"""Groups of calls by how many fields of an explicit state the recorded call changed."""
WORDS = ("unchanged", "changed")
"""Groups of calls by whether the recorded call changed a text state."""


class StateMatch(Frozen):
    """How well the state after a call is predicted."""

    exact: Rate
    """The whole state is the recorded one."""
    fields: Rate | None = None
    """F1 over the changed fields with their new values; None if states are texts."""


class Detection(Frozen):
    """How well a rare event (a reward, an end) is predicted."""

    precision: Rate
    """Share of the steps with a predicted event that had it."""
    recall: Rate
    """Share of the steps with the event for which it was predicted."""


class Refusals(Frozen):
    """How well refusals by the real environment are predicted."""

    refused: Rate
    """Share of the recorded refusals that are refused."""
    same_words: Rate
    """Share of the recorded refusals that are refused with the recorded answer."""
    played_along: Rate
    """Share of the recorded refusals that are accepted as if nothing were wrong."""
    too_strict: Rate
    """Share of the recorded acceptances that are refused."""


class StepFidelity(Frozen):
    """How well single steps are predicted."""

    steps: int
    trajectories: int
    answered: Rate
    state: dict[str, StateMatch]
    """State match by the number of changed fields; `all` is all calls together."""
    unseen: StateMatch
    """State match of the calls that are not recorded word for word in this state, so that repetition cannot answer."""
    observation: Rate
    """Share of the answers that are the recorded one; JSON is compared as JSON."""
    similarity: Rate
    """Mean F1 over the words of the answer."""
    errors: Rate
    """Share of the calls that are refused as recorded, or accepted as recorded."""
    reward: Detection
    """Without the steps whose task only its own check calls accomplished; `accomplished` measures these."""
    false_rewards: Rate
    """Share of the steps without a reward that are rewarded, without the same steps: what a policy would exploit."""
    termination: Detection
    open_ends: Rate
    """Share of the answers for which it was not known whether the step ended its task; the episode then went on."""
    refusals: Refusals
    tiers: dict[str, Rate]
    """Share of the steps that each tier answered."""
    accomplished: Detection
    """Detection of the step that accomplishes its task, by the task's own check of the state, if it has one."""
    disagreed: Rate
    """Share of the predicted successes on which judge and check disagree, of those that both decided."""
    tools: dict[str, Agreement]
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    """Time that all steps took together."""


def step_fidelity(calls: Sequence[Compared], *, explicit: bool) -> StepFidelity:
    """The measures over some compared calls.

    Args:
        calls: in any order.
        explicit: the environment has an explicit state (`spec.state`); else states are texts.
    """
    provenances = [call.predicted.provenance for call in calls if call.predicted is not None]
    paid = [call for call in calls if not call.told_by_check]
    claimed = [one for one in provenances if one.judged is not None and one.checked is not None]
    tiers = sorted({one.tier.value for one in provenances})
    return StepFidelity(
        steps=len(calls),
        trajectories=len({call.trajectory for call in calls}),
        answered=share(calls, lambda call: call.got is not None),
        state=state_matches(calls, explicit=explicit),
        unseen=_state_match(
            [call for call in calls if call.predicted is None or not call.predicted.provenance.exact], explicit=explicit
        ),
        observation=share(calls, lambda call: call.exact),
        similarity=share(calls, lambda call: call.similarity),
        errors=share(calls, lambda call: call.errors_agree),
        reward=_detection(paid, lambda result: result.reward > 0),
        false_rewards=share(
            [call for call in paid if call.recorded.reward <= 0],
            lambda call: call.got is not None and call.got.reward > 0,
        ),
        termination=_detection(calls, lambda result: result.terminated),
        open_ends=share(
            [call for call in calls if call.predicted is not None],
            lambda call: call.predicted is not None and call.predicted.provenance.open_end,
        ),
        refusals=_refusals(calls),
        tiers={tier: share(calls, partial(_is_of, tier)) for tier in tiers},
        accomplished=detected([(call.accomplished is True, call.claimed is True) for call in calls]),
        disagreed=wilson(sum(one.judged != one.checked for one in claimed), len(claimed)),
        tools=by_tool(calls, _agreement),
        prompt_tokens=sum(one.prompt_tokens for one in provenances),
        completion_tokens=sum(one.completion_tokens for one in provenances),
        seconds=sum(call.seconds for call in calls),
    )


def state_matches(calls: Sequence[Compared], *, explicit: bool) -> dict[str, StateMatch]:
    """State match by how much the recorded call changed; every bucket is included, also an empty one."""
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


def field_score(call: Compared) -> float:
    """F1 over the changed fields with their new values: 1 if nothing should change and nothing did."""
    if call.predicted is None:
        return 0.0
    truth = changes(call.before, call.after)
    if parsed(call.predicted.next_state) is None and call.predicted.next_state != call.before:
        return 0.0  # a text instead of an explicit state
    got = changes(call.before, call.predicted.next_state)
    total = len(truth) + len(got)
    return 2 * len(truth & got) / total if total else 1.0


def changes(before: str, after: str) -> frozenset[tuple[str, str | None]]:
    """(path, new value as JSON) for every single field that came or changed, (path, None) for one that went."""
    ours, theirs = _fields(before), _fields(after)
    set_ = {(path, value) for path, value in theirs.items() if ours.get(path) != value}
    return frozenset(set_ | {(path, None) for path in ours.keys() - theirs.keys()})


def _is_of(tier: str, call: Compared) -> bool:
    return call.predicted is not None and call.predicted.provenance.tier.value == tier


def _fields(state: str) -> dict[str, str]:
    return {path: json.dumps(value, sort_keys=True) for path, value in fields(parsed(state) or {})}


def _state_match(calls: Sequence[Compared], *, explicit: bool) -> StateMatch:
    return StateMatch(
        exact=share(calls, lambda call: call.state_is_exact),
        fields=share(calls, field_score) if explicit else None,
    )


def _detection(calls: Iterable[Compared], holds: Callable[[StepResult], bool]) -> Detection:
    return detected([(holds(call.recorded), call.got is not None and holds(call.got)) for call in calls])


def detected(pairs: Sequence[tuple[bool, bool]]) -> Detection:
    """Precision and recall, from pairs of (recorded, predicted)."""
    hits = sum(recorded and predicted for recorded, predicted in pairs)
    return Detection(
        precision=wilson(hits, sum(predicted for _, predicted in pairs)),
        recall=wilson(hits, sum(recorded for recorded, _ in pairs)),
    )


def _agreement(calls: Sequence[Compared]) -> Agreement:
    """`agreement` with the states."""
    return agreement(calls).model_copy(update={"state": share(calls, lambda call: call.state_is_exact)})


def _refusals(calls: Sequence[Compared]) -> Refusals:
    refused = [call for call in calls if call.recorded.is_error]
    accepted = [call for call in calls if not call.recorded.is_error]
    return Refusals(
        refused=share(refused, lambda call: call.errors_agree),
        same_words=share(refused, lambda call: call.exact),
        played_along=share(refused, lambda call: call.got is not None and not call.got.is_error),
        too_strict=share(accepted, lambda call: call.got is not None and call.got.is_error),
    )
