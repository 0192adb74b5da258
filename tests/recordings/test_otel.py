"""Spans of pydantic-ai and the OpenTelemetry SDK in both JSON forms, and hand-written spans for the other cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from importer_stage import imported, only, spec, steps

from dreamgym.recordings.importers import read_file
from dreamgym.recordings.importers.folder import defined_tools
from dreamgym.types import JsonObject, StopReason

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


def traced(*, content: bool) -> list[ReadableSpan]:
    """The spans of one real run of a pydantic-ai agent with a scripted model."""
    from traced_pydantic_ai import traced

    return traced(content=content)


@pytest.fixture(scope="module")
def spans() -> list[ReadableSpan]:
    return traced(content=True)


def value(plain: Any) -> JsonObject:
    """A plain value as OTLP's AnyValue."""
    kinds = {bool: "boolValue", int: "intValue", float: "doubleValue", str: "stringValue"}
    if isinstance(plain, list | tuple):
        return {"arrayValue": {"values": [value(item) for item in plain]}}
    return {kinds[type(plain)]: str(plain) if type(plain) is int else plain}


def otlp(spans: list[ReadableSpan]) -> JsonObject:
    """The spans as an OTLP/JSON export, in the protocol's JSON mapping."""
    rows: list[Any] = [
        {
            "traceId": f"{span.context.trace_id:032x}",
            "spanId": f"{span.context.span_id:016x}",
            "parentSpanId": f"{span.parent.span_id:016x}" if span.parent else "",
            "name": span.name,
            "startTimeUnixNano": str(span.start_time),
            "endTimeUnixNano": str(span.end_time),
            "attributes": [{"key": key, "value": value(plain)} for key, plain in (span.attributes or {}).items()],
            "status": {"code": span.status.status_code.value},
        }
        for span in spans
        if span.context
    ]
    return {"resourceSpans": [{"scopeSpans": [{"spans": rows}]}]}


EXPECTED = [("find", {"name": "Mia"}, '{"id":7}'), ("find", {"name": "Bob"}, "no such person")]


def test_the_sdks_own_json_gives_the_run_with_its_errors_and_its_answer(
    spans: list[ReadableSpan], tmp_path: Path
) -> None:
    report = imported(tmp_path, spec("find"), *(span.to_json() for span in spans))
    trajectory = only(report)
    assert report.formats == {"otel": 1}
    assert (trajectory.task.instruction, trajectory.answer) == ("Who is Mia?", "Mia is number 7.")
    assert trajectory.stop_reason is StopReason.FINISHED
    assert steps(trajectory) == EXPECTED
    assert [step.result.is_error for step in trajectory.transitions] == [False, True]


def test_an_otlp_export_gives_the_same_trajectory(spans: list[ReadableSpan], tmp_path: Path) -> None:
    from_sdk = only(imported(tmp_path, spec("find"), *(span.to_json() for span in spans)))
    assert only(imported(tmp_path, spec("find"), otlp(spans))) == from_sdk


def test_without_tool_spans_the_messages_of_the_model_are_read(spans: list[ReadableSpan], tmp_path: Path) -> None:
    others = [span for span in spans if not span.name.startswith("execute_tool")]
    trajectory = only(imported(tmp_path, spec("find"), otlp(others)))
    assert [step[:2] for step in steps(trajectory)] == [step[:2] for step in EXPECTED]
    assert trajectory.answer == "Mia is number 7."


def test_a_trace_without_content_is_reported_with_the_setting_to_switch_on(tmp_path: Path) -> None:
    report = imported(tmp_path, spec("find"), otlp(traced(content=False)))
    (skipped,) = report.skipped
    assert "its tool calls carry no content: switch on the recording of gen_ai.tool.call.arguments" in skipped.reason


def test_tool_definitions_are_read_from_the_spans(spans: list[ReadableSpan], tmp_path: Path) -> None:
    (tmp_path / "spans.json").write_text(json.dumps(otlp(spans)))
    tools, _ = defined_tools(found for _, found in read_file(tmp_path / "spans.json"))
    assert [tool["name"] for tool in tools] == ["find"]
    schema = tools[0]["inputSchema"]
    assert isinstance(schema, dict)
    assert schema["required"] == ["name"]


def span(span_id: str, parent: str = "", *, start: int = 0, failed: bool = False, **attributes: Any) -> JsonObject:
    names = {
        "op": "operation.name",
        "tool": "tool.name",
        "id": "tool.call.id",
        "said": "input.messages",
        "output": "output.messages",
        "conversation": "conversation.id",
        "arguments": "tool.call.arguments",
        "result": "tool.call.result",
    }
    pairs: list[Any] = [{"key": f"gen_ai.{names[key]}", "value": value(plain)} for key, plain in attributes.items()]
    return {
        "traceId": "t",
        "spanId": span_id,
        "parentSpanId": parent,
        "startTimeUnixNano": start,
        "endTimeUnixNano": start,
        "attributes": pairs,
        "status": {"code": 2 if failed else 0, "message": "it broke" if failed else ""},
    }


def tool(span_id: str, parent: str = "", **more: Any) -> JsonObject:
    return span(span_id, parent, **{"op": "execute_tool", "tool": "find", "arguments": "{}", "result": "#7", **more})


def test_a_span_that_was_sent_twice_is_one_step(tmp_path: Path) -> None:
    report = imported(tmp_path, spec("find"), tool("1"), tool("1"), tool("2", start=5))
    assert len(only(report).transitions) == 2


def test_tool_calls_belong_to_the_conversation_that_a_model_call_of_their_trace_names(tmp_path: Path) -> None:
    asked = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "Who?"}]}])
    chat: dict[str, Any] = {"op": "chat", "said": asked, "conversation": "c-1"}
    report = imported(
        tmp_path, spec("find"), span("1", **chat), tool("2", start=1), span("3", start=2, **chat), tool("4", start=3)
    )
    episode = only(report)
    assert (episode.task.instruction, len(episode.transitions)) == ("Who?", 2)


def test_a_call_that_framework_and_mcp_client_both_traced_is_one_step(tmp_path: Path) -> None:
    report = imported(tmp_path, spec("find"), tool("1"), tool("2", "1"), tool("3", start=5))
    assert len(only(report).transitions) == 2


def test_each_outermost_agent_run_is_an_episode_of_its_own(tmp_path: Path) -> None:
    runs = [span("a", op="invoke_agent"), span("b", "a", op="invoke_agent"), span("c", op="invoke_agent")]
    report = imported(
        tmp_path, spec("find"), *runs, tool("1", "a"), tool("2", "b", start=1), tool("3", "c", result="x")
    )
    assert sorted(len(trajectory.transitions) for trajectory in report.trajectories) == [1, 2]


def test_an_mcp_result_keeps_its_error_and_its_structure(tmp_path: Path) -> None:
    result = {"content": [{"type": "text", "text": "no"}], "isError": True, "structuredContent": {"a": 1}}
    step = only(imported(tmp_path, spec("find"), tool("1", result=json.dumps(result)))).transitions[0]
    assert (step.result.observation, step.result.is_error, step.result.structured) == ("no", True, {"a": 1})


def test_a_failed_call_without_a_result_answers_with_its_status(tmp_path: Path) -> None:
    row = span("1", op="execute_tool", tool="find", arguments="{}", failed=True)
    step = only(imported(tmp_path, spec("find"), row)).transitions[0]
    assert (step.result.observation, step.result.is_error) == ("it broke", True)


def messages(*results: tuple[str, str]) -> str:
    """A conversation with calls of `find`, each with its id, and their results."""
    said: list[Any] = [{"role": "user", "parts": [{"type": "text", "content": "go"}]}]
    for call_id, result in results:
        call = {"type": "tool_call", "id": call_id, "name": "find", "arguments": {}}
        answer = {"type": "tool_call_response", "id": call_id, "result": result}
        said += [{"role": "assistant", "parts": [call]}, {"role": "user", "parts": [answer]}]
    return json.dumps(said)


@pytest.mark.parametrize("ids", [{"id": "b"}, {}])
def test_a_failed_call_without_a_result_answers_what_the_agent_read(ids: dict[str, str], tmp_path: Path) -> None:
    failed = span("2", start=2, op="execute_tool", tool="find", arguments="{}", failed=True, **ids)
    model = span("3", start=3, op="chat", said=messages(("a", "#7"), ("b", "please try again")))
    first, second = only(imported(tmp_path, spec("find"), tool("1", start=1), failed, model)).transitions
    assert (first.result.observation, first.result.is_error) == ("#7", False)
    assert (second.result.observation, second.result.is_error) == ("please try again", True)


def test_a_failed_call_answers_with_its_status_if_it_is_not_certain_what_the_agent_read(tmp_path: Path) -> None:
    failed = span("2", start=2, op="execute_tool", tool="find", arguments="{}", failed=True)
    model = span("3", start=3, op="chat", said=messages(("a", "of an earlier run"), ("b", "#7"), ("c", "try again")))
    first, second = only(imported(tmp_path, spec("find"), tool("1", start=1), failed, model)).transitions
    assert (first.result.observation, second.result.observation) == ("#7", "it broke")


@pytest.mark.parametrize("last", [{}, {"said": messages(("a", "#7"))}])
@pytest.mark.parametrize("first", [{}, {"said": messages()}])
def test_the_answer_is_read_from_a_last_model_call_with_or_without_its_input(
    first: dict[str, Any], last: dict[str, Any], tmp_path: Path
) -> None:
    output = json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "Number 7."}]}])
    call = {"type": "tool_call", "id": "a", "name": "find", "arguments": {}}
    asked = json.dumps([{"role": "assistant", "parts": [call]}])
    models = [
        span("1", start=1, op="chat", output=asked, **first),
        span("3", start=3, op="chat", output=output, **last),
    ]
    found = only(imported(tmp_path, spec("find"), models[0], tool("2", start=2, id="a"), models[1]))
    assert (found.answer, found.stop_reason, steps(found)) == ("Number 7.", StopReason.FINISHED, [("find", {}, "#7")])
    assert found.task.instruction == ("go" if first or last else "")


def test_a_call_that_another_tool_made_is_left_out_and_reported(tmp_path: Path) -> None:
    rows = [tool("1"), span("2", "1", start=1, op="chat"), tool("3", "2", start=2, tool="query"), tool("4", "3")]
    report = imported(tmp_path, spec("find", "query"), *rows)
    assert [step[0] for step in steps(report.trajectories[0])] == ["find"]
    assert [one.reason for one in report.left_out] == [
        "the call of 'query' cannot be used: another tool made it, not the agent"
    ]


def test_a_call_that_another_tool_made_does_not_let_the_messages_of_earlier_runs_count(tmp_path: Path) -> None:
    rows = [tool("1", start=1), tool("2", "1", start=2, tool="query")]
    model = span("3", start=3, op="chat", said=messages(("a", "of an earlier run"), ("b", "#7")))
    report = imported(tmp_path, spec("find", "query"), *rows, model)
    assert steps(report.trajectories[0]) == [("find", {}, "#7")]


def test_spans_that_are_each_others_parent_do_no_harm(tmp_path: Path) -> None:
    report = imported(tmp_path, spec("find"), tool("1", "2", tool="find"), tool("2", "1", tool="fly"))
    assert len(report.skipped) + len(report.trajectories) == 1


@pytest.mark.parametrize(
    "odd", [{"startTimeUnixNano": True}, {"attributes": [{"key": "a", "value": {"intValue": "--5"}}]}]
)
def test_a_span_with_a_number_that_is_none_does_not_stop_the_import(odd: JsonObject, tmp_path: Path) -> None:
    span = {"traceId": "u", "spanId": "1", "attributes": []}
    report = imported(tmp_path, spec("find"), {**span, **odd}, tool("1", tool="find"))
    assert len(report.trajectories) == 1


def test_spans_of_other_kinds_are_reported(tmp_path: Path) -> None:
    report = imported(tmp_path, spec("find"), {"traceId": "t", "spanId": "1", "attributes": []})
    assert report.skipped[0].reason == "none of its 1 spans has gen_ai attributes"
