"""What a tool does is learned from its recordings and done again in other states, and never guessed."""

import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue
from queries import query
from stalls import SCHEMA, SPEC, call, play, recordings, start

from dreamgym.dream.model import Part, Query
from dreamgym.dream.nearest import NearestModel
from dreamgym.dream.synthesized import learned_answer
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import PredictionError
from dreamgym.state import Collection, StateSchema, apply, as_text, changed_fields, parsed
from dreamgym.synthesis.changes import Recorded
from dreamgym.synthesis.proposing import LearnedTool, propose
from dreamgym.types import JsonObject, Provenance, StepResult, Tier, ToolCall, Transition

READS_AND_WRITES = ("get_stall", "list_lots", "rename", "reserve", "buy", "cancel", "close_stall")


def asked(step: Transition, *shown: Transition) -> Query:
    return query(SPEC, step.state, step.action, *shown)


def state_of(text: str) -> JsonObject:
    state = parsed(text)
    assert state is not None
    return state


@pytest.mark.parametrize(
    ("tool", "changed"),
    [("get_stall", 0), ("list_lots", 0), ("rename", 1), ("close_stall", 2), ("cancel", 5), ("buy", 9)],
)
def test_unseen_calls_have_the_state_and_the_answer_of_the_real_system(tool: str, changed: int) -> None:
    shown = tuple(recordings(tool, 20, seed=1))
    refused = {step.result.observation.split(" ")[0] for step in shown if step.result.is_error}
    known = [  # a refusal of a kind that was never recorded cannot be known
        step
        for step in recordings(tool, 40, seed=2)
        if not step.result.is_error or step.result.observation.split(" ")[0] in refused
    ]
    assert len(known) > 20
    most = 0
    for step in known:
        proposal = propose(asked(step, *shown))
        assert proposal is not None
        assert as_text(proposal.after) == step.next_state
        assert (proposal.observation, proposal.is_error) == (step.result.observation, step.result.is_error)
        most = max(most, len(changed_fields(state_of(step.state), state_of(step.next_state))))
    assert most >= changed


def test_eight_recordings_teach_a_tool_that_changes_one_field() -> None:
    shown = tuple(recordings("rename", 8, seed=5))
    assert any(step.result.is_error for step in shown)
    for step in recordings("rename", 30, seed=4):
        proposal = propose(asked(step, *shown))
        assert proposal is not None
        assert (as_text(proposal.after), proposal.observation) == (step.next_state, step.result.observation)


def test_a_refusal_for_too_little_stock_is_learned_with_its_numbers() -> None:
    shown = tuple(recordings("reserve", 20, seed=5))
    state = start(random.Random(99))
    entity = state_of(as_text(state))["lots"]
    assert isinstance(entity, dict)
    for left in range(1, 6):
        entity["L-3"]["left"] = left  # type: ignore[call-overload, index]
        for count in (left, left + 1):
            action = ToolCall(name="reserve", arguments={"lot": "L-3", "count": count})
            step = play({**state, "lots": entity}, action, random.Random(0))
            proposal = propose(asked(step, *shown))
            assert proposal is not None
            assert proposal.is_error == (count > left)
            assert proposal.observation == step.result.observation


def test_a_refusal_that_was_recorded_once_speaks_of_the_call_at_hand() -> None:
    shown = [step for step in recordings("reserve", 40, seed=5) if not step.result.is_error]
    refused = next(step for step in recordings("reserve", 40, seed=6) if "wanted" in step.result.observation)
    wanting = [step for step in recordings("reserve", 40, seed=7) if "wanted" in step.result.observation]
    assert len(wanting) > 3
    for step in wanting:
        proposal = propose(asked(step, *shown, refused))
        assert proposal is not None
        assert (proposal.observation, proposal.is_error) == (step.result.observation, True)


def test_what_depends_on_an_argument_that_may_be_left_out_is_told_apart() -> None:
    shown = tuple(recordings("buy", 20, seed=1))
    state = start(random.Random(3))
    people = state["people"]
    assert isinstance(people, dict)
    people["ann"]["purse"] = 500.0  # type: ignore[call-overload, index]
    beside: tuple[JsonObject, ...] = ({}, {"to": "Metz"})
    for to in beside:
        lines: list[JsonValue] = [{"lot": "L-1", "count": 1}]
        step = play(state, ToolCall(name="buy", arguments={"person": "ann", "lines": lines, **to}), random.Random(0))
        proposal = propose(asked(step, *shown))
        assert proposal is not None
        assert proposal.observation == step.result.observation


def _said(observation: str) -> object:
    return json.loads(observation) if observation.startswith("{") else observation


def _free_running(seed: int, shown: dict[str, tuple[Transition, ...]]) -> tuple[int, int]:
    """(answers of reads that agree with reality, reads) of a session of twenty calls that nothing corrects."""
    draw = random.Random(seed)
    real = dreamed = as_text(start(draw))
    right = reads = 0
    for _ in range(20):
        tool = draw.choice(["get_stall", "list_lots", "reserve", "buy", "cancel", "close_stall", "rename"])
        step = play(state_of(real), call(tool, draw, state_of(real)), draw)
        prediction = learned_answer(query(SPEC, dreamed, step.action, *shown[tool]))
        if prediction is None:
            reads += real == step.next_state
            continue
        real, dreamed = step.next_state, prediction.next_state
        if real == step.state:
            reads += 1
            right += _said(prediction.observation) == _said(step.result.observation)
    return right, reads


def test_reads_after_writes_agree_with_reality_over_sessions_of_twenty_calls() -> None:
    shown = {tool: tuple(recordings(tool, 40, seed=8)) for tool in READS_AND_WRITES}
    counts = [_free_running(seed, shown) for seed in range(4)]
    assert sum(reads for _, reads in counts) > 20
    assert sum(right for right, _ in counts) >= 0.95 * sum(reads for _, reads in counts)


def test_a_change_without_an_explanation_is_not_guessed() -> None:
    *shown, step = recordings("stamp", 12, seed=1)
    assert propose(asked(step, *shown)) is None


@pytest.mark.anyio
async def test_nearest_has_no_answer_to_a_call_whose_effect_nobody_can_tell() -> None:
    *shown, step = recordings("stamp", 12, seed=1)
    with pytest.raises(PredictionError, match="'stamp' do not show what this call does"):
        await NearestModel().predict(asked(step, *shown))


@pytest.mark.anyio
async def test_without_an_explicit_state_words_are_copied_as_ever() -> None:
    *shown, step = recordings("rename", 6, seed=1)
    asking = asked(step, *shown).model_copy(update={"without": frozenset({Part.STATE})})
    prediction = await NearestModel().predict(asking)
    assert json.loads(prediction.observation)["label"] == step.action.arguments["label"]
    assert prediction.next_state != step.next_state


def test_a_status_that_was_never_seen_to_change_is_not_said_to_change() -> None:
    shown = [step for step in recordings("cancel", 40, seed=1) if not step.result.is_error]
    calls = list(recordings("cancel", 40, seed=2))
    refused = [step for step in calls if "not open" in step.result.observation]
    assert refused
    assert all(propose(asked(step, *shown)) is None for step in refused)
    assert all(propose(asked(step, *shown)) is not None for step in calls if not step.result.is_error)


def test_recordings_that_contradict_each_other_teach_nothing() -> None:
    one = next(step for step in recordings("close_stall", 9, seed=1) if not step.result.is_error)
    state = state_of(one.state)
    other = one.model_copy(
        update={"result": one.result.model_copy(update={"observation": '{"closed": "S9", "time": 4}'})}
    )
    learned = LearnedTool([_recorded(one), _recorded(other)], SCHEMA)
    assert learned.propose(state, one.action.arguments) is None


def _recorded(step: Transition) -> Recorded:
    return Recorded(state_of(step.state), step.action.arguments, step.result, state_of(step.next_state))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(READS_AND_WRITES), st.integers(0, 10_000), st.integers(1, 10))
def test_proposals_apply_under_the_schema_and_are_the_same_every_time(tool: str, seed: int, count: int) -> None:
    *shown, step = recordings(tool, count + 1, seed)
    proposal = propose(asked(step, *shown))
    assert propose(asked(step, *shown)) == proposal
    if proposal is not None:
        assert apply(state_of(step.state), proposal.operations, SCHEMA) == proposal.after
        if proposal.is_error:
            assert proposal.operations == ()


DESK = EnvironmentSpec(
    name="desk",
    tools_list=({"tools": [{"name": "list_orders", "inputSchema": {"type": "object"}}]},),
    state=StateSchema(collections={"orders": Collection(key="order_id", fields={"status": "string"}, complete=False)}),
)


def _listed(customer: str, *ids: str) -> Transition:
    """A list that shows entities nobody knew of, with ids that follow no order."""
    orders: list[JsonObject] = [{"order_id": one, "status": "paid"} for one in ids]
    after = as_text({"orders": {str(one["order_id"]): one for one in orders}})
    return Transition(
        state=as_text({"orders": {}}),
        action=ToolCall(name="list_orders", arguments={"customer": customer, "orders": list(ids)}),
        result=StepResult(observation=json.dumps({"orders": orders}), info={"state": after}),
        next_state=after,
        provenance=Provenance(tier=Tier.REAL),
    )


def test_entities_whose_ids_follow_no_order_are_not_told_ahead() -> None:
    shown = [_listed("C-1", "x9k", "b2"), _listed("C-2", "q7", "zz1", "a"), _listed("C-3", "m4")]
    asking = query(DESK, as_text({"orders": {}}), ToolCall(name="list_orders", arguments={"customer": "C-4"}), *shown)
    assert propose(asking) is None
