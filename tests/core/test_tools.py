"""Calls that an environment's schemas forbid are refused in its own words, whatever was called before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.mirror import Mirror
from dreamgym.schema import fault_under
from dreamgym.tools import REMEMBERED_CALLS, Tools
from dreamgym.types import JsonObject, StepResult, ToolCall

COUNT = {"type": "object", "required": ["count"], "properties": {"count": {"type": "integer", "minimum": 0}}}


def spec(**fields: object) -> EnvironmentSpec:
    tool = {"name": "report", "inputSchema": COUNT, "outputSchema": COUNT}
    return EnvironmentSpec.model_validate({"name": "desk", "tools_list": {"tools": [tool]}, **fields})


def refusal(tools: Tools, **arguments: object) -> str | None:
    action = ToolCall.model_validate({"name": "report", "arguments": arguments})
    return tools.refusal(action, action.canonical())


@given(st.lists(st.sampled_from([1, 0, -1, True, 1.0, 1.5, "1", None]), max_size=12))
def test_a_verdict_does_not_depend_on_the_calls_before(counts: list[object]) -> None:
    used = Tools(spec())
    for count in counts:
        assert refusal(used, count=count) == refusal(Tools(spec()), count=count)


def test_verdicts_stay_right_after_more_calls_than_are_remembered() -> None:
    tools = Tools(spec())
    assert all(refusal(tools, count=count) is None for count in range(REMEMBERED_CALLS + 5))
    assert refusal(tools, count=-1) == "Input validation error: count: -1 is less than the minimum of 0"


def test_refusals_are_worded_as_recorded_even_if_the_words_look_like_a_template() -> None:
    mirror = Mirror(unknown_tool='{"no": "{tool}"}', invalid_arguments="{tool}: {reason} {0}")
    tools = Tools(spec(mirror=mirror))
    assert tools.refusal(ToolCall(name="x"), "x{}") == '{"no": "x"}'
    assert refusal(tools) == "report: 'count' is a required property {0}"


def test_an_amount_of_money_is_a_multiple_of_a_cent_and_any_other_is_refused_whatever_its_size() -> None:
    price = {"type": "object", "properties": {"count": {"type": "number", "multipleOf": 0.01}}}
    tools = Tools(spec(tools_list={"tools": [{"name": "report", "inputSchema": price}]}))
    assert [refusal(tools, count=count) for count in (19.99, 4.35, 10**400)] == [None] * 3
    assert refusal(tools, count=19.995) == "Input validation error: count: 19.995 is not a multiple of 0.01"


@pytest.mark.parametrize(
    ("structured", "named"),
    [
        ({"count": 1}, None),
        ({"count": "1"}, "count: '1' is not of type 'integer'"),
        (None, "requires structured content"),
    ],
)
def test_an_answer_that_breaks_the_output_schema_is_a_violation(
    structured: JsonObject | None, named: str | None
) -> None:
    result = StepResult(observation="one", info={} if structured is None else {"structured": structured})
    violation = Tools(spec()).violation("report", result)
    assert violation is None if named is None else violation is not None and named in violation


def test_a_refusal_needs_no_structured_content() -> None:
    assert Tools(spec()).violation("report", StepResult(observation="no", is_error=True)) is None


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"$ref": "https://example.com/schema.json"}])
def test_an_unusable_schema_is_refused_with_the_name_of_its_tool(schema: JsonObject) -> None:
    tool = {"name": "odd", "inputSchema": {"type": "object"}, "outputSchema": schema}
    with pytest.raises(InvalidInput, match=r"'odd': not a usable JSON Schema: .*; correct the schema in tools\.json"):
        Tools(spec(tools_list={"tools": [tool]}))


def test_a_reference_inside_a_schema_is_followed() -> None:
    schema: JsonObject = {"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}
    assert fault_under(schema, 1) is None
    assert fault_under(schema, "1") == "'1' is not of type 'integer'"
