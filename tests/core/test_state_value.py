"""A state is an immutable value: parsed once, compared by its content, and changed into another state.

An answer shows one JSON value.
"""

from __future__ import annotations

import pytest
from pydantic import JsonValue

from dreamgym.state import (
    Collection,
    ImpossibleChange,
    Operation,
    State,
    StateSchema,
    equal,
    leaves,
    natural,
    pointer,
    same,
    shown_in,
    unescaped,
)
from dreamgym.state.json_values import value_at
from dreamgym.types import JsonObject, StepResult

SCHEMA = StateSchema(
    collections={"orders": Collection(key="id", fields={"paid": "boolean"})}, values={"clock": "number"}
)
SHOP = State.of({"orders": {"O-1": {"id": "O-1", "paid": False}, "O-2": {"id": "O-2"}}, "clock": 3}, SCHEMA)
PAY = Operation(op="set", path="/orders/O-1/paid", value=True)


@pytest.mark.parametrize(
    ("text", "schema", "is_explicit"),
    [
        ('{"clock":3}', SCHEMA, True),
        ('{"clock":3}', None, False),
        ("the clock shows 3", SCHEMA, False),
        ("[3]", SCHEMA, False),
        ('{"clock":', SCHEMA, False),
        ('{"a":' * 100_000, SCHEMA, False),
        ("", SCHEMA, False),
    ],
)
def test_a_state_is_explicit_if_it_is_an_object_and_there_is_a_schema(
    text: str, schema: StateSchema | None, is_explicit: bool
) -> None:
    assert State.of(text, schema).is_explicit is is_explicit


def test_a_state_is_parsed_once() -> None:
    assert SHOP.content is SHOP.content


def test_equal_states_are_equal_whatever_the_order_of_their_keys() -> None:
    one, other = State.of('{"clock":3,"orders":{}}', SCHEMA), State.of('{"orders": {}, "clock": 3}', SCHEMA)
    assert one == other
    assert hash(one) == hash(other)
    assert one != State.of('{"clock":3.0,"orders":{}}', SCHEMA), "it is another text"
    assert State.of("a lamp") == State.of("a lamp")
    assert State.of("a lamp") != State.of("no lamp")


def test_an_entity_or_collection_that_a_state_lacks_is_none_or_empty() -> None:
    assert SHOP.entity("orders", "O-1") == {"id": "O-1", "paid": False}
    assert SHOP.entity("orders", "O-9") is SHOP.entity("people", "O-1") is None
    assert dict(SHOP.collection("people")) == dict(State.of("words").collection("orders")) == {}


def test_a_change_leads_to_another_state_and_leaves_this_one() -> None:
    after = SHOP.after([PAY])
    assert SHOP.entity("orders", "O-1") == {"id": "O-1", "paid": False}
    assert after.entity("orders", "O-1") == {"id": "O-1", "paid": True}
    assert SHOP.changed_fields(after) == {"/orders/O-1/paid"}
    assert SHOP.after(()) == SHOP
    with pytest.raises(ImpossibleChange, match="O-7"):
        SHOP.after([PAY.model_copy(update={"path": "/orders/O-7/paid"})])


def test_a_call_is_about_the_entities_that_it_names() -> None:
    assert SHOP.relevant({"order": "O-2"}) == {"orders": {"O-2": {"id": "O-2"}}, "clock": 3}


@pytest.mark.parametrize(
    ("one", "other", "is_same", "is_equal"),
    [
        (1, 1.0, False, True),
        ([1], [1.0], False, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True, True),
        (True, 1, False, False),
        ([True], [1], False, False),
        (False, 0.0, False, False),
        (0.0, -0.0, False, True),
        (None, "", False, False),
        ([], {}, False, False),
        ([1, 2], [2, 1], False, False),
        ({"a": None}, {}, False, False),
        ("1", 1, False, False),
    ],
)
def test_same_values_are_written_alike_and_equal_values_may_write_numbers_differently(
    one: JsonValue, other: JsonValue, is_same: bool, is_equal: bool
) -> None:
    assert (same(one, other), same(other, one)) == (is_same, is_same)
    assert (equal(one, other), equal(other, one)) == (is_equal, is_equal)


@pytest.mark.parametrize(
    ("observation", "structured", "shown"),
    [
        ('{"id": 1}', None, {"id": 1}),
        (" \n[1, 2]\n", None, [1, 2]),
        ('{"id": 1}', {"id": 2}, {"id": 2}),
        ("words", {"id": 2}, {"id": 2}),
        ("words", None, None),
        ("5", None, None),
        ("true", None, None),
        ("{a lamp}", None, None),
        ("[" * 100_000, None, None),
        ("", None, None),
    ],
)
@pytest.mark.parametrize("is_error", [False, True])
def test_an_answer_shows_its_structured_content_or_the_object_or_list_in_its_text(
    observation: str, structured: JsonObject | None, shown: JsonValue, is_error: bool
) -> None:
    info: JsonObject = {} if structured is None else {"structured": structured}
    assert shown_in(StepResult(observation=observation, info=info, is_error=is_error)) == shown


def test_ids_are_sorted_by_the_numbers_in_them_however_long_they_are() -> None:
    ids = ["O-10", "O-9", "O-1", "O-01", "O", "P-1", f"O-{'9' * 5_000}", "O-10-2", "O-10-10"]
    assert sorted(ids, key=natural) == ["O", "O-01", "O-1", "O-9", "O-10", "O-10-2", "O-10-10", ids[6], "P-1"]


def test_leaves_are_the_values_that_hold_no_others() -> None:
    value: JsonValue = {"a": [1, {"b": None}], "c": {}, "d": [], "0": "x"}
    assert list(leaves(value)) == [(("a", 0), 1), (("a", 1, "b"), None), (("0",), "x")]
    assert list(leaves(5)) == [((), 5)]


def test_a_pointer_leads_to_a_value_or_to_nothing() -> None:
    value: JsonValue = {"a/b": {"~": [1]}, "": 0}
    assert value_at(value, "/a~1b/~0") == [1]
    assert value_at(value, "/") == 0
    assert value_at(value, "/a~1b/~0/0") is value_at(value, "/x/y") is None


def test_a_pointer_leads_through_any_names() -> None:
    names = ["a/b", "~", "~1", "", "c"]
    assert pointer(*names) == "/a~1b/~0/~01//c"
    assert unescaped(pointer(*names)) == names
