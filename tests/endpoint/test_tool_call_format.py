"""The meaning of a policy's words: one call, several calls, or text."""

import json

import pytest
from dreamgym_integrations.models.chat_server import Reply
from dreamgym_integrations.trainers.policy.tool_call_format import (
    call_as_text,
    calls_nobody_can_run,
    check_tools,
    reply_of,
    without_tool_calls,
)
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import JsonValue
from speakers import ACT, ADD, call

from dreamgym import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.training.rollout import parse_action
from dreamgym.types import JsonObject, ToolCall

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8"), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def read(words: str) -> Reply:
    return reply_of(words, [ADD], knows_tools=True)


@given(arguments=st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), values, max_size=3))
def test_a_call_written_as_the_template_writes_it_is_read_back(arguments: dict[str, object]) -> None:
    if "</tool_call>" in json.dumps(arguments):
        return
    said = read("I add.\n" + call("add", **arguments))
    assert said.text == "I add."
    assert [(one.name, one.arguments) for one in said.tool_calls] == [("add", arguments)]


@given(arguments=st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), values, max_size=3))
@example(arguments={"n": "</tool_call>", "</tool_call>": "<tool_call>"})
def test_a_call_put_into_words_is_read_back_whatever_its_arguments_contain(arguments: dict[str, JsonValue]) -> None:
    made = ToolCall(name="add", arguments=arguments)
    assert read(call_as_text(made, knows_tools=True)) == Reply(tool_calls=(made,))


def test_a_call_is_written_as_the_templates_write_it() -> None:
    assert call_as_text(ToolCall(name="add", arguments={"n": 5}), knows_tools=True) == call("add", n=5)
    made = ToolCall(name="act", arguments={"command": "move north"})
    assert call_as_text(made, knows_tools=False) == "move north"
    assert reply_of("move north", [ACT], knows_tools=False) == Reply(tool_calls=(made,))


@pytest.mark.parametrize(
    ("words", "calls"),
    [
        (call("add", n=1), 0),
        (call("fly"), 1),
        (call("add", n=1) + call("fly") + call("swim"), 2),
        (call("add", n=1) + "<tool_call>{'name'}</tool_call>", 2),
        ("I think that I am done.", 0),
    ],
)
def test_calls_that_nobody_can_run_are_counted(words: str, calls: int) -> None:
    assert calls_nobody_can_run(words, read(words), [ADD]) == calls
    assert calls_nobody_can_run(words, Reply(text=words), []) == 0, "without tools every word is text"


def test_several_calls_are_read_in_their_order_and_the_last_may_be_unclosed() -> None:
    said = read(call("add", n=1) + "\n" + call("peek").removesuffix("\n</tool_call>"))
    assert said == Reply(tool_calls=(ToolCall(name="add", arguments={"n": 1}), ToolCall(name="peek")))


@pytest.mark.parametrize(
    "malformed",
    [
        "{'name': 'add'}",
        '["add"]',
        '{"name": "add", "arguments": "n"}',
        '{"arguments": {}}',
        '{"name": 3, "arguments": {}}',
        '{"name": "add", "arguments": {"n": NaN}}',
        '{"name": "add", "arguments": {"n": "\\ud800"}}',
        '{"name": "add", "arguments": {"n": 1e999}}',
        '{"name": "add", "arguments": {"n": ' + "[" * 63 + "]" * 63 + "}}",
        "[" * 100_000,
        "",
    ],
)
def test_a_malformed_call_is_the_text_that_was_written(malformed: str) -> None:
    words = f"{call('add', n=1)}<tool_call>{malformed}</tool_call>"
    assert read(words) == Reply(text=words)


@given(st.text())
def test_any_words_are_calls_or_stay_text(words: str) -> None:
    said = read(words)
    assert said.tool_calls or said.text == words


def test_without_tools_every_word_is_text() -> None:
    assert reply_of(call("add"), [], knows_tools=True) == Reply(text=call("add"))


def test_without_tools_in_the_template_the_words_are_the_argument_of_the_only_tool() -> None:
    assert reply_of("say red", [ACT], knows_tools=False) == Reply(
        tool_calls=(ToolCall(name="act", arguments={"command": "say red"}),)
    )


Q: JsonObject = {"q": {"type": "string"}}


def asking(parameters: JsonValue) -> tuple[EnvironmentSpec, JsonObject]:
    """A tool as the environment lists it, and as the agent offers it to its policy."""
    listed: JsonObject = {"name": "ask", "inputSchema": parameters}
    return (
        EnvironmentSpec(name="asking", tools_list=({"tools": [listed]},)),
        {"type": "function", "function": {"name": "ask", "parameters": parameters}},
    )


@pytest.mark.parametrize(
    "parameters", [{"properties": Q, "required": ["q"]}, {"properties": Q}, {"properties": Q, "required": []}]
)
def test_a_text_is_an_action_of_a_tool_with_only_a_text_argument_with_or_without_an_agent(
    parameters: JsonObject,
) -> None:
    spec, offered = asking(parameters)
    check_tools([offered], knows_tools=False)
    assert spec.text_argument == ("ask", "q")
    call = ToolCall(name="ask", arguments={"q": "who"})
    assert parse_action(spec, "who") == call
    assert reply_of("who", [offered], knows_tools=False) == Reply(tool_calls=(call,))
    with pytest.raises(InvalidInput, match=r"only a single tool whose only argument is a text, not ask, ask"):
        check_tools([offered, offered], knows_tools=False)


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {**Q, "k": {"type": "string"}}, "required": ["q"]},
        {"properties": {**Q, "k": {"type": "integer"}}, "required": ["q"]},
        {"properties": {**Q, "k": {"type": "integer"}}},
        {"properties": {**Q, "k": {"type": "string"}}, "required": ["q", "k"]},
        {"properties": {"q": {"type": "integer"}}, "required": ["q"]},
        {"properties": {}, "required": []},
        None,
    ],
    ids=["one required, one optional", "optional number", "two", "two required", "a number", "none", "no schema"],
)
def test_a_text_is_not_an_action_of_a_tool_with_other_arguments_with_or_without_an_agent(
    parameters: JsonObject | None,
) -> None:
    spec, offered = asking(parameters)
    assert spec.text_argument is None
    with pytest.raises(InvalidInput, match="not a tool call"):
        parse_action(spec, "who")
    with pytest.raises(InvalidInput, match="is a text, not ask:"):
        check_tools([offered], knows_tools=False)


@pytest.mark.parametrize("levels", [62, 100_000])
def test_a_text_that_a_server_would_refuse_as_too_deep_is_not_an_action(levels: int) -> None:
    spec, _ = asking({"properties": {"q": {"type": "array"}}, "required": ["q"]})
    call = '{"name": "ask", "arguments": {"q": %s}}'
    assert parse_action(spec, call % ("[" * 61 + "]" * 61)).name == "ask"
    with pytest.raises(InvalidInput, match="not a tool call"):
        parse_action(spec, call % ("[" * levels + "]" * levels))


def test_tools_that_a_template_cannot_show_are_refused_with_their_names() -> None:
    check_tools([ACT], knows_tools=False)
    check_tools([ACT, ADD], knows_tools=True)
    with pytest.raises(InvalidInput, match=r"does not support tools .* not act, add"):
        check_tools([ACT, ADD], knows_tools=False)


def test_a_conversation_without_tools_has_calls_as_words_and_tool_answers_as_user_messages() -> None:
    function: JsonObject = {"name": "act", "arguments": {"command": "say red"}}
    assert without_tool_calls(
        [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": "", "tool_calls": [{"function": function}]},
            {"role": "tool", "content": "right"},
        ]
    ) == [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "say red"},
        {"role": "user", "content": "right"},
    ]
