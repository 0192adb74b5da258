"""Calls of functions and MCP tools in the Responses API become steps, and items that cannot be used are reported."""

import json
from pathlib import Path
from typing import Any

import pytest
from importer_stage import imported, only, spec, steps
from openai.types.responses import ResponseInputItemParam
from pydantic import TypeAdapter

from dreamgym.recordings.importers import read_file
from dreamgym.recordings.importers.folder import defined_tools
from dreamgym.types import JsonObject, StopReason

USER: JsonObject = {"role": "user", "content": "Who is Mia?"}
DONE: JsonObject = {
    "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
    "content": [{"type": "output_text", "text": "Number 7.", "annotations": []}],
}  # fmt: skip
REASONING: JsonObject = {"type": "reasoning", "id": "rs_1", "summary": []}
EXPECTED = [("find", {"q": "Mia"}, "#7"), ("find", {"q": "Bob"}, "#8")]


def call(call_id: str, q: str, name: str = "find") -> JsonObject:
    arguments = json.dumps({"q": q})
    return {"type": "function_call", "id": f"fc_{call_id}", "call_id": call_id, "name": name, "arguments": arguments}


def output(call_id: str, told: Any) -> JsonObject:
    return {"type": "function_call_output", "call_id": call_id, "output": told}


def mcp(item_id: str, q: str, **fields: object) -> JsonObject:
    whole: JsonObject = json.loads(json.dumps({
        "type": "mcp_call", "id": item_id, "server_label": "crm", "name": "find", "arguments": json.dumps({"q": q}),
        "output": None, "error": None, **fields,
    }))  # fmt: skip
    return whole


ITEMS = [USER, REASONING, call("a", "Mia"), call("b", "Bob"), output("b", "#8"), output("a", "#7"), DONE]


def test_the_openai_package_accepts_the_items_of_these_tests() -> None:
    listed: JsonObject = {"type": "mcp_list_tools", "id": "l", "server_label": "crm", "tools": []}
    for item in (*ITEMS, mcp("m", "Mia", output="#7"), listed):
        TypeAdapter(ResponseInputItemParam).validate_python(item)


@pytest.mark.parametrize(
    "form", ["list", "input", "input and output", "a text as input", "a page", "continued", "newest first"]
)
def test_every_form_gives_the_same_steps_and_answer(form: str, tmp_path: Path) -> None:
    first = {"object": "response", "id": "resp_1", "input": "Who is Mia?", "output": ITEMS[1:4]}
    second = {"object": "response", "id": "resp_2", "previous_response_id": "resp_1", "input": ITEMS[4:6]}
    documents: dict[str, list[Any]] = {
        "list": [ITEMS],
        "input": [{"model": "m", "input": ITEMS}],
        "input and output": [{"input": ITEMS[:-1], "output": [DONE]}],
        "a text as input": [{"input": "Who is Mia?", "output": ITEMS[1:]}],
        "a page": [{"object": "list", "data": ITEMS, "has_more": False}],
        "continued": [first, {**second, "output": [DONE]}],
        "newest first": [{**second, "output": [DONE]}, first],
    }
    report = imported(tmp_path, spec("find"), *documents[form])
    trajectory = only(report)
    assert report.formats == {"openai-responses": 1}
    assert (trajectory.task.instruction, trajectory.answer) == ("Who is Mia?", "Number 7.")
    assert steps(trajectory) == EXPECTED


def test_calls_of_mcp_tools_contain_their_results_and_errors(tmp_path: Path) -> None:
    refused = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "no Bob here"}]}
    broken = {"type": "mcp_protocol_error", "code": -32602, "message": "unknown tool"}
    items = [
        USER,
        mcp("a", "Mia", output="#7"),
        mcp("b", "Bob", error=refused),
        mcp("c", "Ann", error=broken),
        mcp("d", "Eve", error="timeout"),
        DONE,
    ]
    trajectory = only(imported(tmp_path, spec("find"), {"input": items[:1], "output": items[1:]}))
    told = [(step.result.observation, step.result.is_error) for step in trajectory.transitions]
    assert told == [("#7", False), ("no Bob here", True), ("unknown tool", True), ("timeout", True)]
    assert trajectory.answer == "Number 7."


def test_functions_and_mcp_tools_called_at_once_keep_their_order(tmp_path: Path) -> None:
    items = [
        USER,
        call("a", "1"),
        mcp("b", "2", output="two"),
        call("c", "3"),
        output("c", "three"),
        output("a", "one"),
    ]
    trajectory = only(imported(tmp_path, spec("find"), [*items, DONE]))
    assert [step[2] for step in steps(trajectory)] == ["one", "two", "three"]


def test_a_result_of_several_parts_keeps_them(tmp_path: Path) -> None:
    parts = [{"type": "input_text", "text": "here"}, {"type": "input_image", "image_url": "https://x.test/a.png"}]
    result = (
        only(imported(tmp_path, spec("find"), [USER, call("a", "x"), output("a", parts), DONE])).transitions[0].result
    )
    assert result.content == [{"type": "text", "text": "here"}, parts[1]]


def test_items_that_cannot_be_used_are_reported_with_their_place(tmp_path: Path) -> None:
    search: JsonObject = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    items = [
        USER,
        search,
        call("a", "Mia"),
        call("b", "Bob"),
        mcp("c", "Ann"),
        output("a", "#7"),
        output("x", "?"),
        DONE,
    ]
    report = imported(tmp_path, spec("find"), items)
    assert steps(report.trajectories[0]) == EXPECTED[:1]
    assert sorted((one.where, one.reason) for one in report.left_out) == [
        (
            "file.jsonl, line 1, message 1",
            "the call of 'web_search_call' cannot be used: it is neither a call of a function nor of an MCP tool",
        ),
        ("file.jsonl, line 1, message 3", "the call of 'find' has no result"),
        ("file.jsonl, line 1, message 4", "the call of 'find' has no result"),
        ("file.jsonl, line 1, message 6", "a tool result without its call (id 'x', tool None)"),
    ]


def test_the_last_words_are_the_answer_also_after_a_call_without_a_result(tmp_path: Path) -> None:
    search: JsonObject = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    (found,) = imported(tmp_path, spec("find"), [USER, call("a", "Mia"), output("a", "#7"), search, DONE]).trajectories
    assert found.answer == only(imported(tmp_path, spec("find"), ITEMS)).answer
    assert found.stop_reason is StopReason.FINISHED
    said_before = [USER, call("a", "Mia"), DONE, output("a", "#7")]
    assert only(imported(tmp_path, spec("find"), said_before)).answer is None


def test_tool_definitions_come_from_the_request_and_from_the_servers(tmp_path: Path) -> None:
    schema: JsonObject = {"type": "object", "properties": {"q": {"type": "string"}}}
    listed: JsonObject = {
        "type": "mcp_list_tools", "id": "l", "server_label": "crm",
        "tools": [{"name": "open", "description": "d", "input_schema": schema, "annotations": {"readOnlyHint": True}}],
    }  # fmt: skip
    functions = [{"type": "function", "name": "find", "parameters": schema, "strict": True}, {"type": "web_search"}]
    request = {"input": "Who?", "tools": functions, "output": [listed, call("a", "Mia")]}
    (tmp_path / "log.json").write_text(json.dumps(request))
    tools, _ = defined_tools(found for _, found in read_file(tmp_path / "log.json"))
    assert tools == [
        {"name": "find", "inputSchema": schema},
        {"name": "open", "description": "d", "annotations": {"readOnlyHint": True}, "inputSchema": schema},
    ]


def test_chat_messages_are_left_to_their_own_format(tmp_path: Path) -> None:
    chat = [USER, {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "find", "arguments": "{}"}}]}]
    report = imported(tmp_path, spec("find"), [*chat, {"role": "tool", "tool_call_id": "a", "content": "#7"}])
    assert report.formats == {"openai": 1}


def test_responses_that_continue_each_other_in_a_circle_are_imported_once(tmp_path: Path) -> None:
    one = {"object": "response", "id": "1", "previous_response_id": "2", "input": "Who?", "output": ITEMS[1:4]}
    two = {"object": "response", "id": "2", "previous_response_id": "1", "input": ITEMS[4:6], "output": [DONE]}
    assert only(imported(tmp_path, spec("find"), one, two)).answer == "Number 7."


def test_a_log_that_was_exported_twice_gives_the_same_conversation_twice(tmp_path: Path) -> None:
    one = {"object": "response", "id": "1", "input": "Who is Mia?", "output": ITEMS[1:4]}
    two = {"object": "response", "id": "2", "previous_response_id": "1", "input": ITEMS[4:6], "output": [DONE]}
    report = imported(tmp_path, spec("find"), one, two, one, two)
    assert (len(report.trajectories), report.repeated, report.skipped) == (1, 1, [])
