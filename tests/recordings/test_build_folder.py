"""A built folder contains everything good that was recorded, and each fault gives one message."""

import json
from pathlib import Path

import pytest
from folder_stage import FIND, GET, SERVER, Tape, contents, crm, trajectories

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.recordings.folder import build_folder
from dreamgym.tools import Tools
from dreamgym.types import JsonObject, Origin, Source, StopReason, Task, Tier, ToolCall


def test_a_run_becomes_a_trajectory_in_the_order_of_its_calls(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    tape = Tape(folder, "a").hello().call("get", "Ada", id="x1").call("get", "no id", is_error=True, id="x2")
    tape.note(task="Who is x1?", task_id="who").note(answer="Ada", success=True)
    assert build_folder(folder).messages == ()
    (trajectory,) = trajectories(folder).values()
    assert (trajectory.id, trajectory.source) == ("crm-a", Source.REAL)
    assert (trajectory.answer, trajectory.final_reward) == ("Ada", 1.0)
    assert trajectory.stop_reason is StopReason.FINISHED
    first, second = trajectory.transitions
    assert (first.state, first.next_state, second.state) == ("", "Ada", "Ada")
    assert first.action == ToolCall(name="get", arguments={"id": "x1"})
    assert first.result.info == {"started_s": 2.0, "ended_s": 2.5}
    assert second.result.is_error
    assert first.provenance.tier is Tier.REAL
    assert EnvironmentSpec.load(folder).tasks == (trajectory.task,)


def test_parallel_calls_are_listed_in_the_order_in_which_they_began(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    tape = Tape(folder, "a").hello()
    for name, started_at, ended_at in (("get", 1010.0, 1011.0), ("find", 1009.0, 1012.0)):
        result: JsonObject = {"content": [{"type": "text", "text": name}]}
        params: JsonObject = {"name": name, "arguments": {"id": "x"}}
        times = {"started_at": started_at, "ended_at": ended_at}
        tape.write(
            {"kind": "exchange", "session": "s", "method": "tools/call", "params": params, "result": result, **times}
        )
    build_folder(folder)
    steps = trajectories(folder)["crm-a"].transitions
    assert [step.action.name for step in steps] == ["find", "get"]
    assert [step.result.info["ended_s"] for step in steps] == [12.0, 11.0]


@pytest.mark.parametrize(
    ("said", "answer", "reward", "stop"),
    [
        ({}, None, None, StopReason.CLOSED),
        ({"answer": "7"}, "7", None, StopReason.FINISHED),
        ({"success": False}, None, 0.0, StopReason.FINISHED),
    ],
)
def test_an_episode_that_nobody_judged_is_not_counted_as_a_failure(
    tmp_path: Path, said: dict[str, object], answer: str | None, reward: float | None, stop: StopReason
) -> None:
    folder = crm(tmp_path)
    Tape(folder, "a").hello().call("get", id="x1").note(**said)
    build_folder(folder)
    (trajectory,) = trajectories(folder).values()
    assert (trajectory.answer, trajectory.final_reward, trajectory.stop_reason) == (answer, reward, stop)


def test_the_tool_list_keeps_every_field_its_order_and_its_pages(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    first, second = {"nextCursor": "2", "tools": [GET], "z": 1}, {"_meta": {}, "tools": [FIND]}
    Tape(folder, "a").exchange("tools/list", {}, result=first).exchange("tools/list", {"cursor": "2"}, result=second)
    build_folder(folder)
    assert json.dumps(json.loads((folder / "tools.json").read_text())) == json.dumps([first, second])


def test_a_page_of_the_tool_list_that_is_read_again_leads_to_another_page(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    other: JsonObject = {"name": "list", "inputSchema": {"type": "object"}}
    tape = Tape(folder, "a").exchange("tools/list", {}, result={"nextCursor": "2", "tools": [GET]})
    tape.exchange("tools/list", {"cursor": "2"}, result={"tools": [FIND]})
    tape.exchange("tools/list", {}, result={"nextCursor": "3", "tools": [other]})
    tape.exchange("tools/list", {"cursor": "3"}, result={"tools": [GET]})
    build_folder(folder)
    assert [page["tools"] for page in json.loads((folder / "tools.json").read_text())] == [[other], [GET]]


def test_the_server_presentation_holds_handshake_listings_and_lookups(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    tape = Tape(folder, "a").hello()
    tape.exchange("resources/list", {}, result={"resources": [{"uri": "a:b"}]})
    tape.exchange("resources/read", {"uri": "a:b", "_meta": {"progressToken": 1}}, result={"contents": []})
    tape.exchange("prompts/get", {"name": "x"}, error={"code": -32602, "message": "no x"})
    build_folder(folder)
    mirror = EnvironmentSpec.load(folder).mirror
    assert mirror.initialize == SERVER
    assert mirror.listings == {"resources/list": ({"resources": [{"uri": "a:b"}]},)}
    assert [(one.params, one.result, one.error) for one in mirror.lookups] == [
        ({"uri": "a:b"}, {"contents": []}, None),
        ({"name": "x"}, None, {"code": -32602, "message": "no x"}),
    ]


@pytest.mark.parametrize(
    ("unknown", "invalid", "learnt_unknown", "learnt_invalid"),
    [
        (
            "MCP error -32602: Tool nope not found",
            "MCP error -32602: Input validation error: Invalid arguments for tool get: expected string at id",
            "MCP error -32602: Tool {tool} not found",
            "MCP error -32602: Input validation error: Invalid arguments for tool {tool}: {reason}",
        ),
        (
            "Unknown tool: nope",
            "Input validation error: 'id' is a required property",
            "Unknown tool: {tool}",
            "Input validation error: {reason}",
        ),
        ("no", "boom", None, None),
    ],
)
def test_refusals_are_learnt_with_gaps_for_tool_and_reason(
    tmp_path: Path, unknown: str, invalid: str, learnt_unknown: str | None, learnt_invalid: str | None
) -> None:
    folder = crm(tmp_path)
    Tape(folder, "a").hello().call("get", invalid, is_error=True).call("nope", unknown, is_error=True)
    build_folder(folder)
    mirror = EnvironmentSpec.load(folder).mirror
    assert (mirror.unknown_tool, mirror.invalid_arguments) == (learnt_unknown, learnt_invalid)


def test_the_name_of_an_unknown_tool_has_a_gap_only_where_it_is_a_whole_word(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    Tape(folder, "a").hello().call("get", "{}", id="x1").call("know", "Unknown tool: know", is_error=True)
    build_folder(folder)
    assert EnvironmentSpec.load(folder).mirror.unknown_tool == "Unknown tool: {tool}"


def test_the_words_of_a_refusal_are_learnt_by_kind_of_fault(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    said = "MCP error -32602: Input validation error: Invalid arguments for tool get: expected string at id"
    Tape(folder, "a").hello().call("get", said, is_error=True)
    build_folder(folder)
    mirror = EnvironmentSpec.load(folder).mirror
    assert (list(mirror.fault_words.values()), mirror.tells_all_faults) == (["expected string at {field}"], False)


def test_exactly_the_recorded_call_is_refused_in_the_recorded_words(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    said = "1 validation error for getArguments\nid\n  Field required [type=missing, input_value={}, input_type=dict]"
    odd = "1 validation error: the id must be a text, at 10:31"
    tape = Tape(folder, "a").hello().call("get", said, is_error=True).call("get", odd, is_error=True, id=1)
    tape.call("get", odd.replace("31", "32"), is_error=True, id=1)
    build_folder(folder)
    tools = Tools(EnvironmentSpec.load(folder))
    calls = [ToolCall(name="get"), ToolCall(name="get", arguments={"id": 1})]
    recorded, refused_in_two_ways = (tools.refusal(call, call.canonical()) for call in calls)
    assert recorded == said
    assert refused_in_two_ways == "Input validation error: id: 1 is not of type 'string'"


def test_a_call_that_the_schema_forbids_is_answered_or_refused_in_any_words_as_it_was_recorded(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    tape = Tape(folder, "a").hello().call("get", "Which one?", is_error=True)
    tape.call("get", "Which 1?", is_error=True, id=1).call("get", "Ada", id=1)
    build_folder(folder)
    tools = Tools(EnvironmentSpec.load(folder))
    calls = [ToolCall(name="get"), *(ToolCall(name="get", arguments={"id": number}) for number in (1, 2))]
    assert [tools.refusal(call, call.canonical()) for call in calls] == [
        "Which one?",
        None,
        "Input validation error: id: 2 is not of type 'string'",
    ]


def test_a_server_of_the_python_sdk_refuses_an_unknown_tool_in_that_sdks_words(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    Tape(folder, "a").hello().call("get", "Error executing tool get: no such id", is_error=True)
    build_folder(folder)
    assert EnvironmentSpec.load(folder).mirror.unknown_tool == "Unknown tool: {tool}"


def test_a_protocol_error_of_a_call_is_its_observation(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    error = {"code": -32602, "message": "Unknown tool: nope"}
    Tape(folder, "a").hello().exchange("tools/call", {"name": "nope"}, error=error)
    assert build_folder(folder).messages == ()
    (step,) = trajectories(folder)["crm-a"].transitions
    assert (step.result.observation, step.result.is_error) == ("Unknown tool: nope", True)
    assert step.result.info["error"] == error


def test_errors_of_the_protocol_are_kept_by_their_words_if_these_always_came_with_one_code(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    unknown: JsonObject = {"code": -32602, "message": "Unknown tool: nope", "data": {"see": 1}}
    invalid: JsonObject = {"code": -32600, "message": "Invalid arguments for tool get: expected string at id"}
    busy: JsonObject = {"code": -32000, "message": "busy"}
    tape = Tape(folder, "a").hello().exchange("tools/call", {"name": "nope"}, error=unknown)
    tape.exchange("tools/call", {"name": "get", "arguments": {}}, error=invalid)
    tape.exchange("tools/call", {"name": "find"}, error=busy).call("get", "busy", is_error=True, id="x1")
    for code in (-1, -2):
        tape.exchange("tools/call", {"name": "find"}, error={"code": code, "message": "in two ways"})
    build_folder(folder)
    assert EnvironmentSpec.load(folder).mirror.errors == {
        "Unknown tool: {tool}": unknown,
        "Invalid arguments for tool {tool}: expected string at id": invalid,
        "Invalid arguments for tool {tool}: {reason}": {"code": -32600},
    }


def test_a_listing_that_the_server_refused_is_kept_as_a_refusal(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    error: JsonObject = {"code": -32601, "message": "Method not found"}
    Tape(folder, "a").hello().exchange("resources/templates/list", {}, error=error)
    build_folder(folder)
    mirror = EnvironmentSpec.load(folder).mirror
    assert (mirror.listings, [(one.method, one.error) for one in mirror.lookups]) == (
        {},
        [("resources/templates/list", error)],
    )


def test_an_answer_with_a_nul_is_a_step_and_its_run_is_kept(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    Tape(folder, "a").hello().call("get", "Ada", id="x1").call("get", "a\0b", id="c\0d")
    build_folder(folder)
    last = trajectories(folder)["crm-a"].transitions[-1]
    assert (last.action.arguments, last.result.observation) == ({"id": "c\ufffdd"}, "a\ufffdb")


def test_an_episode_that_is_longer_than_max_steps_is_named(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    tape = Tape(folder, "a").hello()
    for number in range(51):
        tape.call("get", "Ada", id=f"x{number}")
    file = folder / "env.toml"
    said = f"a recorded episode has 51 calls, but an agent is cut off after 50: raise max_steps in {file}"
    assert build_folder(folder).messages == (said,)
    file.write_text(file.read_text().replace("max_steps = 50", "max_steps = 51"))
    assert build_folder(folder).messages == ()


def test_building_twice_changes_nothing_and_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    Tape(folder, "b").hello().call("get", "Ada", id="x1").note(task="b")
    Tape(folder, "a", at=500).hello().call("get", "Ada", id="x1").call("find", who="Ada")
    report = build_folder(folder)
    before = contents(folder)
    assert build_folder(folder) == report
    assert contents(folder) == before
    assert list(trajectories(folder)) == ["crm-a", "crm-b"]
    names = "env.toml environment.id observed.json server.json tasks.jsonl tools.json trajectories.jsonl"
    assert sorted(before) == names.split()


def test_runs_with_equal_instructions_share_one_task_and_its_given_id(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    for run, said in (("a", {}), ("b", {"task_id": "who"}), ("c", {})):
        Tape(folder, run).hello().call("get", id="x1").note(task="Who is x1?", **said)
    Tape(folder, "d").hello().call("get", id="x1").note(task_id="who")
    Tape(folder, "e").hello().call("get", id="x1")
    build_folder(folder)
    tasks = [one.task for one in trajectories(folder).values()]
    assert [task.id for task in tasks] == ["who", "who", "who", "who", "unnamed"]
    assert [task.instruction for task in tasks] == ["Who is x1?"] * 4 + [""]
    assert [task.id for task in EnvironmentSpec.load(folder).tasks] == ["who"]


def test_a_task_written_by_hand_stays_and_one_whose_recording_is_gone_does_not(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    mine = Task(id="mine", env="crm", instruction="Do it my way", metadata={"split": "test"})
    (folder / "tasks.jsonl").write_text(f"{mine.model_dump_json()}\n")
    Tape(folder, "a").hello().call("get", id="x1").note(task="recorded")
    Tape(folder, "b").hello().call("get", id="x1").note(task_id="mine", task="something else")
    report = build_folder(folder)
    assert report.messages == ("b: task 'mine' already has another instruction; the first one is kept",)
    assert trajectories(folder)["crm-b"].task == mine
    (folder / "recordings" / "a.jsonl").unlink()
    build_folder(folder)
    assert EnvironmentSpec.load(folder).tasks == (mine,)


def test_a_proposed_task_is_marked_and_gives_way_to_a_given_one(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    tape = Tape(folder, "a").hello().call("get", id="x1").note(task="Look up x1", task_id="proposed-1", proposed=True)
    build_folder(folder)
    assert [(task.id, task.origin) for task in EnvironmentSpec.load(folder).tasks] == [("proposed-1", Origin.PROPOSED)]
    tape.note(task="Who is x1?")
    build_folder(folder)
    assert [(task.instruction, task.origin) for task in EnvironmentSpec.load(folder).tasks] == [
        ("Who is x1?", Origin.SEED)
    ]


def test_examples_and_entities_come_from_the_arguments_of_successful_calls(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    tape = Tape(folder, "a").hello().call("find", "Ada is c-17", who="Ada").call("get", "fine", id="c-17")
    tape.call("get", "no", is_error=True, id="zz")
    for number in range(9):
        tape.call("get", "fine", id=str(number))
    build_folder(folder)
    assert json.loads((folder / "observed.json").read_text()) == {
        "arguments": {"find": {"who": ["Ada"]}, "get": {"id": ["c-17", "0", "1", "2", "3"]}},
        "entities": ["c-17"],
    }


@pytest.mark.parametrize("count", [5, 500])
def test_an_entity_was_read_before_it_was_used_however_many_texts_a_run_uses(tmp_path: Path, count: int) -> None:
    folder = crm(tmp_path)
    tape = Tape(folder, "a").hello().call("get", "c-1000 and", id="c-2000").call("get", "then c-2000 ends", id="c-1000")
    for number in range(count):
        tape.call("get", "fine", id=f"c-{3000 + number}")
    tape.call("get", "fine", id="c-2000").call("get", "fine", id="and\nthen")
    build_folder(folder)
    assert json.loads((folder / "observed.json").read_text())["entities"] == ["c-1000", "c-2000", "and\nthen"]


def test_a_faulty_tasks_file_is_reported_and_nothing_is_written(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    (folder / "tasks.jsonl").write_text('{"id": "x"}\n')
    Tape(folder, "a").hello().call("get", id="x1")
    before = contents(folder)
    with pytest.raises(InvalidInput, match=r"tasks.jsonl, line 1: env"):
        build_folder(folder)
    assert contents(folder) == before


def test_only_its_owner_can_read_a_recorded_folder(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    Tape(folder, "a").hello().call("get", "Ada", id="x1")
    build_folder(folder)
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir() if path.is_file()}
    assert {"env.toml", "tools.json", "trajectories.jsonl"} <= modes.keys()
    assert set(modes.values()) == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_link_in_the_folder_is_replaced_by_a_file(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("theirs\n")
    (folder / "tools.json").symlink_to(elsewhere)
    Tape(folder, "a").hello().call("get", "Ada", id="x1")
    build_folder(folder)
    assert elsewhere.read_text() == "theirs\n"
    assert not (folder / "tools.json").is_symlink()
