"""Words for refusals are learned from recorded refusals by kind of fault, and used for new calls."""

from __future__ import annotations

import json

import pytest
from pydantic import JsonValue

from dreamgym.environment import EnvironmentSpec
from dreamgym.fault_words import learned, reason_in_words
from dreamgym.mirror import Mirror
from dreamgym.schema import Schema, schema_of
from dreamgym.tools import Tools
from dreamgym.types import JsonObject, ToolCall

INPUT: JsonObject = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "owner": {"type": "string"},
        "count": {"type": "integer", "minimum": 1},
        "pages": {"type": "integer", "minimum": 5},
        "kind": {"enum": ["draft", "final"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["title", "owner", "count"],
    "additionalProperties": False,
}
FINE: JsonObject = {"title": "rope", "owner": "ada", "count": 3}


def call(**arguments: JsonValue) -> ToolCall:
    return ToolCall(name="report", arguments={**FINE, **arguments})


def without(*names: str, **arguments: JsonValue) -> ToolCall:
    kept = {name: value for name, value in FINE.items() if name not in names}
    return ToolCall(name="report", arguments={**kept, **arguments})


def told(action: ToolCall, *recorded: tuple[ToolCall, str]) -> str | None:
    """The reason that the recorded refusals give for a call."""
    words, tells_all = learned((schema_of(INPUT), *one) for one in recorded)
    return reason_in_words(schema_of(INPUT), action, words, tells_all=tells_all)


def door(mirror: Mirror) -> Tools:
    """Check of the calls of a server with one tool."""
    listing: JsonObject = {"tools": [{"name": "report", "inputSchema": INPUT}]}
    return Tools(EnvironmentSpec(name="reports", tools_list=(listing,), mirror=mirror))


MISSING = (without("title"), "expected string, received undefined at title")
SMALL = (call(count=0), "Too small: expected >=1 at count")


@pytest.mark.parametrize(
    ("action", "recorded", "reason"),
    [
        (without("owner"), MISSING, "expected string, received undefined at owner"),
        (call(pages=2), SMALL, "Too small: expected >=5 at pages"),
        (
            call(count="many"),
            (call(pages="few"), "pages of report: 'few' is no number"),
            "count of report: 'many' is no number",
        ),
        (call(size=3), (call(sail="red"), "sail is not known"), "size is not known"),
        (call(kind="odd"), (call(kind="new"), "kind must be draft or final"), "kind must be draft or final"),
    ],
)
def test_a_refusal_of_a_recorded_kind_names_the_new_field_limit_and_value(
    action: ToolCall, recorded: tuple[ToolCall, str], reason: str
) -> None:
    assert told(action, recorded) == reason


@pytest.mark.parametrize(
    "action",
    [without("count"), call(count=None), call(title=5), call(tags=[1]), call(kind="odd")],
    ids=["another type is missing", "null", "a type", "a fault inside a field", "another keyword"],
)
def test_a_fault_of_another_kind_has_no_words(action: ToolCall) -> None:
    assert told(action, MISSING, SMALL) is None


def test_several_faults_are_listed_in_the_order_of_the_schema_if_a_recording_lists_several() -> None:
    both = (without("title", count=0), "expected string, received undefined at title\nToo small: expected >=1 at count")
    assert (
        told(without("owner", pages=4), both)
        == "expected string, received undefined at owner\nToo small: expected >=5 at pages"
    )
    assert told(without("owner", pages=4), MISSING, SMALL) is None


@pytest.mark.parametrize(
    "reason",
    [
        "expected string at title, got {'owner': 'ada', 'count': 3}",
        "title is missing, only owner is there",
        "title: the field title is missing",
        '1 error: input_value={"owner": "ada", "count": 3} at title',
        "something is missing",
        "title {field}",
    ],
)
def test_words_that_show_more_of_their_call_than_the_fault_are_not_used_again(reason: str) -> None:
    assert told(without("owner"), (without("title"), reason)) is None


def test_words_that_tell_the_size_of_a_value_are_not_used_for_a_value_of_another_size() -> None:
    schema = schema_of({"properties": {"tags": {"type": "array", "maxItems": 2}}})
    three, five = (ToolCall(name="report", arguments={"tags": ["x"] * size}) for size in (3, 5))
    told_limit, _ = learned([(schema, three, "tags: at most 2")])
    assert reason_in_words(schema, five, told_limit) == "tags: at most 2"
    told_size, _ = learned([(schema, three, "tags: at most 2, got 3")])
    assert reason_in_words(schema, five, told_size) is None


def test_words_that_name_the_schema_of_one_tool_name_that_of_another_tool() -> None:
    def tool(name: str) -> Schema:
        return schema_of({"title": f"{name}Arguments", "properties": {"id": {"type": "string"}}})

    seen = ToolCall(name="get_booking", arguments={"id": 8})
    words, _ = learned([(tool("get_booking"), seen, "1 error for get_bookingArguments\tid\tgot 8")])
    asked = ToolCall(name="cancel", arguments={"id": 9})
    assert reason_in_words(tool("cancel"), asked, words) == "1 error for cancelArguments\tid\tgot 9"


@pytest.mark.parametrize(
    ("count", "reason"),
    [(-4, "count must be at least 1, got int -4"), (51, None), ("7", None), (0.5, None)],
    ids=["the same bound", "another bound", "another type", "a fraction"],
)
def test_a_field_that_may_be_null_is_refused_in_the_words_of_the_bound_that_its_value_breaks(
    count: JsonValue, reason: str | None
) -> None:
    bounded: JsonValue = {"type": "integer", "minimum": 1, "maximum": 50}
    schema = schema_of({"properties": {"count": {"anyOf": [bounded, {"type": "null"}]}}})
    seen, asked = (ToolCall(name="list", arguments={"count": value}) for value in (0, count))
    words, _ = learned([(schema, seen, "count must be at least 1, got int 0")])
    assert reason_in_words(schema, asked, words) == reason


@pytest.mark.parametrize("inner", [{"r": 1}, {"x": 1, "y": 2}], ids=["another field is missing", "a field too many"])
def test_a_fault_inside_an_alternative_of_a_field_has_no_words(inner: JsonObject) -> None:
    without_r: JsonObject = {"x": 1}
    circle: JsonObject = {"type": "object", "required": ["x", "r"], "additionalProperties": False}
    circle["properties"] = {"x": {}, "r": {}}
    schema = schema_of({"properties": {"shape": {"anyOf": [circle, {"type": "null"}]}}})
    seen, asked = (ToolCall(name="draw", arguments={"shape": value}) for value in (without_r, inner))
    words, _ = learned([(schema, seen, "shape lacks r")])
    assert reason_in_words(schema, asked, words) is None


def test_a_required_field_without_a_name_is_refused() -> None:
    listing: JsonObject = {"tools": [{"name": "report", "inputSchema": {"type": "object", "required": [""]}}]}
    mirror = Mirror(fault_words={"required": "{field} is missing"})
    tools = Tools(EnvironmentSpec(name="crm", tools_list=(listing,), mirror=mirror))
    assert tools.refusal(call(), call().canonical()) == "Input validation error: '' is a required property"


def test_a_server_that_tells_the_messages_of_json_schema_without_the_field_is_simulated_so() -> None:
    small = (call(count=0), "0 is less than the minimum of 1")
    assert told(call(pages=2), small) == "2 is less than the minimum of 5"
    assert told(call(tags=[1]), small) == "1 is not of type 'string'"
    assert told(call(pages=2), (without("title"), "'title' is a required property")) is None


def test_words_that_were_told_of_a_whole_number_are_not_used_for_a_fraction() -> None:
    schema = schema_of({"properties": {"amount": {"type": "number", "exclusiveMinimum": 0}}})
    seen, asked = (ToolCall(name="pay", arguments={"amount": value}) for value in (-3, -0.5))
    words, _ = learned([(schema, seen, "amount: above 0, got int -3")])
    assert reason_in_words(schema, asked, words) is None


def test_a_kind_that_was_refused_in_two_ways_has_no_words() -> None:
    assert told(without("owner"), MISSING, (without("title"), "title, please")) is None


def test_braces_that_an_agent_writes_into_a_field_are_not_filled_in() -> None:
    recorded = (call(pages="few"), "'few' is no number of pages")
    assert told(call(count="{field} {tool}"), recorded) == "'{field} {tool}' is no number of count"


def test_a_call_with_too_many_faults_has_no_words() -> None:
    many = {f"unknown{number}": number for number in range(50)}
    assert (
        told(call(**many), (call(sail=1), "sail is not known"), (call(a=1, b=2), "a is not known\nb is not known"))
        is None
    )


def test_calls_are_refused_in_recorded_words_and_otherwise_in_those_of_json_schema() -> None:
    mirror = Mirror(
        invalid_arguments="Invalid arguments for {tool}: {reason}",
        fault_words={"required string": "expected string at {field}"},
    )
    tools = door(mirror)

    def refusal(action: ToolCall) -> str | None:
        return tools.refusal(action, json.dumps(action.arguments))

    assert refusal(without("owner")) == "Invalid arguments for report: expected string at owner"
    assert refusal(call(count=0)) == "Invalid arguments for report: count: 0 is less than the minimum of 1"
    assert refusal(call()) is None


def test_words_for_a_whole_refusal_need_no_recorded_template() -> None:
    mirror = Mirror(fault_words={"required string": "Error: {field} is missing"})
    tools = door(mirror)
    assert tools.refusal(without("owner"), "owner") == "Error: owner is missing"
    assert tools.refusal(call(count=0), "count") == "Input validation error: count: 0 is less than the minimum of 1"
