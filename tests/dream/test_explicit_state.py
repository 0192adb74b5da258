"""A model answers with the changes of an explicit state: its prompt, the valid answers, and the predictions."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from counters import REFUND, SHOP, asked, call, step, world
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from dreamgym.dream.answer_form import AnswerForm, StepAnswer, answer_text, changes_of
from dreamgym.dream.language_model import LanguageModel
from dreamgym.dream.model import Part, Prediction, Query
from dreamgym.dream.prompt import PromptForm, judge_messages, step_messages
from dreamgym.errors import PredictionError
from dreamgym.llm import ScriptedLLM
from dreamgym.state import State, StateSchema, apply, as_text
from dreamgym.types import JsonObject, Transition

pytestmark = pytest.mark.anyio

SNAPSHOTS = Path(__file__).parent / "snapshots"
FORMS: tuple[PromptForm, ...] = ("data", "turns", "fitted")
LOOK = step(
    call("get_order", "O-2"),
    world(),
    world(),
    '{"order_id": "O-2", "status": "sent", "total": 7}',
    structured={"order_id": "O-2", "status": "sent", "total": 7},
)
REFUSED = step(call("refund", "O-9"), world(), world(), "There is no order O-9.", is_error=True)
PAID = {"op": "set", "path": "/orders/O-1/status", "value": "refunded"}


def said(*changes: Mapping[str, object], **changed: object) -> str:
    plain = {"reasoning": "r", "error": False, "changes": changes, "observation": "Refunded O-1."}
    return json.dumps({**plain, "terminated": False, "success": False, **changed})


def shown(query: Query, form: PromptForm = "data") -> str:
    messages = step_messages(query, form)
    return "\n".join(f"=== {message.role}\n{message.content}" for message in messages) + "\n"


async def predicted(*script: str, query: Query | None = None) -> tuple[Prediction, ScriptedLLM]:
    llm = ScriptedLLM(script)
    return await LanguageModel(llm).predict(asked(call("refund"), REFUND) if query is None else query), llm


@pytest.mark.parametrize("form", FORMS)
def test_the_prompt_of_a_step_with_an_explicit_state_matches_its_snapshot(form: PromptForm) -> None:
    text = shown(asked(call("refund", "O-2"), REFUND, REFUSED, history=(LOOK,)), form)
    assert text == (SNAPSHOTS / f"explicit_{form}.txt").read_text(encoding="utf-8")


def test_the_prompt_of_the_judge_of_an_explicit_state_matches_its_snapshot() -> None:
    query = asked(call("refund"))
    messages = judge_messages(
        SHOP, query.task, [(REFUND.action, REFUND.result)], final_answer="Done.", state=REFUND.next_state
    )
    text = "\n".join(f"=== {message.role}\n{message.content}" for message in messages) + "\n"
    assert text == (SNAPSHOTS / "explicit_judge.txt").read_text(encoding="utf-8")


async def test_changes_are_applied_by_code_and_the_rest_stays() -> None:
    more = [
        {"op": "increase", "path": "/buyers/B-1/balance", "value": 30},
        {"op": "increase", "path": "/sold", "value": -1},
    ]
    prediction, _ = await predicted(said(PAID, *more))
    assert prediction.next_state == as_text(world("refunded", 40, 1)) == REFUND.next_state
    assert prediction.observation == "Refunded O-1."


async def test_without_changes_the_state_stays_exactly_the_same() -> None:
    prediction, _ = await predicted(said())
    assert prediction.next_state == as_text(world())


IMPOSSIBLE = {
    "a path that does not exist": (
        {"op": "delete", "path": "/orders/O-7", "value": None},
        "delete /orders/O-7: there is nothing at this path",
    ),
    "a field off the schema": (
        {"op": "set", "path": "/orders/O-1/colour", "value": "red"},
        "/orders/O-1/colour: unknown field",
    ),
    "a value of another type": (
        {"op": "set", "path": "/orders/O-1/total", "value": "thirty"},
        "/orders/O-1/total: expected integer",
    ),
    "a text increased": (
        {"op": "increase", "path": "/orders/O-1/status", "value": 1},
        "increase /orders/O-1/status: expected numbers",
    ),
    "an operation that nobody knows": (
        {"op": "move", "path": "/orders/O-1", "value": "/orders/O-3"},
        "changes.0.op: Input should be",
    ),
    "a path that is none": (
        {"op": "set", "path": "orders.O-1.status", "value": "refunded"},
        "changes.0.path: String should match pattern",
    ),
}


@pytest.mark.parametrize(("change", "fault"), IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
async def test_an_impossible_change_is_asked_for_again_with_its_fault_and_then_an_error(
    change: JsonObject, fault: str
) -> None:
    prediction, llm = await predicted(said(change), said(PAID))
    assert prediction.next_state == as_text(world("refunded"))
    assert f"no valid answer: {fault}" in llm.asked[1][-1].content
    with pytest.raises(PredictionError, match="not even when asked again"):
        await predicted(said(change), said(change))


MALFORMED = {
    "changes of a refused action": said(PAID, error=True),
    "a state beside the changes": said(PAID, state="paid"),
    "no changes at all": json.dumps({key: value for key, value in json.loads(said()).items() if key != "changes"}),
    "changes that are null": said(changes=None),
    "changes that are a text": said(changes="none"),
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED.keys())
async def test_an_answer_of_another_form_is_an_error(text: str) -> None:
    with pytest.raises(PredictionError, match="not even when asked again"):
        await predicted(text, text)


READ: dict[str, object] = {"structured": {"order_id": "O-1", "status": "lost", "total": 30}, "observation": None}


async def test_a_read_shows_the_state_even_if_the_model_copies_it_wrongly_unless_checks_are_left_out() -> None:
    query = asked(call("get_order"), LOOK)
    prediction, llm = await predicted(said(**READ), query=query)
    assert prediction.structured == {"order_id": "O-1", "status": "paid", "total": 30}
    assert json.loads(prediction.observation) == prediction.structured
    assert len(llm.asked) == 1
    unchecked = query.model_copy(update={"without": frozenset({Part.CHECKS})})
    believed, _ = await predicted(said(**READ), query=unchecked)
    assert believed.structured == READ["structured"]


async def test_a_read_of_a_missing_entity_is_asked_for_again_and_then_an_error() -> None:
    query = asked(call("get_order", "O-8"), LOOK)
    other = {**READ, "structured": {"order_id": "O-8", "status": "paid", "total": 1}}
    with pytest.raises(PredictionError, match="which the state does not have"):
        await predicted(said(**other), said(**other), query=query)


SHOWN = '{"order_id": "O-1", "status": "refunded", "total": 30}'


async def test_a_write_that_shows_a_change_it_did_not_make_is_asked_for_again() -> None:
    query = asked(call("refund"), step(call("refund"), world(), world("refunded"), SHOWN))
    prediction, llm = await predicted(said(observation=SHOWN), said(PAID, observation=SHOWN), query=query)
    assert prediction.next_state == as_text(world("refunded"))
    assert "'refunded'" in llm.asked[1][-1].content or '"refunded"' in llm.asked[1][-1].content


async def test_a_write_shows_its_changes_as_code_calculates_them() -> None:
    query = asked(call("refund"), step(call("refund"), world(), world("refunded"), SHOWN))
    less = {"op": "increase", "path": "/orders/O-1/total", "value": -7}
    prediction, llm = await predicted(said(PAID, less, observation=SHOWN.replace("30", "24")), query=query)
    assert prediction.observation == SHOWN.replace("30", "23")
    assert len(llm.asked) == 1


async def test_a_write_shows_its_changes_as_code_calculates_them_whatever_the_id_is() -> None:
    query = asked(call("refund"), step(call("refund"), world(), world("refunded"), SHOWN))
    state = State.of(query.state.text.replace("O-1", "O/~1"), query.spec.state)
    query = query.model_copy(update={"state": state, "action": call("refund", "O/~1")})
    less = {"op": "increase", "path": "/orders/O~1~01/total", "value": -7}
    shown = SHOWN.replace("O-1", "O/~1").replace("refunded", "paid")
    prediction, llm = await predicted(said(less, observation=shown.replace("30", "24")), query=query)
    assert prediction.observation == shown.replace("30", "23")
    assert len(llm.asked) == 1


async def test_a_field_that_recordings_show_differently_from_the_state_stays_as_the_model_wrote_it() -> None:
    rounded = step(
        call("get_order", "O-2"), world(), world(), structured={"order_id": "O-2", "status": "sent", "total": 0}
    )
    answer = {**READ, "structured": {"order_id": "O-1", "status": "lost", "total": 20}, "observation": "x"}
    prediction, _ = await predicted(said(**answer), query=asked(call("get_order"), rounded))
    assert prediction.structured == {"order_id": "O-1", "status": "paid", "total": 20}


async def test_without_the_explicit_state_the_next_state_is_written_whole() -> None:
    query = asked(call("refund"), REFUND, without=frozenset({Part.STATE}))
    whole = json.dumps(world("refunded"), indent=1)
    plain = {"reasoning": "r", "observation": "Refunded O-1.", "error": False, "terminated": False, "success": False}
    prediction, llm = await predicted(json.dumps({**plain, "state": whole}), query=query)
    assert prediction.next_state == as_text(world("refunded"))
    unsaid, _ = await predicted(json.dumps({**plain, "state": None}), query=query)
    assert unsaid.next_state == query.state.text
    text = "".join(message.content for message in llm.asked[0])
    assert '"changes"' not in text
    assert json.dumps(REFUND.next_state)[1:-1] in text


async def test_a_text_state_is_answered_in_words_even_if_there_is_a_schema() -> None:
    query = asked(call("refund"), state="two orders")
    plain = {"reasoning": "", "observation": "ok", "state": "no orders", "error": False}
    prediction, _ = await predicted(json.dumps({**plain, "terminated": False, "success": False}), query=query)
    assert prediction.next_state == "no orders"


LEFT_OUT = {
    Part.HISTORY: ["<history>", '"tool": "get_order"', '"tool":"get_order"'],
    Part.RETRIEVAL: ["<recorded>", "Refunded O-1."],
    Part.REASONING: ['"reasoning"', "It was paid.", "Think first"],
    Part.STATE: ['"changes"', '"increase"', "<schema>"],
}
SILENT = {("fitted", Part.REASONING)}
"""Forms whose prompt never contains the part: a fitted model is shown no reasoning in any case."""


@pytest.mark.parametrize("part", LEFT_OUT, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_a_part_that_is_left_out_is_nowhere_in_the_prompt(part: Part, form: PromptForm) -> None:
    query = asked(call("refund", "O-2"), REFUND, history=(LOOK,))
    text = shown(query.model_copy(update={"without": frozenset({part})}), form)
    if form == "fitted":  # the tags that it has learned stay, but are empty
        text = text.replace("<history>[]</history>", "").replace("<recorded>[]</recorded>", "")
    assert [words for words in LEFT_OUT[part] if words in text] == []
    assert (form, part) in SILENT or any(words in shown(query, form) for words in LEFT_OUT[part])


async def test_without_reasoning_the_answer_has_no_key_for_it() -> None:
    query = asked(call("refund"), REFUND, without=frozenset({Part.REASONING}))
    bare = json.dumps({key: value for key, value in json.loads(said(PAID)).items() if key != "reasoning"})
    prediction, _ = await predicted(bare, query=query)
    assert prediction.reasoning == ""
    assert "reasoning" not in json.dumps(AnswerForm(query).schema)
    with pytest.raises(PredictionError, match='"reasoning" is none of the keys'):
        await predicted(said(PAID), said(PAID), query=query)


@pytest.mark.parametrize("left_out", [frozenset(), *(frozenset({part}) for part in LEFT_OUT)], ids=str)
@pytest.mark.parametrize("recorded", [REFUND, LOOK, REFUSED], ids=["a write", "a read", "a refusal"])
async def test_the_target_of_fine_tuning_is_a_valid_answer_that_predicts_what_was_recorded(
    recorded: Transition, left_out: frozenset[Part]
) -> None:
    query = asked(recorded.action, REFUND, LOOK, state=recorded.state, without=left_out)
    text = answer_text(query, recorded)
    answer, form = StepAnswer.model_validate_json(text), AnswerForm(query)
    assert list(json.loads(text)) == list(form.keys)
    prediction = form.prediction(answer, "m")
    assert prediction.next_state == recorded.next_state
    assert prediction.observation == recorded.result.observation
    assert prediction.structured == recorded.result.structured
    assert prediction.reasoning == ("" if Part.REASONING in left_out else recorded.reasoning)


@pytest.mark.parametrize("form", FORMS)
def test_the_highest_ids_are_shown_since_new_ones_follow_from_them(form: PromptForm) -> None:
    state = world()
    orders = state["orders"]
    assert isinstance(orders, dict)
    for number in (9, 10):
        orders[f"O-{number}"] = {"order_id": f"O-{number}"}
    text = shown(asked(call("refund", "O-2"), REFUND, state=state), form).replace('": "', '":"')
    assert text.count('"orders":"O-10"') == text.count('"orders":"O-2"') == 1


def test_numbers_are_shown_as_increases_unless_the_call_names_the_new_one() -> None:
    before, after = world(balance=10), world(balance=40)
    (increased,) = changes_of(before, after, {"order_id": "O-1"})
    assert (increased.op, increased.value) == ("increase", 30)
    (named,) = changes_of(before, after, {"balance": 40})
    assert (named.op, named.value) == ("set", 40)
    (added,) = changes_of(before, after, {"balance": 40, "by": 30})
    assert (added.op, added.value) == ("increase", 30)


numbers = st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6).map(lambda value: round(value, 3))
leaves: st.SearchStrategy[JsonValue] = st.none() | st.booleans() | numbers | st.text(max_size=3)
objects: st.SearchStrategy[JsonObject] = st.recursive(
    st.dictionaries(st.sampled_from("abc"), leaves | st.lists(leaves, max_size=2), max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner | leaves, max_size=3),
    max_leaves=8,
)


@given(objects, objects, st.dictionaries(st.sampled_from("xy"), leaves))
def test_the_changes_that_a_model_should_write_lead_from_one_state_to_the_other(
    before: JsonObject, after: JsonObject, arguments: JsonObject
) -> None:
    anything = StateSchema(values=dict.fromkeys("abc", "any"))
    assert as_text(apply(before, changes_of(before, after, arguments), anything)) == as_text(after)
