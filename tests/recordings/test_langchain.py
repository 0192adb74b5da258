"""Messages that langchain-core itself wrote are read in each of its forms, with the same outcome."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from importer_stage import imported, only, spec, steps
from langchain_core.load import dumps
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    messages_to_dict,
)

MESSAGES: list[AnyMessage] = [
    SystemMessage("be kind"),
    HumanMessage("Who is Mia?"),
    AIMessage(
        "let me look",
        tool_calls=[{"name": "find", "args": {"q": "Mia"}, "id": "a"}, {"name": "find", "args": {}, "id": "b"}],
    ),
    ToolMessage("no query", tool_call_id="b", name="find", status="error"),
    ToolMessage(
        [{"type": "text", "text": "#7"}, {"type": "image", "base64": "aGk=", "mime_type": "image/png"}],
        tool_call_id="a",
        artifact={"structured_content": {"id": 7}},
    ),
    AIMessage([{"type": "text", "text": "Number 7."}]),
]

FORMS: dict[str, Callable[[list[AnyMessage]], Any]] = {
    "messages_to_dict": messages_to_dict,
    "dumps": lambda messages: json.loads(dumps(messages)),
    "model_dump": lambda messages: [message.model_dump() for message in messages],
    "a state": lambda messages: {"messages": [message.model_dump() for message in messages], "remaining_steps": 3},
    "a dumped state": lambda messages: json.loads(dumps({"messages": messages})),
    "a thread's state": lambda messages: {"values": {"messages": messages_to_dict(messages)}, "next": []},
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_steps_errors_and_answer(form: str, tmp_path: Path) -> None:
    report = imported(tmp_path, spec("find"), FORMS[form](MESSAGES))
    trajectory = only(report)
    assert report.formats == {"langchain": 1}
    assert trajectory.task.instruction == "Who is Mia?"
    assert steps(trajectory) == [("find", {"q": "Mia"}, "#7\n[image image/png]"), ("find", {}, "no query")]
    first, second = (step.result for step in trajectory.transitions)
    assert first.content[1] == {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    assert (first.structured, first.is_error, second.is_error) == ({"id": 7}, False, True)
    assert trajectory.answer == "Number 7."


def test_calls_that_langchain_marked_invalid_are_left_out_with_its_reason(tmp_path: Path) -> None:
    invalid = AIMessage(
        "",
        tool_calls=[{"name": "find", "args": {}, "id": "a"}],
        invalid_tool_calls=[{"name": "find", "args": "{bad", "id": "b", "error": "no JSON"}],
    )
    answers = [ToolMessage("#7", tool_call_id="a"), ToolMessage("fix it", tool_call_id="b")]
    report = imported(tmp_path, spec("find"), messages_to_dict([HumanMessage("go"), invalid, *answers]))
    assert len(report.trajectories[0].transitions) == 1
    (left_out,) = report.left_out
    assert left_out.reason == "the call of 'find' cannot be used: LangChain marked it invalid: no JSON"


def test_messages_that_only_remove_others_do_no_harm(tmp_path: Path) -> None:
    dumped = messages_to_dict([RemoveMessage(id="1"), *MESSAGES])
    assert only(imported(tmp_path, spec("find"), dumped)).answer == "Number 7."
