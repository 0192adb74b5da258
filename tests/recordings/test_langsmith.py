"""Runs that LangChain's own tracer wrote, flat and nested, and hand-written runs for the other cases."""

import json
from pathlib import Path
from typing import Any

import pytest
from importer_stage import imported, only, spec, steps

from dreamgym.recordings.importers import read_file
from dreamgym.recordings.importers.folder import defined_tools
from dreamgym.types import JsonObject, StopReason


@pytest.fixture(scope="module")
def rows() -> list[JsonObject]:
    """The runs of one agent: a call that succeeds, one that fails, and an answer."""
    from traced_langchain import traced

    return traced()


def nested(rows: list[JsonObject], row: JsonObject) -> JsonObject:
    """The run with its children inside, and without the fields that show its trace and its parent."""
    children = [nested(rows, child) for child in rows if child["parent_run_id"] == row["id"]]
    own = {key: value for key, value in row.items() if key not in ("trace_id", "parent_run_id", "dotted_order")}
    return {**own, "child_runs": list(children)}


def as_text(row: JsonObject) -> JsonObject:
    """A row of the bulk export whose columns contain JSON as text."""
    columns = ("inputs", "outputs", "extra")
    return {key: json.dumps(value) if key in columns else value for key, value in row.items()}


FORMS = ["flat", "any order", "twice", "a list", "nested", "text columns", "a page", "parents alone"]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_traced_run_gives_its_steps_its_error_and_its_answer(
    form: str, rows: list[JsonObject], tmp_path: Path
) -> None:
    parents = [{key: row[key] for key in row if key not in ("trace_id", "dotted_order")} for row in rows]
    documents: dict[str, list[Any]] = {
        "flat": rows,
        "any order": rows[::-1],
        "twice": [*rows, *rows],
        "a list": [rows],
        "nested": [nested(rows, rows[0])],
        "text columns": [as_text(row) for row in rows],
        "a page": [{"runs": rows, "cursors": {}}],
        "parents alone": parents,
    }
    report = imported(tmp_path, spec("find"), *documents[form])
    trajectory = only(report)
    assert report.formats == {"langsmith": 1}
    assert (trajectory.task.instruction, trajectory.answer) == ("Who is Mia?", "Number 7.")
    assert steps(trajectory) == [("find", {"q": "Mia"}, '{"id": 7}'), ("find", {"q": "Bob"}, "no Bob here")]
    assert [step.result.is_error for step in trajectory.transitions] == [False, True]
    assert trajectory.stop_reason is StopReason.FINISHED


def test_without_tool_runs_the_messages_of_the_last_model_call_are_read(rows: list[JsonObject], tmp_path: Path) -> None:
    told = [row for row in rows if row["run_type"] != "tool"]
    trajectory = only(imported(tmp_path, spec("find"), *told))
    assert steps(trajectory) == [("find", {"q": "Mia"}, '{"id": 7}'), ("find", {"q": "Bob"}, "no Bob here")]
    assert [step.result.is_error for step in trajectory.transitions] == [False, True]


def test_without_model_runs_the_state_of_the_outermost_run_is_read(rows: list[JsonObject], tmp_path: Path) -> None:
    trajectory = only(imported(tmp_path, spec("find"), rows[0]))
    assert (trajectory.task.instruction, len(trajectory.transitions)) == ("Who is Mia?", 2)


def test_tool_definitions_are_read_from_the_runs(rows: list[JsonObject], tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tools, differing = defined_tools(found for _, found in read_file(tmp_path / "runs.jsonl"))
    assert [tool["name"] for tool in tools] == ["find"]
    assert tools[0]["inputSchema"] == {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    assert differing == {}


def run(run_id: str, kind: str = "tool", parent: str | None = "root", **fields: object) -> JsonObject:
    """A run as it is documented; runs start in the order of their ids."""
    whole: JsonObject = json.loads(json.dumps({
        "id": run_id, "name": "find", "run_type": kind, "inputs": {"q": run_id}, "outputs": {"output": "#7"},
        "parent_run_id": parent, "trace_id": "root", "start_time": f"2026-11-01T10:00:00.{ord(run_id[0]):06}Z",
        **fields,
    }))  # fmt: skip
    return whole


ROOT = run("root", "chain", None, inputs={"question": "Who is Mia?"}, outputs={"output": "Mia is 7."}, start_time=0)


def test_the_result_of_a_failed_run_is_its_error_without_the_traceback(tmp_path: Path) -> None:
    told = "ValueError('no such')Traceback (most recent call last):\n  File \"/home/me/crm.py\", line 1"
    report = imported(tmp_path, spec("find"), ROOT, run("a", outputs=None, error=told))
    (step,) = only(report).transitions
    assert (step.result.observation, step.result.is_error) == ("ValueError('no such')", True)


def test_an_error_has_the_text_that_the_agent_read_if_the_messages_contain_it(tmp_path: Path) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage, messages_to_dict

    told = messages_to_dict([HumanMessage("go"), ToolMessage("Please mend your mistakes.", tool_call_id="c")])
    model = run("z", "llm", inputs={"messages": [told]}, outputs=None)
    failed = run("a", outputs=None, error="ValueError('no such')", extra={"tool_call_id": "c"})
    (step,) = only(imported(tmp_path, spec("find"), ROOT, failed, model)).transitions
    assert (step.result.observation, step.result.is_error) == ("Please mend your mistakes.", True)


def test_the_outermost_run_gives_question_and_answer_if_no_model_was_traced(tmp_path: Path) -> None:
    trajectory = only(imported(tmp_path, spec("find"), ROOT, run("a")))
    assert (trajectory.task.instruction, trajectory.answer) == ("Who is Mia?", "Mia is 7.")


def test_a_call_without_a_result_and_one_within_another_tool_are_reported(tmp_path: Path) -> None:
    rows = [ROOT, run("a"), run("b", outputs=None), run("c", parent="a", name="query")]
    report = imported(tmp_path, spec("find"), *rows)
    assert len(report.trajectories[0].transitions) == 1
    assert [(one.where, one.reason) for one in report.left_out] == [
        ("file.jsonl, line 3, run b", "the call of 'find' has no result"),
        ("file.jsonl, line 4, run c", "the call of 'query' cannot be used: another tool made it, not the agent"),
    ]


@pytest.mark.parametrize(("answer", "told"), [({}, "{}"), ([], "[]")])
def test_an_empty_object_or_list_is_an_answer(answer: object, told: str, tmp_path: Path) -> None:
    (step,) = only(imported(tmp_path, spec("find"), ROOT, run("a", outputs={"output": answer}))).transitions
    assert step.result.observation == told


def test_a_call_with_arguments_as_python_text_is_left_out(tmp_path: Path) -> None:
    rows = [
        run("a", inputs={"input": "{'q': 1}"}),
        run("b", inputs={"input": '{"q": 1}'}),
        run("c", inputs={"input": "x"}),
    ]
    report = imported(tmp_path, spec("find"), ROOT, *rows)
    assert [step.action.arguments for step in report.trajectories[0].transitions] == [{"q": 1}, {"input": "x"}]
    (left_out,) = report.left_out
    assert "its arguments were recorded as Python text" in left_out.reason


def test_each_trace_is_an_episode_and_only_faulty_lines_are_skipped(tmp_path: Path) -> None:
    other = {**run("d", parent=None), "trace_id": "d"}
    report = imported(tmp_path, spec("find"), ROOT, run("a"), "oh", {"id": "x", "name": "find"}, other)
    assert len(report.trajectories) == 2
    assert {skipped.where for skipped in report.skipped} == {"file.jsonl, line 3", "file.jsonl, line 4"}


def test_runs_that_are_each_others_parent_do_no_harm(tmp_path: Path) -> None:
    ring = [run("a", parent="b", trace_id=None), run("b", parent="a", trace_id=None)]
    report = imported(tmp_path, spec("find"), *ring)
    assert (report.trajectories, len(report.skipped)) == ([], 1)


def test_a_call_whose_id_is_used_again_does_not_get_the_answer_of_the_other_call(tmp_path: Path) -> None:
    from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage, messages_to_dict

    said: list[AnyMessage] = [HumanMessage("Who is Mia?")]
    for query, result in (("", "Error: q must not be empty"), ("Mia", "Mia Li, id 7")):
        said += [AIMessage("", tool_calls=[{"name": "find", "args": {"q": query}, "id": "call_0"}])]
        said += [ToolMessage(result, tool_call_id="call_0")]
    model = run("z", "llm", inputs={"messages": [messages_to_dict(said)]}, outputs=None)
    failed = run("a", inputs={"q": ""}, outputs=None, error="q must not be empty", extra={"tool_call_id": "call_0"})
    found = run("b", inputs={"q": "Mia"}, outputs={"output": "Mia Li, id 7"}, extra={"tool_call_id": "call_0"})
    steps = only(imported(tmp_path, spec("find"), ROOT, failed, found, model)).transitions
    assert [step.result.observation for step in steps] == ["Error: q must not be empty", "Mia Li, id 7"]


@pytest.mark.parametrize("time", ["2026-11-01 10:00:02 UTC", None, "2026-11-01T10:00:02"])
def test_calls_keep_their_order_if_a_time_cannot_be_read_or_has_no_zone(time: str | None, tmp_path: Path) -> None:
    first, last = (run(name, start_time=f"2026-11-01T10:00:0{at}Z") for name, at in (("a", 1), ("c", 3)))
    found = steps(only(imported(tmp_path, spec("find"), ROOT, first, run("b", start_time=time), last)))
    assert [arguments["q"] for _, arguments, _ in found] == ["a", "b", "c"]


def test_calls_without_a_readable_time_are_sorted_by_their_dotted_order(tmp_path: Path) -> None:
    late, early = (
        run(name, start_time="", dotted_order=f"20261101T10000{at}Zroot") for name, at in (("a", 2), ("b", 1))
    )
    found = steps(only(imported(tmp_path, spec("find"), late, early)))
    assert [arguments["q"] for _, arguments, _ in found] == ["b", "a"]


def test_a_run_with_the_status_error_is_a_tool_error(tmp_path: Path) -> None:
    (step,) = only(imported(tmp_path, spec("find"), ROOT, run("a", status="error"))).transitions
    assert (step.result.observation, step.result.is_error) == ("#7", True)
