"""Traces and observations in the forms that Langfuse documents: from its API, its export and its page of a trace."""

import json
from pathlib import Path
from typing import Any

import pytest
from importer_stage import imported, only, spec, steps
from pydantic import JsonValue

from dreamgym.recordings.importers import read_file
from dreamgym.recordings.importers.folder import defined_tools
from dreamgym.types import JsonObject

DEFINITION: JsonObject = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
ASKED: JsonObject = {"role": "user", "content": "Who is Mia?"}
SNAKE = {
    "traceId": "trace_id",
    "parentObservationId": "parent_observation_id",
    "startTime": "start_time",
    "statusMessage": "status_message",
}
EXPECTED = [("find", {"q": "Mia"}, '{"id": 7}'), ("find", {"q": "Bob"}, "no Bob here")]


def observation(name: str, kind: str, second: int, **fields: object) -> JsonObject:
    """An observation of the trace `t` as the API gives it."""
    whole: JsonObject = json.loads(json.dumps({
        "id": f"{kind}-{second}", "traceId": "t", "type": kind, "name": name, "parentObservationId": None,
        "startTime": f"2026-11-01T10:00:{second:02}.000Z", "level": "DEFAULT", "statusMessage": None, **fields,
    }))  # fmt: skip
    return whole


def asks(call_id: str, q: str) -> JsonObject:
    call: JsonObject = {
        "id": call_id,
        "type": "function",
        "function": {"name": "find", "arguments": json.dumps({"q": q})},
    }
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def generations(**given: JsonValue) -> list[JsonObject]:
    """The three model calls of an agent, as the OpenAI integration traces them."""
    mia: list[JsonObject] = [asks("a", "Mia"), {"role": "tool", "tool_call_id": "a", "content": '{"id": 7}'}]
    bob: list[JsonObject] = [asks("b", "Bob"), {"role": "tool", "tool_call_id": "b", "content": "no Bob here"}]
    told: list[list[JsonObject]] = [[ASKED], [ASKED, *mia], [ASKED, *mia, *bob]]
    said: list[JsonObject] = [mia[0], bob[0], {"role": "assistant", "content": "Number 7."}]
    return [
        observation(
            "OpenAI-generation", "GENERATION", 2 * turn, input={"messages": told[turn], **given}, output=said[turn]
        )
        for turn in range(3)
    ]


def calls(kind: str) -> list[JsonObject]:
    """The two tool calls; the second one failed."""
    return [
        observation("find", kind, 1, input={"q": "Mia"}, output={"id": 7}),
        observation("find", kind, 3, input={"q": "Bob"}, output=None, level="ERROR", statusMessage="no Bob here"),
    ]


def trace(observations: list[JsonObject], **fields: JsonValue) -> JsonObject:
    return {"id": "t", "name": "crm", "timestamp": "2026-11-01T10:00:00Z", "observations": list(observations), **fields}


def as_export(row: JsonObject) -> JsonObject:
    """A row of the blob storage export: snake_case, input and output as text."""
    told = {SNAKE.get(name, name): value for name, value in row.items()}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in told.items()}
    return {**told, "input": texts["input"], "output": texts["output"] if told["output"] is not None else None}


ROWS = [*generations(tools=[DEFINITION]), *calls("TOOL")]


@pytest.mark.parametrize("form", ["trace", "page of a trace", "nested", "flat", "a list", "page", "export"])
def test_every_form_of_a_trace_gives_its_steps_its_error_and_its_answer(form: str, tmp_path: Path) -> None:
    outer = observation("agent", "AGENT", 0, input=None, output=None)
    documents: dict[str, list[Any]] = {
        "trace": [trace(ROWS)],
        "page of a trace": [{"trace": trace([]), "observations": ROWS}],
        "nested": [trace([{**outer, "children": list(ROWS)}])],
        "flat": ROWS,
        "a list": [ROWS],
        "page": [{"data": ROWS, "meta": {"page": 1}}],
        "export": [as_export(row) for row in ROWS],
    }
    report = imported(tmp_path, spec("find"), *documents[form])
    trajectory = only(report)
    assert report.formats == {"langfuse": 1}
    assert (trajectory.task.instruction, trajectory.answer) == ("Who is Mia?", "Number 7.")
    assert steps(trajectory) == EXPECTED
    assert [step.result.is_error for step in trajectory.transitions] == [False, True]


def test_a_failed_call_without_a_result_answers_what_the_agent_read(tmp_path: Path) -> None:
    mia, bob = calls("TOOL")
    trajectory = only(imported(tmp_path, spec("find"), trace([*generations(), mia, {**bob, "statusMessage": "404"}])))
    assert steps(trajectory) == EXPECTED
    assert [step.result.is_error for step in trajectory.transitions] == [False, True]


def test_spans_named_like_a_tool_that_the_model_called_are_its_calls(tmp_path: Path) -> None:
    others = [observation("build prompt", "SPAN", 2, input={"x": 1}, output="y")]
    trajectory = only(imported(tmp_path, spec("find"), trace([*generations(), *others, *calls("SPAN")])))
    assert steps(trajectory) == EXPECTED
    assert [step.result.is_error for step in trajectory.transitions] == [False, True]


def test_without_tool_observations_the_messages_of_the_last_generation_are_read(tmp_path: Path) -> None:
    trajectory = only(imported(tmp_path, spec("find"), *generations()))
    assert (steps(trajectory), trajectory.answer) == (EXPECTED, "Number 7.")


def test_calls_in_langchain_form_are_read_from_the_messages_of_its_handler(tmp_path: Path) -> None:
    call: JsonObject = {"type": "tool_call", "id": "a", "name": "find", "args": {"q": "Mia"}}
    messages = [
        ASKED,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "#7"},
    ]
    told = observation(
        "ChatModel", "GENERATION", 0, input=messages, output={"role": "assistant", "content": "Number 7."}
    )
    trajectory = only(imported(tmp_path, spec("find"), told))
    assert (steps(trajectory), trajectory.answer) == ([("find", {"q": "Mia"}, "#7")], "Number 7.")


def test_a_tool_that_was_not_traced_is_read_from_the_messages(tmp_path: Path) -> None:
    seen = observation("open", "TOOL", 1, input={"id": 7}, output="open")
    told = only(imported(tmp_path, spec("find"), *generations(), seen))
    assert steps(told) == EXPECTED


def test_only_named_arguments_of_a_decorated_function_can_be_used(tmp_path: Path) -> None:
    named = observation("find", "TOOL", 1, input={"args": [], "kwargs": {"q": "Mia"}}, output="#7")
    placed = observation("find", "TOOL", 2, input={"args": ["Bob"], "kwargs": {}}, output="#8")
    report = imported(tmp_path, spec("find"), trace([named, placed], input="Who is Mia?"))
    (trajectory,) = report.trajectories
    assert (trajectory.task.instruction, steps(trajectory)) == ("Who is Mia?", [("find", {"q": "Mia"}, "#7")])
    assert "its arguments were recorded without their names" in report.left_out[0].reason


@pytest.mark.parametrize(("answer", "told"), [({}, "{}"), ([], "[]")])
def test_an_empty_object_or_list_is_an_answer(answer: JsonValue, told: str, tmp_path: Path) -> None:
    row = observation("find", "TOOL", 1, input={"q": "Mia"}, output=answer)
    (step,) = only(imported(tmp_path, spec("find"), row)).transitions
    assert step.result.observation == told


@pytest.mark.parametrize(
    "answer", ['{"price":1.10,"tags":["a","b"]}', '{"id": 1, "id": 2}', "[1.0,  2e3]", "[ ]", '{"type":"human"}']
)
def test_an_answer_that_is_json_as_text_is_kept_as_the_tool_wrote_it(answer: str, tmp_path: Path) -> None:
    row = observation("find", "TOOL", 1, input={"q": "Mia"}, output=answer)
    for document in (row, as_export(row)):
        (step,) = only(imported(tmp_path, spec("find"), document)).transitions
        assert step.result.observation == answer


@pytest.mark.parametrize(
    "answer",
    [
        {"type": "tool", "content": "#7", "tool_call_id": "a"},
        {"content": [{"type": "text", "text": "#7"}], "isError": False},
        [{"type": "text", "text": "#7"}],
    ],
)
def test_a_message_or_an_mcp_result_is_read_from_the_text_of_the_export(answer: JsonValue, tmp_path: Path) -> None:
    row = observation("find", "TOOL", 1, input={"q": "Mia"}, output=answer)
    for document in (row, as_export(row)):
        (step,) = only(imported(tmp_path, spec("find"), document)).transitions
        assert step.result.observation == "#7"


def test_a_call_without_a_result_is_reported_with_its_observation(tmp_path: Path) -> None:
    rows = [*calls("TOOL"), observation("find", "TOOL", 5, input={"q": "Ann"}, output=None)]
    report = imported(tmp_path, spec("find"), trace(rows))
    assert steps(report.trajectories[0]) == EXPECTED
    (left_out,) = report.left_out
    assert left_out.where == "file.jsonl, line 1, run TOOL-5"
    assert left_out.reason == "the call of 'find' has no result"


def test_tool_definitions_come_from_the_request_or_from_among_the_messages(tmp_path: Path) -> None:
    between = [ASKED, {"role": "tool", "content": DEFINITION}]
    of_langchain = observation(
        "ChatModel", "GENERATION", 0, input=between, output={"role": "assistant", "content": "7"}
    )
    for rows in (generations(tools=[DEFINITION]), [of_langchain]):
        (tmp_path / "trace.json").write_text(json.dumps(trace(rows)))
        found = [found for _, found in read_file(tmp_path / "trace.json")]
        assert defined_tools(found)[0] == [{"name": "find", "inputSchema": {"type": "object"}}]


def test_a_trace_with_only_the_ids_of_its_observations_is_reported_with_advice(tmp_path: Path) -> None:
    report = imported(tmp_path, spec("find"), {"id": "t", "observations": ["o-1", "o-2"]}, trace(ROWS))
    assert len(report.trajectories) == 1
    assert [skipped.reason for skipped in report.skipped] == [
        "has no observations: export each trace together with its observations"
    ]


def test_a_trace_without_a_tool_call_is_reported(tmp_path: Path) -> None:
    said = observation("chat", "GENERATION", 0, input=[ASKED], output="Hello.")
    report = imported(tmp_path, spec("find"), trace([said]))
    assert [(one.where, one.reason) for one in report.skipped] == [
        ("file.jsonl, line 1, trace t", "has no tool call with a result")
    ]


def test_calls_keep_their_order_and_the_trace_stays_the_first_if_a_time_cannot_be_read(tmp_path: Path) -> None:
    rows = [observation("find", "TOOL", second, input={"q": second}, output="#7") for second in (1, 2, 3)]
    rows[1]["startTime"] = "two seconds past ten"
    trajectory = only(imported(tmp_path, spec("find"), trace(rows, input="Who is Mia?")))
    assert trajectory.task.instruction == "Who is Mia?"
    assert [arguments["q"] for _, arguments, _ in steps(trajectory)] == [1, 2, 3]
