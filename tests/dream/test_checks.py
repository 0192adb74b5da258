"""Calls about missing entities are refused in recorded words, and answers that contradict the state are found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue
from queries import HOUSE, act, query, transition
from shop_state import SCHEMA, SHOP, asked, call, order, predicted, state, step

from dreamgym.dream.checks import changeable, contradiction
from dreamgym.dream.model import Part, Query
from dreamgym.dream.refused import refusal
from dreamgym.state import Collection, StateSchema
from dreamgym.state.answers import with_facts
from dreamgym.types import JsonObject, Source, Tier, ToolCall, Transition

BEFORE = state(order(1), order(2))
GOT = step(BEFORE, call("get_order", 1), order(1))
MISSED = step(BEFORE, call("get_order", 9), "There is no order O-9.", refused=True)


def test_a_call_about_an_order_that_does_not_exist_is_refused_in_recorded_words() -> None:
    refused = refusal(asked(state(order(3)), call("get_order", 44), GOT, MISSED))
    assert refused is not None
    assert (refused.observation, refused.is_error) == ("There is no order O-44.", True)
    assert refused.next_state == state(order(3))
    assert (refused.provenance.tier, refused.provenance.retrieved) == (Tier.CHECK, ("d1",))


def test_the_refusal_of_a_blank_is_not_that_of_a_missing_order() -> None:
    blank = step(BEFORE, ToolCall(name="get_order", arguments={"id": " "}), "Give an id.", refused=True)
    assert refusal(asked(BEFORE, call("get_order", 44), GOT, blank)) is None


def test_a_call_about_an_existing_order_is_not_refused() -> None:
    assert refusal(asked(state(order(44)), call("get_order", 44), GOT, MISSED)) is None


@pytest.mark.parametrize(
    "recorded",
    [
        (GOT,),  # no recording shows how it is refused
        (MISSED,),  # no recording shows that the argument names an order
        (GOT, step(BEFORE, call("get_order", 2), "The shop is closed.", refused=True)),  # refused for another reason
        (GOT, MISSED, step(BEFORE, call("get_order", 7), order(7))),  # it answers about a missing order too
        (GOT, step(BEFORE, call("get_order", 9), "Noted.", state(order(1)), refused=True)),  # it changed the state
    ],
)
def test_a_call_is_not_refused_unless_the_recordings_show_such_a_refusal(recorded: tuple[Transition, ...]) -> None:
    assert refusal(asked(BEFORE, call("get_order", 44), *recorded)) is None


def test_another_tools_refusal_and_a_dreamed_one_teach_nothing() -> None:
    other = [one.model_copy(update={"action": call("cancel_order", 9)}) for one in (GOT, MISSED)]
    assert refusal(asked(BEFORE, call("get_order", 44), *other)) is None
    assert refusal(asked(BEFORE, call("get_order", 44), GOT, MISSED, source=Source.SYNTHETIC)) is None


@pytest.mark.parametrize("part", [Part.CHECKS, Part.STATE])
def test_a_check_that_is_left_out_refuses_and_finds_nothing(part: Part) -> None:
    without = frozenset({part})
    assert refusal(asked(BEFORE, call("get_order", 44), GOT, MISSED, without=without)) is None
    wrong = predicted(order(1, "lost"), BEFORE)
    assert contradiction(asked(BEFORE, call("get_order", 1)), wrong) is not None
    assert contradiction(asked(BEFORE, call("get_order", 1), without=without), wrong) is None


def test_an_incomplete_collection_neither_refuses_nor_contradicts() -> None:
    kinds = {"orders": SCHEMA.collections["orders"].model_copy(update={"complete": False})}
    spec = SHOP.model_copy(update={"state": StateSchema(collections=kinds)})
    assert refusal(asked(BEFORE, call("get_order", 44), GOT, MISSED, spec=spec)) is None
    assert contradiction(asked(BEFORE, call("get_order", 44), spec=spec), predicted(order(44), BEFORE)) is None


def test_ids_inside_of_lists_are_arguments_too() -> None:
    def several(*numbers: int) -> ToolCall:
        return ToolCall(name="get_order", arguments={"orders": [{"id": f"O-{n}"} for n in numbers]})

    recorded = (
        step(BEFORE, several(1, 2), [order(1), order(2)]),
        step(BEFORE, several(1, 9), "O-9 is unknown", refused=True),
    )
    for asked_for in ((1, 44), (44, 2), (2, 1, 44)):
        refused = refusal(asked(BEFORE, several(*asked_for), *recorded))
        assert refused is not None
        assert refused.observation == "O-44 is unknown"


def test_a_refusal_names_the_right_one_of_several_missing_entities() -> None:
    def merge(order_id: int | str, into: int | str, times: int = 1) -> ToolCall:
        return call("merge", order_id, into=f"O-{into}", times=times)

    done = step(BEFORE, merge(1, 2), "merged")
    both = step(BEFORE, merge(8, 9, 3), "no O-8, 3 times", refused=True)
    second = step(BEFORE, merge(1, 9), "cannot merge into O-9", refused=True)
    asked_both = refusal(asked(BEFORE, merge(44, 55, 7), done, second, both))
    assert asked_both is not None
    assert asked_both.observation == "no O-44, 7 times"
    assert refusal(asked(BEFORE, merge(1, 55), done, both)) is None, (
        "the recordings do not show which of the two was the reason"
    )
    only = refusal(asked(BEFORE, merge(2, 55), done, both, second))
    assert only is not None
    assert only.observation == "cannot merge into O-55"


def test_text_environments_have_neither_refusals_nor_contradictions() -> None:
    text = query(HOUSE, "kitchen", act("fly"), transition("kitchen", act("jump"), "what?", "kitchen", is_error=True))
    assert refusal(text) is None
    assert contradiction(text, predicted("anything", "anything")) is None


@pytest.mark.parametrize(
    ("shown", "after", "fault"),
    [
        (order(1), BEFORE, None),
        (order(1, total=10), BEFORE, None),
        ([order(1), {"page": {"rows": [order(2)]}}], BEFORE, None),
        ("Order O-1 is lost.", BEFORE, None),
        ({"order_id": "O-1", "colour": "red"}, BEFORE, None),
        (order(1, "lost"), BEFORE, "'status' of 'O-1' in 'orders' as \"lost\", the state after it as \"paid\""),
        ([order(2), order(1, "lost")], BEFORE, "'status' of 'O-1'"),
        (order(7), BEFORE, "'O-7' of 'orders', which the state does not have"),
        (order(1, "sent"), state(order(1, "sent"), order(2)), None),
        (order(1), state(order(1, "sent"), order(2)), "'status' of 'O-1'"),
        (order(1), state(order(2)), None),  # the removed order is shown as it was
        (order(1, "lost"), state(order(2)), "'status' of 'O-1'"),
        (order(1), "no state at all", None),
    ],
)
def test_an_answer_agrees_with_the_state_after_it(shown: object, after: str, fault: str | None) -> None:
    found = contradiction(asked(BEFORE, call("get_order", 1)), predicted(shown, after))
    assert found is None if fault is None else found is not None and fault in found


def test_structured_content_is_compared_before_text() -> None:
    answer = predicted("{}", BEFORE, structured=order(1, "lost"))
    assert "'status'" in str(contradiction(asked(BEFORE, call("get_order", 1)), answer))


def test_a_refusal_may_not_change_the_state_unless_recorded_refusals_of_the_tool_do() -> None:
    question = asked(BEFORE, call("cancel_order", 1), MISSED)
    assert contradiction(question, predicted("No.", BEFORE, refused=True)) is None
    found = contradiction(question, predicted("No.", state(order(1)), refused=True))
    assert found == (
        "the action is refused, and yet /orders/O-2/order_id, /orders/O-2/status, /orders/O-2/total changed"
    )
    counted = step(BEFORE, call("cancel_order", 1), "No.", state(order(1, "tried"), order(2)), refused=True)
    assert (
        contradiction(asked(BEFORE, call("cancel_order", 1), counted), predicted("No.", state(), refused=True)) is None
    )


def test_fields_in_which_a_tools_recordings_differ_from_the_state_are_not_compared_for_this_tool() -> None:
    gross = step(BEFORE, call("get_order", 1), order(1, total=11.9))
    gone = step(BEFORE, call("get_order", 5), order(5))
    for shown in (order(2, total=23.8), order(7)):
        assert contradiction(asked(BEFORE, call("get_order", 2)), predicted(shown, BEFORE)) is not None
        assert contradiction(asked(BEFORE, call("get_order", 2), gross, gone), predicted(shown, BEFORE)) is None
        assert contradiction(asked(BEFORE, call("cancel_order", 2), gross, gone), predicted(shown, BEFORE)) is not None
    assert contradiction(asked(BEFORE, call("get_order", 2), gross), predicted(order(2, "lost"), BEFORE)) is not None


STATUS = st.sampled_from(["paid", "sent", "lost"])


@given(have=st.dictionaries(st.integers(1, 5), STATUS), shown=st.dictionaries(st.integers(1, 5), STATUS))
def test_a_list_of_orders_is_right_if_and_only_if_each_is_in_the_state_as_shown(
    have: dict[int, str], shown: dict[int, str]
) -> None:
    after = state(*(order(n, status) for n, status in have.items()))
    answer = predicted([order(n, status) for n, status in shown.items()], after)
    found = contradiction(asked(after, call("get_order", "all")), answer)
    assert (found is None) == all(have.get(n) == status for n, status in shown.items())


def test_facts_are_kept_if_they_were_unknown_and_fit_the_schema() -> None:
    known = state(order(1), notes=[{"note_id": "N-1", "text": "old"}])
    notes: list[JsonObject] = [
        {"note_id": "N-1", "text": "new"},
        {"note_id": "N-2", "text": "more"},
        {"note_id": "N-3", "text": 3},
    ]
    shown: list[JsonValue] = [*notes, order(1, "lost"), order(8)]
    kept: list[JsonObject] = [{"note_id": "N-1", "text": "old"}, {"note_id": "N-2", "text": "more"}]
    assert with_facts(known, shown, SCHEMA) == state(order(1), notes=kept)
    assert with_facts("words", shown, SCHEMA) == "words"
    assert with_facts("{}", {"note_id": "N-2"}, StateSchema(collections={"notes": Collection(key="x")})) == "{}"


SHIPPED = [
    step(BEFORE, call("ship_order", n), order(n, "shipped"), state(order(n, "shipped"), order(n % 2 + 1)))
    for n in (1, 2, 1, 2, 1)
]


def bounded(*recorded: Transition) -> Query:
    asking = asked(BEFORE, call("ship_order", 2), *recorded)
    return asking.model_copy(update={"changeable": changeable(asking)})


def test_a_call_may_make_only_recorded_kinds_of_changes_and_no_farther_away_than_recorded() -> None:
    asking = bounded(*SHIPPED)
    assert contradiction(asking, predicted(order(2, "shipped"), state(order(1), order(2, "shipped")))) is None
    for beyond in (state(order(1)), state(order(1, "shipped"), order(2)), state(order(1), order(2), order(3))):
        fault = contradiction(asking, predicted({}, beyond))
        assert fault is not None
        assert "which no recorded call of 'ship_order' changed" in fault


def test_too_few_recorded_calls_do_not_limit_what_a_tool_may_change() -> None:
    assert bounded(*SHIPPED[:4]).changeable is None
    assert bounded(GOT, *SHIPPED[:1]).changeable is None
    assert bounded().changeable is None


def test_a_tool_with_a_read_only_hint_may_change_nothing() -> None:
    hinted = [{**tool, "annotations": {"readOnlyHint": True}} for tool in SHOP.tools]
    asking = asked(BEFORE, call("cancel_order", 2))
    reading = asking.model_copy(update={"spec": SHOP.model_copy(update={"tools_list": ({"tools": hinted},)})})
    assert changeable(reading) == {}
