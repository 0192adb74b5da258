"""What a policy's words mean: a call, several, or text."""

import json

import pytest
from dreamgym_integrations.models.chat_server import Reply
from dreamgym_integrations.trainers.policy.tool_call_format import (
    check_tools,
    in_words,
    reply_of,
    text_argument,
    unheard,
    words_of,
)
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import JsonValue
from speakers import ACT, ADD, call

from dreamgym.errors import InvalidInput
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
def test_a_call_put_into_words_is_read_back_whatever_its_arguments_say(arguments: dict[str, JsonValue]) -> None:
    made = ToolCall(name="add", arguments=arguments)
    assert read(words_of(made, knows_tools=True)) == Reply(tool_calls=(made,))


def test_a_call_is_worded_as_the_templates_word_it() -> None:
    assert words_of(ToolCall(name="add", arguments={"n": 5}), knows_tools=True) == call("add", n=5)
    made = ToolCall(name="act", arguments={"command": "move north"})
    assert words_of(made, knows_tools=False) == "move north"
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
    assert unheard(words, read(words), [ADD]) == calls
    assert unheard(words, Reply(text=words), []) == 0, "without tools every word is text"


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
        "[" * 100_000,
        "",
    ],
)
def test_a_malformed_call_is_the_text_that_was_written(malformed: str) -> None:
    words = f"{call('add', n=1)}<tool_call>{malformed}</tool_call>"
    assert read(words) == Reply(text=words)


@given(st.text())
def test_any_words_have_a_meaning(words: str) -> None:
    said = read(words)
    assert said.tool_calls or said.text == words


def test_without_tools_every_word_is_text() -> None:
    assert reply_of(call("add"), [], knows_tools=True) == Reply(text=call("add"))


def test_a_template_without_tools_acts_by_the_one_text_of_the_one_tool() -> None:
    assert reply_of("say red", [ACT], knows_tools=False) == Reply(
        tool_calls=(ToolCall(name="act", arguments={"command": "say red"}),)
    )


@pytest.mark.parametrize(
    ("parameters", "argument"),
    [
        ({"properties": {"q": {"type": "string"}}, "required": ["q"]}, "q"),
        ({"properties": {"q": {"type": "string"}}}, "q"),
        ({"properties": {"q": {"type": "string"}, "k": {"type": "integer"}}, "required": ["q"]}, "q"),
        ({"properties": {"q": {"type": "string"}, "k": {"type": "integer"}}}, None),
        ({"properties": {"q": {"type": "string"}, "k": {"type": "string"}}, "required": ["q", "k"]}, None),
        ({"properties": {"q": {"type": "integer"}}, "required": ["q"]}, None),
        ({"properties": {}, "required": []}, None),
        (None, None),
    ],
)
def test_a_tool_needs_one_text_where_that_is_all_it_requires(parameters: JsonObject, argument: str | None) -> None:
    tool: JsonObject = {"type": "function", "function": {"name": "ask", "parameters": parameters}}
    assert text_argument([tool]) == (("ask", argument) if argument else None)
    assert text_argument([tool, tool]) is None


def test_tools_that_a_template_cannot_show_are_refused_with_their_names() -> None:
    check_tools([ACT], knows_tools=False)
    check_tools([ACT, ADD], knows_tools=True)
    with pytest.raises(InvalidInput, match=r"knows no tools .* not by act, add"):
        check_tools([ACT, ADD], knows_tools=False)


def test_a_conversation_without_tools_has_calls_as_words_and_answers_as_the_users() -> None:
    function: JsonObject = {"name": "act", "arguments": {"command": "say red"}}
    assert in_words(
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
