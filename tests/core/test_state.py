"""An explicit state is changed only by operations that fit its schema."""

from __future__ import annotations

import copy
import json
import math
from decimal import Decimal
from typing import Any

import pytest
from growth import grows_linearly
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import JsonValue, ValidationError

from dreamgym.state import (
    Collection,
    ImpossibleChange,
    Operation,
    StateSchema,
    apply,
    as_text,
    changed_fields,
    difference,
    entities,
    fields,
    identity_of,
    mentioned,
    parsed,
    relevant,
)
from dreamgym.types import JsonObject

TEXTS = st.sampled_from(["", "a", "a b", "/", "~1", "~", "é\u2028", "0", "-", "x" * 70])
NUMBERS = st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)
SCHEMA = StateSchema(
    collections={
        "people": Collection(key="id", fields={"name": "string", "age": "integer?", "tags": "array", "any": "any"}),
        "odd/~name": Collection(key="k~/", fields={"": "any"}),
    },
    values={"clock": "number", "": "any", "anything": "any"},
)


@st.composite
def states(draw: st.DrawFn) -> JsonObject:
    """States under SCHEMA."""
    people: JsonObject = {}
    for identity in draw(st.lists(TEXTS.filter(bool), max_size=3, unique=True)):
        shown = st.fixed_dictionaries(
            {"id": st.just(identity)},
            optional={
                "name": TEXTS,
                "age": st.none() | st.integers(),
                "tags": st.lists(VALUES, max_size=3),
                "any": VALUES,
            },
        )
        people[identity] = draw(shown)
    odd = {identity: {"k~/": identity, "": draw(VALUES)} for identity in draw(st.lists(TEXTS.filter(bool), max_size=2))}
    whole: dict[str, JsonValue] = {"people": people, "odd/~name": dict(odd)}
    whole |= draw(st.fixed_dictionaries({}, optional={"clock": NUMBERS, "": VALUES, "anything": VALUES}))
    return {name: whole[name] for name in draw(st.permutations(sorted(whole)).map(lambda names: names[1:]))}


@given(states(), states())
def test_the_difference_of_two_states_leads_from_one_to_the_other(before: JsonObject, after: JsonObject) -> None:
    kept = copy.deepcopy(before)
    changed = apply(before, difference(before, after), SCHEMA)
    assert as_text(changed) == as_text(after)
    assert as_text(before) == as_text(kept)


@given(VALUES, VALUES)
def test_the_difference_of_two_values_of_one_path_leads_from_one_to_the_other(one: JsonValue, other: JsonValue) -> None:
    before, after = {"clock": 1, "anything": one}, {"clock": 1, "anything": other}
    assert as_text(apply(before, difference(before, after), SCHEMA)) == as_text(after)


@given(states(), states())
def test_two_states_differ_exactly_in_their_changed_fields(before: JsonObject, after: JsonObject) -> None:
    paths = changed_fields(before, after)
    assert bool(paths) == (as_text(before) != as_text(after))
    ours, theirs = dict(fields(before)), dict(fields(after))
    same = (ours.keys() & theirs.keys()) - paths
    assert all(json.dumps(ours[path], sort_keys=True) == json.dumps(theirs[path], sort_keys=True) for path in same)


def test_the_first_entity_of_a_collection_changes_only_its_own_fields() -> None:
    person: JsonObject = {"id": "P-1", "name": "Ada"}
    assert changed_fields({"people": {}}, {"people": {"P-1": person}}) == {"/people/P-1/id", "/people/P-1/name"}
    assert changed_fields({}, {"people": {}}) == {"/people"}


@given(states())
def test_a_state_can_be_read_back_from_its_canonical_text(state: JsonObject) -> None:
    assert parsed(as_text(state)) == state
    assert as_text(dict(reversed(list(state.items())))) == as_text(state)


WORLD: JsonObject = {
    "people": {
        "P-1": {"id": "P-1", "name": "Ada", "age": 36, "tags": ["x"], "any": {"deep": [1, {"a": 1}]}},
        "P-2": {"id": "P-2", "name": "Bob of P-1", "age": None},
        "P-3": {"id": "P-3", "name": "Eve"},
    },
    "clock": 1.5,
}


@pytest.mark.parametrize(
    ("op", "path", "value", "reason"),
    [
        ("delete", "/people/P-9", None, "there is nothing at this path"),
        ("delete", "/orders", None, "there is nothing at this path"),
        ("delete", "/people/P-1/id", None, "/people/P-1: 'id' must be 'P-1', got null"),
        ("append", "/people/P-1/name", "x", 'expected a list, there is "Ada"'),
        ("append", "/people/P-2/tags", "x", "there is nothing at this path"),
        ("increase", "/people/P-1/name", 1, 'expected numbers, got "Ada" and 1'),
        ("increase", "/people/P-1/age", "1", 'expected numbers, got 36 and "1"'),
        ("increase", "/people/P-1/age", True, "a truth value is no number"),
        ("increase", "/people/P-1/age", 0.5, "/people/P-1/age: expected integer?, got 36.5"),
        ("increase", "/clock", 1.7e308, ""),
        ("set", "/people/P-9/name", "x", "there is no 'P-9'"),
        ("set", "/people/P-1/nick", "x", "/people/P-1/nick: unknown field; known fields: age, any, name, tags"),
        ("set", "/people/P-1/age", "36", '/people/P-1/age: expected integer?, got "36"'),
        ("set", "/people/P-9", {"id": "P-8"}, "/people/P-9: 'id' must be 'P-9', got \"P-8\""),
        ("set", "/people/P-1", None, "/people/P-1: expected an object, got null"),
        ("set", "/people", [], "/people: expected entities by their id, got []"),
        (
            "set",
            "/shoes",
            1,
            "/shoes: there is no such collection or value; there are , anything, clock, odd/~name, people",
        ),
        ("set", "/clock", True, "/clock: expected number, got true"),
        ("set", "/clock/hour", 3, "there is nothing at this path"),
        ("set", "/people/P-1/any/deep/2", 3, "there is nothing at this path"),
        ("set", "/people/P-1/any/deep/-1", 3, "there is nothing at this path"),
        ("set", "/people/P-1/any/deep/00", 3, "there is nothing at this path"),
        ("set", "/people/P-1/any/deep/٠", 3, "there is nothing at this path"),
        ("set", f"/people/P-1/any/deep/{'9' * 5000}", 3, "there is nothing at this path"),
    ],
)
def test_an_impossible_change_is_named_and_changes_nothing(op: Any, path: str, value: JsonValue, reason: str) -> None:
    kept = copy.deepcopy(WORLD)
    good = Operation(op="set", path="/people/P-3/name", value="Zoe")
    start = {**WORLD, "clock": 1.7e308} if not reason else WORLD
    with pytest.raises(ImpossibleChange) as error:
        apply(start, [good, Operation(op=op, path=path, value=value)], SCHEMA)
    assert reason in str(error.value)
    assert kept == WORLD


@pytest.mark.parametrize("path", ["", "people", "people/P-1"])
def test_a_path_begins_with_a_slash(path: str) -> None:
    with pytest.raises(ValidationError):
        Operation(op="delete", path=path)


def test_without_a_schema_only_existing_paths_can_be_set() -> None:
    assert apply({"a": {"b": 1}}, [Operation(op="set", path="/a/b", value=[2])]) == {"a": {"b": [2]}}
    with pytest.raises(ImpossibleChange, match="set /a/c: there is nothing at this path"):
        apply({"a": {"b": 1}}, [Operation(op="set", path="/a/c", value=2)])


def test_a_collection_that_the_state_lacks_begins_with_its_first_entity() -> None:
    new: JsonObject = {"id": "P-1", "name": "Ada"}
    assert apply({}, [Operation(op="set", path="/people/P-1", value=new)], SCHEMA) == {"people": {"P-1": new}}


def test_a_value_that_was_set_is_not_shared_with_the_operation() -> None:
    tags: list[JsonValue] = ["a"]
    operations = [
        Operation(op="set", path="/people/P-1/tags", value=tags),
        Operation(op="append", path="/people/P-1/tags", value="b"),
    ]
    assert apply(WORLD, operations, SCHEMA)["people"]["P-1"]["tags"] == ["a", "b"]  # type: ignore[index, call-overload]
    assert operations[0].value == ["a"]


def test_items_of_a_list_are_changed_by_their_position() -> None:
    operations = [
        Operation(op="increase", path="/people/P-1/any/deep/1/a", value=2),
        Operation(op="delete", path="/people/P-1/any/deep/0"),
    ]
    changed = apply(WORLD, operations, SCHEMA)
    assert dict(fields(changed))["/people/P-1/any/deep"] == [{"a": 3}]


@given(st.decimals(-(10**9), 10**9, places=2), st.decimals(-(10**9), 10**9, places=2))
def test_an_increase_calculates_in_decimals(old: Decimal, change: Decimal) -> None:
    after = apply({"clock": float(old)}, [Operation(op="increase", path="/clock", value=float(change))], SCHEMA)
    assert after == {"clock": float(old + change)}


@given(st.integers(), st.integers())
def test_whole_numbers_stay_whole_and_exact(old: int, change: int) -> None:
    schema = StateSchema(values={"stock": "integer"})
    after = apply({"stock": old}, [Operation(op="increase", path="/stock", value=change)], schema)
    assert after == {"stock": old + change}


@pytest.mark.parametrize("change", [math.inf, -math.inf, math.nan])
def test_a_number_that_json_does_not_have_cannot_be_added(change: float) -> None:
    with pytest.raises(ImpossibleChange, match="no number that JSON has"):
        apply({"clock": 1}, [Operation(op="increase", path="/clock", value=change)], SCHEMA)


@given(states(), VALUES)
def test_a_schema_takes_its_own_states_and_names_the_first_fault_of_others(state: JsonObject, value: JsonValue) -> None:
    assert SCHEMA.fault_of(state) is None
    fault = SCHEMA.fault_of({**state, "people": {"P": {"id": "P", "age": value}}})
    fits = value is None or (isinstance(value, int) and not isinstance(value, bool))
    assert (fault is None) == fits
    assert fits or str(fault).startswith("/people/P/age: expected integer?, got ")


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("string", ["", "x"], [None, 1, True, [], {}]),
        ("integer", [0, -3, 10**30], [None, 1.0, True, "1"]),
        ("number", [0, 1.5], [None, True, "1"]),
        ("boolean", [True, False], [None, 0, 1, "true"]),
        ("array", [[], [1]], [None, {}, "[]"]),
        ("object", [{}, {"a": 1}], [None, [], "{}"]),
        ("any", [None, 0, True, "", [], {}], []),
        ("boolean?", [None, True], [0]),
        ("number?", [None, 1, 1.5], [False]),
    ],
)
def test_a_type_accepts_its_own_values_and_no_others(kind: str, good: list[JsonValue], bad: list[JsonValue]) -> None:
    schema = StateSchema(values={"v": kind})
    assert [schema.fault_of({"v": value}) for value in good] == [None] * len(good)
    assert all(str(schema.fault_of({"v": value})).startswith(f"/v: expected {kind}, got ") for value in bad)


def test_an_id_may_be_a_whole_number_and_stands_as_text_in_the_collection() -> None:
    assert SCHEMA.fault_of({"people": {"7": {"id": 7}}}) is None
    assert [identity_of(value) for value in (7, "7", "", True, 7.0, None)] == ["7", "7", None, None, None, None]
    assert list(entities([{"id": 7, "name": "Ada"}], SCHEMA)) == [("people", "7", {"id": 7, "name": "Ada"})]


def test_a_schema_is_read_as_a_person_writes_it_and_as_we_store_it() -> None:
    written: JsonObject = {
        "clock": "integer",
        "values": {"key": "id", "fields": {"name": "string"}, "complete": False},
        "collections": {"key": "id", "complete": True},
    }
    schema = StateSchema.model_validate(written)
    assert schema.values == {"clock": "integer"}
    assert schema.collections["values"] == Collection(key="id", fields={"name": "string"}, complete=False)
    assert schema.collections["collections"] == Collection(key="id")
    assert StateSchema.model_validate_json(schema.model_dump_json()) == schema


@given(states(), st.lists(TEXTS, max_size=3))
def test_the_relevant_part_keeps_the_entities_that_the_arguments_name(state: JsonObject, named: list[str]) -> None:
    part = relevant(state, {"about": list(named)}, SCHEMA)
    for name, value in state.items():
        if name in SCHEMA.collections:
            whole, kept = as_object(value), as_object(part[name])
            assert kept.items() <= whole.items() or as_text(kept) == as_text(whole)
            assert whole.keys() & set(named) <= kept.keys()
        else:
            assert part[name] == value
    assert part.keys() == state.keys()


def as_object(value: JsonValue) -> JsonObject:
    assert isinstance(value, dict)
    return value


def test_the_relevant_part_follows_links_both_ways_and_leaves_the_rest_out() -> None:
    assert relevant(WORLD, {"id": "P-1"}, SCHEMA)["people"].keys() == {"P-1", "P-2"}  # type: ignore[union-attr]
    assert relevant(WORLD, {"text": "please look at P-3."}, SCHEMA)["people"].keys() == {"P-3"}  # type: ignore[union-attr]
    assert relevant(WORLD, {"id": "P-9"}, SCHEMA) == WORLD


@given(VALUES)
def test_every_text_and_number_of_a_value_is_mentioned(value: JsonValue) -> None:
    words = mentioned(value)
    assume(value is not None and not isinstance(value, bool))
    for _, leaf in fields({"v": value}):
        if isinstance(leaf, str):
            assert leaf in words
        elif isinstance(leaf, int | float) and not isinstance(leaf, bool):
            assert json.dumps(leaf) in words


@pytest.mark.parametrize("piece", ["-", ".", "a-", "a ", "é"])
def test_the_mentioned_words_of_a_text_take_time_in_proportion_to_its_length(piece: str) -> None:
    assert grows_linearly(mentioned, lambda size: piece * (size // len(piece)))


def test_an_answer_that_fits_several_collections_shows_the_one_with_most_of_its_fields() -> None:
    schema = StateSchema(
        collections={
            "orders": Collection(key="id", fields={"total": "number", "note": "string"}),
            "rooms": Collection(key="id", fields={"seats": "integer", "note": "string"}),
        }
    )
    answer: JsonValue = {"found": [{"id": "x", "seats": 3, "note": "", "odd": 1}], "id": None}
    assert list(entities(answer, schema)) == [("rooms", "x", {"id": "x", "seats": 3, "note": ""})]
