"""Measures over single steps, on cases whose values are known."""

import json

import pytest
from cases import case, refusal, world
from desk import SPEC, DeskModel, recordings, unsure
from hypothesis import given
from hypothesis import strategies as st
from ledger import SPEC as COUNTER
from ledger import played

from dreamgym.dream.model import Part, Prediction, Query
from dreamgym.dream.nearest import NearestModel
from dreamgym.embedding import TrigramEncoder
from dreamgym.evaluation.predictions import predict, steps_of
from dreamgym.evaluation.rates import wilson
from dreamgym.evaluation.steps import bucket, changes, field_score, step_fidelity
from dreamgym.state import as_text, changed_fields, parsed
from dreamgym.types import StepResult, Tier, ToolCall

pytestmark = pytest.mark.anyio

START = world(a=1, b=2, c=3, d=4, e=5, f=6)


@pytest.mark.parametrize(
    ("after", "name"),
    [
        (START, "0"),
        (world(a=9, b=2, c=3, d=4, e=5, f=6), "1"),
        (world(a=9, b=9, c=3, d=4, e=5, f=6), "2"),
        (world(a=9, b=9, c=9, d=4, e=5, f=6), "3-4"),
        (world(a=9, b=9, c=9, d=9, e=5, f=6), "3-4"),
        (world(a=9, b=9, c=9, d=9, e=9, f=6), "5+"),
        (world(a=9, b=9, c=9, d=9, e=9), "5+"),
        (world(a=9, b=9, c=9, d=9), "5+"),
    ],
)
def test_a_step_is_filed_by_how_many_fields_reality_changed(after: str, name: str) -> None:
    assert bucket(case(START, after, START), explicit=True) == name


@pytest.mark.parametrize(
    ("after", "predicted", "score"),
    [
        (START, START, 1.0),  # nothing to change, and nothing changed
        (START, world(a=9, b=2, c=3, d=4, e=5, f=6), 0.0),
        (world(a=9, b=2, c=3, d=4, e=5, f=6), START, 0.0),
        (world(a=9, b=9, c=3, d=4, e=5, f=6), world(a=9, b=2, c=3, d=4, e=5, f=6), 2 / 3),
        (
            world(a=9, b=2, c=3, d=4, e=5, f=6),
            world(a=8, b=2, c=3, d=4, e=5, f=6),
            0.0,
        ),  # the right field, a wrong value
        (world(a=9, b=2, c=3, d=4, e=5, f=6), world(a=9, b=8, c=3, d=4, e=5, f=6), 2 / 3),
        (world(a=1, b=2, c=3, d=4, e=5), world(a=1, b=2, c=3, d=4, e=5), 1.0),  # a field is gone
        (world(a=9, b=2, c=3, d=4, e=5, f=6), "somebody moved it", 0.0),
        (world(a=9, b=2, c=3, d=4, e=5, f=6), None, 0.0),
    ],
)
def test_the_field_score_is_an_f1_over_changes_with_their_values(
    after: str, predicted: str | None, score: float
) -> None:
    assert field_score(case(START, after, predicted)) == pytest.approx(score)


values = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2))


@given(values, values, values)
def test_a_state_predicted_to_the_letter_scores_1_and_no_other_does(
    before: dict[str, int], after: dict[str, int], other: dict[str, int]
) -> None:
    right = case(world(**before), world(**after), world(**after))
    assert field_score(right) == 1.0
    wrong = case(world(**before), world(**after), world(**other))
    assert (field_score(wrong) == 1.0) == (after == other)
    assert 0.0 <= field_score(wrong) <= 1.0


@given(values, values)
def test_changes_are_about_the_changed_fields(before: dict[str, int], after: dict[str, int]) -> None:
    ours, theirs = world(**before), world(**after)
    expected = changed_fields(parsed(ours) or {}, parsed(theirs) or {})
    assert {path for path, _ in changes(ours, theirs)} == expected


def test_a_state_that_differs_only_in_formatting_is_exact() -> None:
    spaced = json.dumps(parsed(START), indent=1)
    assert step_fidelity([case(START, START, spaced)], explicit=True).state["all"].exact.mean == 1.0


def test_text_states_are_filed_as_changed_or_not_and_compared_to_the_letter() -> None:
    calls = [case("kitchen", "kitchen", "kitchen"), case("kitchen", "hall", "kitchen"), case("kitchen", "hall", "hall")]
    found = step_fidelity(calls, explicit=False).state
    assert {name: (match.exact.mean, match.exact.n, match.fields) for name, match in found.items()} == {
        "unchanged": (1.0, 1, None),
        "changed": (0.5, 2, None),
        "all": (pytest.approx(2 / 3), 3, None),
    }


def test_invalid_actions_are_refused_in_the_same_words_in_others_or_played_along_with() -> None:
    no = refusal("no such thing")
    calls = [
        case(START, START, START, recorded=no),
        case(START, START, START, recorded=no, got=refusal("who?")),
        case(START, START, START, recorded=no, got=StepResult(observation="done")),
        case(START, START, None, recorded=no),
        case(START, START, START, got=no),
        case(START, START, START),
    ]
    found = step_fidelity(calls, explicit=True).refusals
    assert (found.refused.mean, found.same_words.mean, found.played_along.mean) == (0.5, 0.25, 0.25)
    assert (found.too_strict.mean, found.too_strict.n) == (0.5, 2)


def test_rewards_and_ends_have_precision_and_recall_and_a_missing_answer_predicts_neither() -> None:
    won, going = StepResult(observation="won", reward=1.0, terminated=True), StepResult(observation="on")
    calls = [
        case("a", "b", "b", recorded=won),
        case("a", "b", "b", recorded=won, got=going),
        case("a", "b", None, recorded=won),
        case("a", "b", "b", recorded=going, got=StepResult(observation="end", terminated=True)),
        case("a", "b", "b", recorded=going),
    ]
    found = step_fidelity(calls, explicit=False)
    assert (found.reward.precision.mean, found.reward.precision.n) == (1.0, 1)
    assert found.reward.recall.mean == pytest.approx(1 / 3)
    assert found.reward.recall.n == 3
    assert found.termination.precision.mean == 0.5
    assert found.termination.recall.mean == pytest.approx(1 / 3)


def test_false_rewards_are_counted_over_steps_without_reward_and_a_missing_answer_is_not_one() -> None:
    won, going = StepResult(observation="won", reward=1.0, terminated=True), StepResult(observation="on")
    calls = [
        case("a", "b", "b", recorded=going, got=won),
        case("a", "b", "b", recorded=going),
        case("a", "b", "b", recorded=refusal("no"), got=going),
        case("a", "b", None, recorded=going),
        case("a", "b", "b", recorded=won),
        case("a", "b", "b", recorded=going, got=won, fulfilled=True),
    ]
    found = step_fidelity(calls, explicit=False).false_rewards
    assert (found.mean, found.n) == (0.25, 4), "the task of the last step is accomplished, as its check says"


def test_steps_that_accomplish_their_task_have_precision_and_recall() -> None:
    calls = [
        case("a", "b", "b", accomplished=True, claimed=True),
        case("a", "b", "b", accomplished=False, claimed=True),
        case("a", "b", "b", accomplished=True, claimed=False),
        case("a", "b", "b"),
    ]
    found = step_fidelity(calls, explicit=False).accomplished
    assert (found.precision.mean, found.precision.n, found.recall.mean, found.recall.n) == (0.5, 2, 0.5, 2)


def test_shares_of_tiers_are_over_all_steps_and_disagreements_over_steps_with_judge_and_check() -> None:
    calls = [
        case("a", "b", "b", tier=Tier.RECORDED, exact=True),
        case("a", "b", "b", judged=True, checked=False),
        case("a", "b", "b", judged=True, checked=True),
        case("a", "b", "c", judged=True),
        case("a", "b", None),
    ]
    found = step_fidelity(calls, explicit=False)
    assert {tier: share.mean for tier, share in found.tiers.items()} == {"model": 0.6, "recorded": 0.2}
    assert (found.disagreed.n, found.disagreed.mean) == (2, 0.5)
    assert (found.unseen.exact.n, found.unseen.exact.mean) == (4, 0.5)
    assert found.answered.mean == 0.8


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_refused_call_counts_as_not_recorded_only_if_no_known_recording_has_it(is_known: bool) -> None:
    wrong, words = ToolCall(name="add", arguments={"n": "two"}), StepResult(observation="Which n?", is_error=True)
    mirror = COUNTER.mirror.model_copy(update={"refusals": {wrong.canonical(): words.observation}})
    spec = COUNTER.model_copy(update={"mirror": mirror})
    known, held_out = [played("known", (wrong, words))] if is_known else [], played("held out", (wrong, words))
    calls = await predict(spec, NearestModel(), known, steps_of([held_out]), TrigramEncoder())
    found = step_fidelity(calls, explicit=False)
    assert (found.unseen.exact.n, found.tiers["check"].mean) == (not is_known, 1)


def test_tools_and_costs_are_summed_up() -> None:
    other = ToolCall(name="look")
    calls = [
        case("a", "b", "b", prompt_tokens=7, completion_tokens=2, seconds=0.5),
        case("a", "b", "c", action=other, prompt_tokens=3, seconds=1.0),
    ]
    found = step_fidelity(calls, explicit=False)
    assert {name: (one.calls, one.state and one.state.mean) for name, one in found.tools.items()} == {
        "look": (1, 0.0),
        "move": (1, 1.0),
    }
    assert (found.prompt_tokens, found.completion_tokens, found.seconds) == (10, 2, 1.5)


async def test_a_perfect_model_is_right_everywhere() -> None:
    calls = await predict(SPEC, DeskModel(), [], steps_of(await recordings()), TrigramEncoder())
    found = step_fidelity(calls, explicit=True)
    rates = [found.answered, found.observation, found.similarity, found.errors, found.state["all"].exact]
    assert [rate.mean for rate in rates] == [1.0] * 5
    assert found.state["all"].fields is not None
    assert found.state["all"].fields.mean == 1.0
    assert (found.state["0"].exact.n, found.state["1"].exact.n, found.steps) == (16, 8, 24)
    assert (found.accomplished.precision.mean, found.accomplished.recall.mean) == (1.0, 1.0)
    assert all(rate.low == wilson(8, 8).low for rate in rates), "eight trajectories"


async def test_a_model_that_always_says_the_same_is_caught() -> None:
    def constant(query: Query, right: Prediction) -> Prediction:
        order = {"order_id": "O-1", "status": "paid"}
        return right.model_copy(
            update={"observation": json.dumps(order), "structured": order, "next_state": query.state.text}
        )

    calls = await predict(
        SPEC, DeskModel(constant), [], steps_of(await recordings()), TrigramEncoder(), without=[Part.CHECKS]
    )
    found = step_fidelity(calls, explicit=True)
    assert found.state["1"].exact.mean == 0.0
    assert found.state["0"].exact.mean == 1.0
    assert found.observation.mean == pytest.approx(2 / 24)
    assert (found.accomplished.recall.mean, found.accomplished.recall.n) == (0.0, 8)


async def test_a_step_without_an_answer_counts_as_wrong() -> None:
    calls = await predict(SPEC, DeskModel(unsure), [], steps_of(await recordings()), TrigramEncoder())
    found = step_fidelity(calls, explicit=True)
    assert found.answered.mean == found.state["all"].exact.mean == found.observation.mean == 18 / 24
    assert found.refusals.played_along.n == 0


async def test_a_state_in_the_wrong_form_is_not_exact() -> None:
    def as_words(query: Query, right: Prediction) -> Prediction:
        return right.model_copy(update={"next_state": f"now {right.observation}"})

    calls = await predict(
        SPEC, DeskModel(as_words), [], steps_of(await recordings()), TrigramEncoder(), without=[Part.STATE, Part.CHECKS]
    )
    found = step_fidelity(calls, explicit=True)
    assert found.state["all"].exact.mean == 0.0
    assert found.observation.mean == 1.0


def test_each_state_has_one_text_as_the_other_tests_assume() -> None:
    assert as_text(parsed(START) or {}) == START
