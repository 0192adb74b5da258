"""Each fault of a recording gives one message, and the good part of the recording is kept."""

import json
import math
import os
from pathlib import Path

import pytest
from folder_stage import FIND, GET, SERVER, Tape, contents, crm, trajectories

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.recordings.folder import build_folder, update_folder
from dreamgym.runs import seed
from dreamgym.types import JsonObject


@pytest.mark.parametrize("cut", ['{"kind": "exch', '{"kind": "note", "run": "a", "task": "\xc3'])
def test_a_crash_that_cuts_off_the_last_line_loses_only_that_line(tmp_path: Path, cut: str) -> None:
    folder = crm(tmp_path)
    Tape(folder, "a").hello().call("get", "Ada", id="x1").raw(cut)
    assert build_folder(folder).messages == ("a: line 4 was cut off by a crash; it is left out",)
    assert len(trajectories(folder)["crm-a"].transitions) == 1


def test_a_corrupt_line_in_the_middle_is_the_only_line_lost(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    Tape(folder, "a").hello().call("get", "Ada", id="x1").raw("\x00garbage\n").call("get", "Bob", id="x2")
    (message,) = build_folder(folder).messages
    assert message.startswith("a: line 4 is not a valid event (Invalid JSON")
    assert [step.result.observation for step in trajectories(folder)["crm-a"].transitions] == ["Ada", "Bob"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({}, "the server never answered"),
        ({"error": {"code": -32000, "message": "Connection closed: it died"}}, "the connection to the server was lost"),
        ({"result": {"task": {"taskId": "1"}}}, "the answer is not a tool result"),
        ({"result": {"inputRequests": {}}}, "the server asked for more input"),
        ({"result": {"content": [], "structuredContent": {"n": math.inf}}}, "it has NaN or an infinite number"),
    ],
)
def test_a_call_without_an_answer_is_left_out_and_reported(tmp_path: Path, answer: JsonObject, why: str) -> None:
    folder = crm(tmp_path)
    tape = Tape(folder, "a").hello().call("get", "Ada", id="x1")
    tape.exchange("tools/call", {"name": "get", "arguments": {"id": "x2"}}, **answer)
    (message,) = build_folder(folder).messages
    assert message.startswith(f"a: the call of 'get' is left out: {why}")
    assert [step.result.observation for step in trajectories(folder)["crm-a"].transitions] == ["Ada"]


@pytest.mark.parametrize(
    "params", [{}, {"name": ""}, {"name": 3}, *({"name": "get", "arguments": one} for one in ([1], []))]
)
def test_an_invalid_call_is_left_out(tmp_path: Path, params: JsonObject) -> None:
    folder = crm(tmp_path)
    Tape(folder, "a").hello().exchange("tools/call", params, result={"content": []})
    (message,) = build_folder(folder).messages
    assert "is left out" in message
    assert trajectories(folder) == {}


@pytest.mark.anyio
async def test_a_run_whose_labels_contain_a_nul_character_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = crm(tmp_path)
    tape = Tape(folder, "a").hello().call("get", "Ada", id="x1")
    tape.note(task="Who is\x00 x1?", task_id="x\x001", answer="Ada\x00", success=True)
    assert build_folder(folder).messages == ()
    seeded = await seed.read(str(folder), [folder])
    assert (seeded.left_out, capsys.readouterr().err) == (frozenset(), "")
    trajectory = trajectories(folder)["crm-a"]
    assert (trajectory.task.id, trajectory.task.instruction) == ("x\ufffd1", "Who is\ufffd x1?")
    assert (trajectory.answer, trajectory.success) == ("Ada\ufffd", True)


def test_losses_of_the_recorder_are_reported_once_for_each_reason(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    tape = Tape(folder, "a").hello().call("get", "Ada", id="x1")
    for _ in range(2):
        tape.write({"kind": "loss", "reason": "messages came faster than they could be written", "at": 1.0})
    assert build_folder(folder).messages == (
        "a: not recorded (2 times): messages came faster than they could be written",
    )


def test_a_run_whose_calls_went_to_two_server_processes_is_reported(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    result: JsonObject = {"content": [{"type": "text", "text": "Ada"}]}
    for run, sessions in {"a": ("stdio-1", "stdio-1"), "b": ("stdio-2", "stdio-3"), "c": ("http-1", "http-2")}.items():
        tape = Tape(folder, run).hello()
        for session in sessions:
            tape.exchange("tools/call", {"name": "get", "arguments": {"id": "x1"}}, result=result, session=session)
    assert build_folder(folder).messages == (
        "b: 2 server processes answered its calls, which count as one episode: if the server forgets its world when it "
        f"ends, delete {folder / 'recordings' / 'b.jsonl'}",
    )


def test_a_trajectory_with_an_unlisted_tool_is_left_out_unless_the_server_refused_the_call(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    Tape(folder, "a").hello().call("hidden", "it worked", x=1)
    Tape(folder, "b").hello().call("nope", "Unknown tool: nope", is_error=True).call("get", "Ada", id="x1")
    assert build_folder(folder).messages == (
        "a: left out, because the tool list has no 'hidden': record a run that lists it or, if the server refused the "
        "call, delete the call in recordings/a.jsonl",
    )
    assert list(trajectories(folder)) == ["crm-b"]


def test_the_newest_tool_list_of_two_versions_counts_and_runs_that_fit_it_are_kept(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    newer: JsonObject = {**SERVER, "serverInfo": {"name": "crm-server", "version": "2"}}
    Tape(folder, "gone", at=10).hello(GET, FIND).call("find", "unknown find", is_error=True)
    Tape(folder, "old", at=100).hello(GET, FIND).call("get", "Ada", id="x1")
    Tape(folder, "new", at=200).hello(GET, server=newer).call("get", "Ada", id="x1")
    assert build_folder(folder).messages == (
        "recorded with another tool list than the newest one: gone, old; gone: 'find'; a run whose calls all fit the "
        "newest list is kept",
        "gone: left out, because the tool list has no 'find': record a run that lists it or, if the server refused the "
        "call, delete the call in recordings/gone.jsonl",
    )
    assert list(trajectories(folder)) == ["crm-old", "crm-new"]
    spec = EnvironmentSpec.load(folder)
    assert [tool["name"] for tool in spec.tools] == ["get"]
    assert spec.mirror.initialize == newer, "server.json must describe the server that has this tool list"


def test_a_tool_list_that_changes_during_a_run_replaces_the_earlier_one(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    tape = Tape(folder, "a").hello(GET).call("get", "Ada", id="x1")
    tape.exchange("tools/list", {}, result={"tools": [GET, FIND]}).call("find", "x1", who="Ada")
    (message,) = build_folder(folder).messages
    assert message.startswith("recorded with another tool list than the newest one: a;")
    assert len(trajectories(folder)["crm-a"].transitions) == 2
    assert [tool["name"] for tool in EnvironmentSpec.load(folder).tools] == ["get", "find"]


def test_a_tool_list_read_to_its_end_is_preferred_to_a_newer_incomplete_one(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    Tape(folder, "a", at=10).hello(GET, FIND).call("find", "x1", who="Ada")
    Tape(folder, "b").exchange("tools/list", {}, result={"tools": [GET], "nextCursor": "2"}).call("get", id="x1")
    assert build_folder(folder).messages == ()
    assert len(EnvironmentSpec.load(folder).tools) == 2
    (folder / "recordings" / "a.jsonl").unlink()
    assert build_folder(folder).messages == ("no client has read the tool list to its last page: tools may be missing",)


@pytest.mark.parametrize("cursor", ["", None])
def test_a_tool_list_whose_last_cursor_is_empty_is_read_to_its_end(tmp_path: Path, cursor: str | None) -> None:
    folder = crm(tmp_path)
    listed = {"tools": [GET], "nextCursor": cursor}
    Tape(folder, "a").exchange("tools/list", {}, result=listed).call("get", "Ada", id="x1")
    assert build_folder(folder).messages == ()


@pytest.mark.parametrize("tools", [[], [{"name": ""}], [GET, GET], "x", None, [3]])
def test_a_faulty_tool_list_gives_way_to_a_good_one(tmp_path: Path, tools: object) -> None:
    folder = crm(tmp_path)
    Tape(folder, "a", at=10).hello(GET).call("get", "Ada", id="x1")
    Tape(folder, "b").exchange("tools/list", {}, result={"tools": tools}).call("get", "Ada", id="x1")
    (message,) = build_folder(folder).messages
    assert message.startswith("b: the server gave a tool list without tools")
    assert json.loads((folder / "tools.json").read_text()) == {"tools": [GET]}
    assert list(trajectories(folder)) == ["crm-a", "crm-b"]


def test_without_any_tool_list_nothing_is_written_and_tools_json_can_be_written_by_hand(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    Tape(folder, "a").call("get", "Ada", id="x1")
    before = contents(folder)
    with pytest.raises(InvalidInput, match=r"no run in recordings/ lists the tools, and there is no tools.json"):
        build_folder(folder)
    assert contents(folder) == before
    (folder / "tools.json").write_text(json.dumps({"tools": [GET]}))
    assert build_folder(folder).messages == ("no run lists the tools; those in tools.json are used",)
    assert list(trajectories(folder)) == ["crm-a"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('["x"]', 'expected a JSON object, or a list of them, got ["x"]'),
        ("null", "expected a JSON object, or a list of them, got null"),
        ("[" * 100_000, "recursion"),
        ('{"tools": 5}', "an object with a non-empty list 'tools'; got {\"tools\": 5}: write the server's answer"),
        ('{"tools": [{}]}', "every tool needs a name; got"),
    ],
)
def test_a_faulty_tools_json_is_refused_with_what_was_expected(content: str, said: str, tmp_path: Path) -> None:
    folder = crm(tmp_path)
    Tape(folder, "a").call("get", "Ada", id="x1")
    (folder / "tools.json").write_text(content)
    with pytest.raises(InvalidInput) as refusal:
        build_folder(folder)
    assert f"{folder / 'tools.json'}: " in str(refusal.value)
    assert said in str(refusal.value)


def test_a_tool_list_that_cannot_be_used_is_named_if_there_is_no_other(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    Tape(folder, "a").exchange("tools/list", {}, result={"tools": [GET, {"name": ""}]}).call("get", "Ada", id="x1")
    with pytest.raises(InvalidInput, match=r"the tool list of a cannot be used \(expected tools that each have a name"):
        build_folder(folder)


@pytest.mark.parametrize(
    "file", ["env.toml", "environment.id", "tools.json", "recordings/a.jsonl", "recordings/b.jsonl"]
)
def test_a_pipe_or_a_device_in_a_folder_is_refused_before_it_is_read(tmp_path: Path, file: str) -> None:
    folder = crm(tmp_path)
    Tape(folder, "a").hello().call("get", "Ada", id="x1")
    (folder / file).unlink(missing_ok=True)
    os.mkfifo(folder / file)
    for read in (update_folder, EnvironmentSpec.load):
        with pytest.raises(InvalidInput, match=rf"{file}: expected a file, got a pipe or a device: remove it"):
            read(folder)


def test_an_empty_recording_is_reported_and_gives_no_episode(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    Tape(folder, "a").hello().call("get", "Ada", id="x1")
    Tape(folder, "b").raw("")
    Tape(folder, "c").note(task="never begun")
    assert build_folder(folder).messages == ("b: nothing was recorded", "c: nothing was recorded")
    assert list(trajectories(folder)) == ["crm-a"]
