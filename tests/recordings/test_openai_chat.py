"""Chat messages with tool calls become steps, and every call that cannot be used is reported."""

from pathlib import Path

from importer_stage import imported, only, spec, steps
from pydantic import JsonValue

from dreamgym.recordings.importers.messages import openai_tools
from dreamgym.types import JsonObject, Source, StopReason

USER: JsonObject = {"role": "user", "content": "Is Mia there?"}
DONE: JsonObject = {"role": "assistant", "content": "Yes."}


def asks(*calls: tuple[str, str, str]) -> JsonObject:
    """An assistant message with calls of (id, tool, arguments)."""
    listed: list[JsonValue] = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in calls
    ]
    return {"role": "assistant", "content": None, "tool_calls": listed}


def says(call_id: str, content: JsonValue) -> JsonObject:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def test_a_conversation_becomes_an_instruction_steps_and_an_answer(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "be kind"}, USER, asks(("1", "find", '{"q": "Mia"}')), says("1", "#7"), DONE]
    trajectory = only(imported(tmp_path, spec("find"), {"messages": chat}))
    assert trajectory.task.instruction == "Is Mia there?"
    assert steps(trajectory) == [("find", {"q": "Mia"}, "#7")]
    assert (trajectory.answer, trajectory.stop_reason) == ("Yes.", StopReason.FINISHED)
    assert (trajectory.final_reward, trajectory.source) == (None, Source.IMPORTED)


def test_a_step_starts_where_the_step_before_ended(tmp_path: Path) -> None:
    chat = [USER, asks(("1", "find", "{}")), says("1", "#7"), asks(("2", "open", "{}")), says("2", "ok"), DONE]
    transitions = only(imported(tmp_path, spec("find", "open"), chat)).transitions
    assert [(step.state, step.next_state) for step in transitions] == [("", "#7"), ("#7", "ok")]


def test_parallel_calls_are_matched_by_id_and_keep_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    chat = [USER, asks(("a", "find", '{"q":1}'), ("b", "find", '{"q":2}')), says("b", "two"), says("a", "one"), DONE]
    trajectory = only(imported(tmp_path, spec("find"), chat))
    assert steps(trajectory) == [("find", {"q": 1}, "one"), ("find", {"q": 2}, "two")]


def test_a_result_goes_to_the_call_with_its_id_before_one_without_an_id(tmp_path: Path) -> None:
    without: JsonObject = {"function": {"name": "find", "arguments": '{"q":1}'}}
    turn = asks(("b", "find", '{"q":2}'))
    turn["tool_calls"] = [without, *(turn["tool_calls"] if isinstance(turn["tool_calls"], list) else [])]
    trajectory = only(imported(tmp_path, spec("find"), [USER, turn, says("b", "two"), says("a", "one"), DONE]))
    assert steps(trajectory) == [("find", {"q": 1}, "one"), ("find", {"q": 2}, "two")]


def test_a_result_with_a_reused_id_belongs_to_the_call_before_it(tmp_path: Path) -> None:
    chat = [USER, asks(("a", "find", "{}")), says("a", "one"), asks(("a", "open", "{}")), says("a", "two"), DONE]
    assert [step[2] for step in steps(only(imported(tmp_path, spec("find", "open"), chat)))] == ["one", "two"]


def test_the_older_function_call_is_read_too(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "find", "arguments": '{"q": "Mia"}'}}
    chat = [USER, call, {"role": "function", "name": "find", "content": "#7"}, DONE]
    assert steps(only(imported(tmp_path, spec("find"), chat))) == [("find", {"q": "Mia"}, "#7")]


def test_only_calls_whose_arguments_are_not_a_json_object_are_left_out(tmp_path: Path) -> None:
    chat = [USER, asks(("a", "find", "{bad"), ("b", "find", "[]"), ("c", "find", "{}")), says("c", "#7"), DONE]
    report = imported(tmp_path, spec("find"), chat)
    assert steps(report.trajectories[0]) == [("find", {}, "#7")]
    first, second = report.left_out
    assert first.where == "file.jsonl, line 1, message 1"
    assert "the arguments of the call of 'find' are not valid JSON" in first.reason
    assert second.reason == "the arguments of the call of 'find' are not a JSON object, but list"


def test_calls_without_a_result_and_results_without_a_call_are_reported(tmp_path: Path) -> None:
    chat = [USER, asks(("a", "find", "{}"), ("b", "find", "{}")), says("b", "#7"), says("x", "?"), DONE]
    report = imported(tmp_path, spec("find"), chat)
    assert len(report.trajectories[0].transitions) == 1
    assert {skipped.reason for skipped in report.left_out} == {
        "the call of 'find' has no result",
        "a tool result without its call (id 'x', tool None)",
    }


def test_a_trajectory_with_tools_that_the_environment_lacks_is_left_out_and_they_are_reported(tmp_path: Path) -> None:
    good = [USER, asks(("a", "find", "{}")), says("a", "#7"), DONE]
    bad = [USER, asks(("a", "fly", "{}"), ("b", "swim\x1b[2J", "{}")), says("a", "up"), says("b", "in"), DONE]
    report = imported(tmp_path, spec("find"), bad, good)
    assert len(report.trajectories) == 1
    (skipped,) = report.skipped
    assert (skipped.where, skipped.reason) == (
        "file.jsonl, line 1",
        r"calls tools that environment 'crm' does not have: 'fly', 'swim\x1b[2J'",
    )


def test_words_between_agent_and_user_are_steps_if_the_environment_has_a_tool_for_them(tmp_path: Path) -> None:
    chat = [USER, {"role": "assistant", "content": "Which?"}, {"role": "user", "content": "Mia Li"}]
    chat += [asks(("a", "find", "{}")), says("a", "#7"), DONE]
    spoken = only(imported(tmp_path, spec("find", "respond"), chat))
    assert steps(spoken) == [("respond", {"content": "Which?"}, "Mia Li"), ("find", {}, "#7")]
    silent = imported(tmp_path, spec("find"), chat)
    assert (steps(silent.trajectories[0]), silent.replies) == ([("find", {}, "#7")], 1)


def test_content_of_several_parts_keeps_its_parts(tmp_path: Path) -> None:
    picture: JsonObject = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    chat = [USER, asks(("a", "draw", "{}")), says("a", [{"type": "text", "text": "here"}, picture]), DONE]
    result = only(imported(tmp_path, spec("draw"), chat)).transitions[0].result
    assert result.observation == "here\n[image image/png]"
    assert result.content == [{"type": "text", "text": "here"}, picture]


def test_a_conversation_without_a_usable_call_is_reported(tmp_path: Path) -> None:
    report = imported(tmp_path, spec("find"), [USER, DONE])
    assert [skipped.reason for skipped in report.skipped] == ["has no tool call with a result"]


def test_calls_in_anthropics_form_are_reported_as_such(tmp_path: Path) -> None:
    call: JsonObject = {"type": "tool_use", "id": "1", "name": "find", "input": {}}
    result: JsonObject = {"type": "tool_result", "tool_use_id": "1", "content": "#7"}
    chat: list[JsonObject] = [USER, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    report = imported(tmp_path, spec("find"), chat)
    assert report.trajectories == []
    assert "content blocks of Anthropic's Messages API" in report.skipped[0].reason


def test_definitions_are_taken_as_they_are() -> None:
    schema: JsonObject = {"type": "object", "properties": {"q": {"type": "string"}}, "x-unknown": 1}
    definitions = [{"type": "function", "function": {"name": "find", "description": "d", "parameters": schema}}, {}, 3]
    assert openai_tools(definitions) == ({"name": "find", "description": "d", "inputSchema": schema},)
