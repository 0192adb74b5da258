"""`dreamgym import` stores usable trajectories, names the others, and creates a folder if it is asked to."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import JsonValue

from dreamgym.cli.app import main
from dreamgym.environment import EnvironmentSpec, read_jsonl
from dreamgym.recordings.importers.folder import new_folder
from dreamgym.types import JsonObject, Origin, Source, Trajectory

Command = Callable[..., tuple[int, str]]
FIND: JsonObject = {
    "type": "function",
    "function": {"name": "find", "description": "Find a person.", "parameters": {"type": "object", "x-own": 1}},
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Runs `dreamgym import` in the test's folder; returns exit code and stderr. Stdout must be empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DREAMGYM_HOME", str(tmp_path / "home"))

    def command(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["dreamgym", "import", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        said = capsys.readouterr()
        assert said.out == ""
        return int(exit_.value.code or 0), said.err

    return command


def chat(*tools: str, asked: str = "Is Mia there?", answer: str = "#7", arguments: str = "{}") -> JsonObject:
    calls: list[JsonValue] = [
        {"id": name, "type": "function", "function": {"name": name, "arguments": arguments}} for name in tools
    ]
    answers: list[JsonValue] = [{"role": "tool", "tool_call_id": name, "content": answer} for name in tools]
    return {
        "messages": [
            {"role": "user", "content": asked},
            {"role": "assistant", "tool_calls": calls},
            *answers,
        ]
    }


@pytest.fixture
def crm(tmp_path: Path) -> Path:
    """An environment folder with the tool `find`."""
    folder = tmp_path / "crm"
    folder.mkdir()
    (folder / "env.toml").write_text('name = "crm"\n')
    (folder / "tools.json").write_text('{"tools": [{"name": "find", "inputSchema": {"type": "object"}}]}')
    return folder


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    """Two usable conversations, one with another tool, and a line that is not JSON."""
    lines = [chat("find"), chat("find", asked="And Bob?"), chat("fly")]
    (tmp_path / "chats.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines) + "oh\n")
    return tmp_path / "chats.jsonl"


@pytest.mark.usefixtures("chats", "crm")
def test_usable_conversations_are_stored_once_and_the_others_are_named(run: Command, dsn: str) -> None:
    code, said = run("chats.jsonl", "--env", "crm")
    assert code == 0
    assert said.splitlines() == [
        "2 of 4 usable (2 openai), 2 transitions",
        "not usable: chats.jsonl, line 4: is not valid JSON: Expecting value at line 4, column 1",
        "not usable: chats.jsonl, line 3: calls tools that environment 'crm' does not have: 'fly'",
        "2 of 2 trajectories are new in the buffer of 'crm'",
        "crm/trajectories.jsonl stays as it is, and `check`, `fidelity` and copies of the folder know only what is in "
        "it: to add episodes, import them with --out NEW.jsonl, and append that file",
    ]
    again = run("chats.jsonl", "--env", "crm")[1]
    assert ("0 of 2 trajectories are new" in again, "stays as it is" in again) == (True, False)


@pytest.mark.usefixtures("crm")
def test_a_text_that_is_cut_off_at_the_end_of_its_line_is_named_with_its_place(run: Command, tmp_path: Path) -> None:
    (tmp_path / "chats.jsonl").write_text('{"messages": "Who\n' + json.dumps(chat("find")))
    said = run("chats.jsonl", "--env", "crm", "--out", "out.jsonl")[1]
    assert "line 1: is not valid JSON: Invalid control character at line 1, column 18" in said


@pytest.mark.usefixtures("chats", "crm", "dsn")
def test_an_episode_whose_id_is_stored_with_other_content_is_named(run: Command, tmp_path: Path) -> None:
    assert run("chats.jsonl", "--env", "crm", "--out", "mine.jsonl")[0] == 0
    assert "not stored" not in run("mine.jsonl", "--env", "crm")[1] + run("mine.jsonl", "--env", "crm")[1]
    first, *_ = read_jsonl(tmp_path / "mine.jsonl", Trajectory)
    (tmp_path / "mine.jsonl").write_text(first.model_copy(update={"final_reward": 1.0}).model_dump_json())
    code, said = run("mine.jsonl", "--env", "crm")
    assert (code, "0 of 1 trajectories are new" in said) == (0, True)
    assert f"not stored, because their ids are stored with other content or of another environment: {first.id}" in said


@pytest.mark.usefixtures("chats", "crm", "dsn")
def test_episodes_that_the_folder_contains_are_stored_without_a_remark(run: Command) -> None:
    assert run("chats.jsonl", "--env", "crm", "--out", "crm/trajectories.jsonl")[0] == 0
    code, said = run("chats.jsonl", "--env", "crm")
    assert (code, "2 of 2 trajectories are new" in said, "stays as it is" in said) == (0, True, False)


@pytest.mark.usefixtures("chats", "crm")
@pytest.mark.parametrize("named", [("openai", "chats.jsonl"), ("chats.jsonl",)])
def test_a_format_may_be_named_or_detected(named: tuple[str, ...], run: Command, tmp_path: Path) -> None:
    assert run(*named, "--env", "crm", "--out", "out.jsonl")[0] == 0
    written = read_jsonl(tmp_path / "out.jsonl", Trajectory)
    assert [trajectory.source for trajectory in written] == [Source.IMPORTED] * 2
    assert {trajectory.task.origin for trajectory in written} == {Origin.IMPORTED}


@pytest.mark.usefixtures("chats", "crm")
def test_an_import_into_a_file_removes_and_changes_no_other_episode_in_it(run: Command, tmp_path: Path) -> None:
    into, out = ("--env", "crm", "--out", "crm/trajectories.jsonl"), tmp_path / "crm" / "trajectories.jsonl"
    assert run("chats.jsonl", *into)[0] == run("chats.jsonl", *into)[0] == 0
    (tmp_path / "more.jsonl").write_text(json.dumps(chat("find", asked="And Eve?")))
    before = out.read_text()
    code, said = run("more.jsonl", *into)
    assert (code, out.read_text()) == (2, before)
    assert "crm/trajectories.jsonl would lose 2 of its 2 trajectories, or changes in them: imported-" in said
    out.write_text(before.replace('"final_reward":null', '"final_reward":1.0', 1))
    labelled = out.read_text()
    assert labelled != before
    assert (run("chats.jsonl", *into)[0], out.read_text()) == (2, labelled)
    out.write_text("notes\n")
    assert (run("chats.jsonl", *into)[0], out.read_text()) == (2, "notes\n")


@pytest.mark.usefixtures("chats", "crm")
def test_a_pipe_in_place_of_the_file_is_not_replaced(run: Command) -> None:
    os.mkfifo("pipe")
    code, said = run("chats.jsonl", "--env", "crm", "--out", "pipe")
    assert code == 2
    assert said.splitlines()[-1] == "dreamgym: pipe: cannot be written: it is a pipe or a device; give another file"
    assert Path("pipe").is_fifo()


@pytest.mark.usefixtures("chats", "crm")
@pytest.mark.parametrize("folder", [".", "crm"])
def test_a_folder_in_place_of_the_file_is_misuse(run: Command, folder: str, tmp_path: Path) -> None:
    before = {path.name for path in tmp_path.iterdir()}
    code, said = run("chats.jsonl", "--env", "crm", "--out", folder)
    assert (code, {path.name for path in tmp_path.iterdir()}) == (2, before)
    assert said.splitlines()[-1].startswith(f"dreamgym: {folder}: cannot be written: ")


@pytest.mark.usefixtures("chats", "crm")
def test_a_file_without_anything_usable_is_misuse_and_nothing_is_written(run: Command, tmp_path: Path) -> None:
    code, said = run("tau-bench", "chats.jsonl", "--env", "crm", "--out", "out.jsonl")
    assert code == 2
    assert said.splitlines()[-1].startswith("dreamgym: nothing in chats.jsonl can be used for environment 'crm'")
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.usefixtures("crm")
def test_a_missing_file_and_a_forgotten_file_give_one_sentence(run: Command) -> None:
    assert "dreamgym: no file given" in run("openai", "--env", "crm")[1]
    code, said = run("nowhere.jsonl", "--env", "crm")
    assert (code, said.count("\n")) == (2, 1)
    assert "nowhere.jsonl: cannot be read" in said


@pytest.mark.usefixtures("chats", "crm")
def test_a_mistyped_format_is_named_with_the_formats(run: Command) -> None:
    code, said = run("opnai", "chats.jsonl", "--env", "crm")
    assert (code, said.count("\n")) == (2, 1)
    assert "unknown format 'opnai': expected one of agentgym, " in said


@pytest.mark.usefixtures("crm")
def test_an_empty_file_is_called_empty(run: Command, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    code, said = run("empty.jsonl", "--env", "crm")
    assert code == 2
    assert "empty.jsonl: contains no JSON value" in said


def test_a_new_folder_is_made_from_the_tool_definitions_in_the_files(run: Command, tmp_path: Path) -> None:
    told = {**chat("find"), "tools": [FIND]}
    (tmp_path / "chats.jsonl").write_text(json.dumps(told))
    assert "--new makes it from the 1 tools that the files define" in run("chats.jsonl", "--env", "made/My CRM")[1]
    code, said = run("chats.jsonl", "--env", "made/My CRM", "--new", "--out", "out.jsonl")
    assert (code, "a new environment 'my-crm' with 1 tools" in said) == (0, True)
    spec = EnvironmentSpec.load(tmp_path / "made" / "My CRM")
    assert spec.tools == [
        {"name": "find", "description": "Find a person.", "inputSchema": {"type": "object", "x-own": 1}}
    ]
    assert [task.instruction for task in spec.tasks] == ["Is Mia there?"]
    assert "has a tools.json already" in run("chats.jsonl", "--env", "made/My CRM", "--new")[1]


def test_a_server_whose_only_tool_takes_one_text_is_imported_as_a_server_and_not_as_a_game(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    schema: JsonObject = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
    tools: list[JsonValue] = [{"type": "function", "function": {"name": "console", "parameters": schema}}]
    chats = [
        {**chat("console", asked=command, answer=answer, arguments=json.dumps({"command": command})), "tools": tools}
        for command, answer in (("show 1", "one is open"), ("refund 2", "two is refunded"), ("list", "1, 2 and 3"))
    ]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)))
    assert run("chats.jsonl", "--env", "desk", "--new", "--out", "out.jsonl")[0] == 0
    assert not EnvironmentSpec.load(tmp_path / "desk").is_over_when_done, "an agent that stops has not failed"
    monkeypatch.setattr(sys, "argv", ["dreamgym", "check", "desk", "--against", "dream", "--model", "nearest"])
    with pytest.raises(SystemExit):
        main()
    assert "got       no answer: the recordings of tool 'console'" in capsys.readouterr().out


def test_episodes_of_another_version_of_a_tool_are_named_in_one_line(run: Command, tmp_path: Path) -> None:
    schema: JsonObject = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    newer: JsonObject = {"type": "function", "function": {"name": "find", "parameters": schema}}
    (tmp_path / "new.jsonl").write_text(json.dumps({**chat("find", arguments='{"id": 7}'), "tools": [newer]}))
    old = [{**chat("find", asked=f"{number}?"), "tools": [FIND]} for number in range(23)]
    (tmp_path / "old.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in old))
    code, said = run("new.jsonl", "old.jsonl", "--env", "made", "--new", "--out", "out.jsonl")
    assert code == 0
    assert [line for line in said.splitlines() if "old.jsonl" in line] == [
        "tool 'find' is defined differently in old.jsonl, line 1 and 22 more; the first definition is kept",
        "calls of 'find' that its schema refuses are in old.jsonl, line 1 and 22 more: 'id' is a required property. If "
        "they come from another version of the server, import each version into an environment of its own",
    ]
    assert "24 of 24 usable" in said


def test_a_new_folder_is_not_left_behind_if_nothing_can_be_used(run: Command, tmp_path: Path) -> None:
    asked = {"messages": [{"role": "user", "content": "Is Mia there?"}], "tools": [FIND]}
    (tmp_path / "chats.jsonl").write_text(json.dumps(asked))
    for _ in range(2):
        code, said = run("chats.jsonl", "--env", "made", "--new")
        assert (code, "nothing in chats.jsonl can be used for environment 'made'" in said) == (2, True)
        assert not (tmp_path / "made").exists()
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "env.toml").write_text('name = "mine"\n')
    assert run("chats.jsonl", "--env", "made", "--new")[0] == 2
    assert [file.name for file in (tmp_path / "made").iterdir()] == ["env.toml"]


def test_a_new_folder_is_not_left_behind_if_another_folder_has_its_name_in_the_store(
    run: Command, tmp_path: Path, dsn: str
) -> None:
    (tmp_path / "chats.jsonl").write_text(json.dumps({**chat("find"), "tools": [FIND]}))
    assert run("chats.jsonl", "--env", "one/crm", "--new")[0] == 0
    (tmp_path / "two").mkdir()
    code, said = run("chats.jsonl", "--env", "two/crm", "--new")
    assert (code, "have the same environment name, 'crm'" in said) == (2, True)
    assert list((tmp_path / "two").iterdir()) == []


def test_of_two_imports_into_one_new_folder_the_second_is_refused_and_removes_nothing(
    run: Command, tmp_path: Path
) -> None:
    (tmp_path / "chats.jsonl").write_text(json.dumps({**chat("find"), "tools": [FIND]}))
    with new_folder(tmp_path / "made"):
        (tmp_path / "made" / "env.toml").write_text('name = "made"')
        code, said = run("chats.jsonl", "--env", "made", "--new", "--out", "out.jsonl")
        assert (code, "another command works in it" in said) == (2, True)
        assert [file.name for file in (tmp_path / "made").iterdir()] == ["env.toml"]
    assert run("chats.jsonl", "--env", "made", "--new", "--out", "out.jsonl")[0] == 0


@pytest.mark.usefixtures("chats")
def test_no_schema_is_made_up_if_no_file_defines_a_tool(run: Command, tmp_path: Path) -> None:
    code, said = run("chats.jsonl", "--env", "made", "--new")
    assert code == 2
    assert "made cannot be made: no file defines a tool" in said
    assert not (tmp_path / "made").exists()


def test_the_true_reason_is_given_if_no_file_can_be_read(run: Command, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"who": "Mia", "did": "find"}\noh\n')
    code, said = run("log.jsonl", "--env", "made", "--new")
    assert code == 2
    first, second, last = said.splitlines()
    assert first.startswith(
        "not usable: log.jsonl, line 1: has an unknown format: an object with 'who', 'did'; known formats: "
    )
    assert second.startswith("not usable: log.jsonl, line 2: is not valid JSON")
    assert last == "dreamgym: made cannot be made: nothing in the files can be read; see above"
    assert not (tmp_path / "made").exists()


def traces() -> dict[str, list[JsonObject]]:
    """Traces of each product: two episodes with one tool, its definition, and an e-mail address in each."""
    asked: JsonValue = [[{"role": "user", "content": "mail mia@example.com"}]]
    definition: JsonObject = {"invocation_params": {"tools": [FIND]}}
    runs: list[JsonObject] = []
    for trace in "tu":
        told: JsonObject = {"trace_id": trace, "parent_run_id": trace}
        call: JsonObject = {"run_type": "tool", "name": "find", "inputs": {"q": trace}, **told}
        runs += [
            {"id": trace, "run_type": "chain", "name": "agent", "trace_id": trace},
            {"id": f"{trace}1", "run_type": "llm", "inputs": {"messages": asked}, "extra": definition, **told},
            {"id": f"{trace}2", "outputs": {"output": "mia@example.com"}, **call},
            {"id": f"{trace}3", "error": "no mia@example.com", **call},
        ]
    model: JsonObject = {"id": "a", "type": "GENERATION", "startTime": "2026-11-01T10:00:00Z", "name": "m"}
    model["input"] = {"messages": asked, "tools": [FIND]}
    tool: JsonObject = {"id": "b", "type": "TOOL", "startTime": "2026-11-01T10:00:01Z", "name": "find", "input": {}}
    failed: JsonObject = {**tool, "id": "c", "level": "ERROR", "statusMessage": "no mia@example.com"}
    listed: JsonObject = {"type": "mcp_list_tools", "tools": [{"name": "find", "input_schema": {"type": "object"}}]}
    mcp: JsonObject = {"type": "mcp_call", "id": "x", "name": "find", "arguments": "{}", "error": "no mia@example.com"}
    answered: JsonObject = {**mcp, "id": "y", "error": None, "output": "#7"}
    return {
        "langsmith": runs,
        "langfuse": [{"id": name, "observations": [model, {**tool, "output": name}, failed]} for name in "tu"],
        "openai-responses": [
            {"input": f"{name}: mail mia@example.com", "output": [listed, mcp, answered]} for name in "tu"
        ],
    }


@pytest.mark.parametrize("product", traces())
def test_a_new_folder_is_complete_and_can_be_measured_and_stored_at_once(
    product: str,
    run: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    dsn: str,
) -> None:
    rows = [json.dumps(row) for row in traces()[product]]
    (tmp_path / "traces.jsonl").write_text("\n".join([*rows, "oh"]))
    code, said = run("traces.jsonl", "--env", "crm", "--new", "--out", "copy.jsonl")
    assert code == 0
    assert f"2 of 3 usable (2 {product}), 4 transitions" in said
    assert "not usable: traces.jsonl, line" in said
    assert "crm: serve it with `dreamgym serve crm`" in said
    folder = tmp_path / "crm"
    assert {file.name for file in folder.iterdir()} == {"env.toml", "tools.json", "tasks.jsonl", "trajectories.jsonl"}
    kept = read_jsonl(folder / "trajectories.jsonl", Trajectory)
    assert kept == read_jsonl(tmp_path / "copy.jsonl", Trajectory)
    assert [[step.result.is_error for step in one.transitions].count(True) for one in kept] == [1, 1]
    assert not [file for file in folder.iterdir() if "mia@example.com" in file.read_text()]
    assert "mia@example.com" not in said
    monkeypatch.setattr(sys, "argv", ["dreamgym", "check", "crm", "--against", "dream", "--model", "nearest"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert (exit_.value.code or 0, "find" in capsys.readouterr().out) == (0, True)
    monkeypatch.setattr(sys, "argv", ["dreamgym", "seed", "crm", "crm"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert "crm: 2 of 2 trajectories are new" in capsys.readouterr().err


def test_a_reason_is_one_short_line_whatever_the_file_says(run: Command, tmp_path: Path, crm: Path) -> None:
    forged = "\nnot usable: nothing, all is well"
    call: JsonObject = {"id": "a", "trace_id": f"t{forged}", "run_type": "tool", "name": "find", "inputs": {}}
    lines = [{f"k{forged}": 1, "x" * 10_000: 2}, call, {"steps": [{"action": "go", "y" * 10_000: forged}]}]
    (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    code, said = run("log.jsonl", "--env", str(crm))
    assert (code, len(said.splitlines())) == (2, 5)
    assert max(map(len, said.splitlines())) < 400
    assert f"line 1: has an unknown format: an object with {f'k{forged}'!r}, '{'x' * 40}'; known formats:" in said


def test_reasons_show_no_secret(run: Command, tmp_path: Path, crm: Path) -> None:
    (crm / "env.toml").write_text('name = "crm"\n[redact]\nsecrets = true\n')
    turns = [{"from": "human", "value": "go"}, {"from": "gpt", "value": "Action: mail mia.li@example.com"}]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"conversations": turns}))
    said = run("chats.jsonl", "--env", "crm")[1]
    assert "has no observation" in said
    assert "mia.li@example.com" not in said


def test_the_reasons_why_no_folder_was_made_show_no_secret(run: Command, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"mia.li@example.com": 1}\n')
    code, said = run("log.jsonl", "--env", "made", "--new")
    assert (code, "line 1: has an unknown format" in said, "mia.li" in said) == (2, True, False)


def test_the_place_of_another_definition_of_a_tool_shows_no_secret(run: Command, tmp_path: Path) -> None:
    rows: list[JsonObject] = []
    for trace, kind in (("mia.li@example.com", "string"), ("bob.ott@example.com", "object")):
        parameters: JsonObject = {"tools": [{"name": "find", "input_schema": {"type": kind}}]}
        asked: JsonObject = {"id": f"{trace} asks", "trace_id": trace, "run_type": "llm"}
        rows.append({**asked, "extra": {"invocation_params": parameters}})
        call: JsonObject = {"id": f"{trace} calls", "trace_id": trace, "run_type": "tool", "name": "find"}
        rows.append({**call, "inputs": {"q": trace}, "outputs": {"output": "#7"}})
    (tmp_path / "runs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    code, said = run("runs.jsonl", "--env", "made", "--new", "--out", "out.jsonl")
    assert (code, "tool 'find' is defined differently in runs.jsonl, line 3, trace " in said) == (0, True)
    assert [name for name in ("mia.li", "bob.ott") if name in said] == []


def test_secrets_are_taken_out_of_the_tools_of_a_new_folder(run: Command, tmp_path: Path) -> None:
    schema: JsonObject = {
        "type": "object",
        "properties": {"to": {"type": "string", "default": "mia.li@acme-corp.de"}, "password": {"type": "string"}},
        "required": ["password", "to"],
    }
    told = "Uses sk_live_abcdefghij0123456789."
    tool: JsonObject = {"type": "function", "function": {"name": "find", "description": told, "parameters": schema}}
    (tmp_path / "chats.jsonl").write_text(json.dumps({**chat("find"), "tools": [tool]}))
    assert run("chats.jsonl", "--env", "made", "--new", "--out", "out.jsonl")[0] == 0
    written = (tmp_path / "made" / "tools.json").read_text()
    assert {secret for secret in ("mia.li", "sk_live_") if secret in written} == set()
    (made,) = EnvironmentSpec.load(tmp_path / "made").tools
    assert str(made["description"]).startswith("Uses REDACTED-")
    assert isinstance(made["inputSchema"], dict)
    assert made["inputSchema"]["required"] == ["password", "to"]


def test_secrets_are_taken_out_of_everything_that_is_kept(run: Command, tmp_path: Path, crm: Path) -> None:
    (crm / "env.toml").write_text('name = "crm"\n[redact]\nsecrets = true\n')
    told = chat("find", asked="mail mia.li@example.com", answer="it is mia.li@example.com")
    (tmp_path / "chats.jsonl").write_text(json.dumps(told))
    assert run("chats.jsonl", "--env", "crm", "--out", "out.jsonl")[0] == 0
    assert "mia.li@example.com" not in (tmp_path / "out.jsonl").read_text()
    (trajectory,) = read_jsonl(tmp_path / "out.jsonl", Trajectory)
    placeholder = trajectory.task.instruction.removeprefix("mail ")
    assert trajectory.transitions[0].result.observation == f"it is {placeholder}"


def test_secrets_are_taken_out_of_ids_too_and_equal_ids_stay_equal(run: Command, tmp_path: Path, crm: Path) -> None:
    (crm / "env.toml").write_text('name = "crm"\n[redact]\nsecrets = true\n')
    told = {
        "id": "run:mia.li@acme-corp.de",
        "world": "t:mia.li@acme-corp.de",
        "task": {
            "id": "t:mia.li@acme-corp.de",
            "env": "crm",
            "instruction": "go",
            "parent_id": "p:mia.li@acme-corp.de",
        },
        "source": "imported",
        "stop_reason": "finished",
        "transitions": [
            {
                "state": "",
                "action": {"name": "find"},
                "result": {"observation": "done"},
                "next_state": "done",
                "provenance": {
                    "tier": "model",
                    "model": "http://u:hunter2Qq9@h/v1",
                    "retrieved": ["of mia.li@acme-corp.de"],
                },
            }
        ],
    }
    wrong = {**told, "id": "other:mia.li@acme-corp.de", "task": {**told["task"], "env": "shop"}}  # type: ignore[dict-item]
    (tmp_path / "whole.jsonl").write_text(f"{json.dumps(told)}\n{json.dumps(wrong)}\n")
    code, said = run("whole.jsonl", "--env", "crm", "--out", "out.jsonl")
    assert (code, "1 of 2 usable" in said, "belongs to environment 'shop'" in said) == (0, True, True)
    written = (tmp_path / "out.jsonl").read_text() + said
    assert {secret for secret in ("mia.li", "hunter2Qq9") if secret in written} == set()
    (kept,) = read_jsonl(tmp_path / "out.jsonl", Trajectory)
    assert kept.world == kept.task.id
    assert kept.id.removeprefix("run:") == kept.task.id.removeprefix("t:")


def test_secrets_are_taken_out_of_the_replies_to_questions_of_a_tool(run: Command, tmp_path: Path, crm: Path) -> None:
    (crm / "env.toml").write_text('name = "crm"\n[redact]\nsecrets = true\n')
    action = {"name": "find", "answers": {"inputResponses": {"k": {"password": "hunter2secret9", "ok": True}}}}
    told = {
        "id": "m",
        "task": {"id": "t", "env": "crm", "instruction": "go"},
        "transitions": [{"action": action, "result": {"observation": "done"}}],
    }
    (tmp_path / "one.jsonl").write_text(json.dumps(told))
    assert run("one.jsonl", "--env", "crm", "--out", "out.jsonl")[0] == 0
    (trajectory,) = read_jsonl(tmp_path / "out.jsonl", Trajectory)
    said = json.dumps(trajectory.transitions[0].action.answers)
    assert ("hunter2secret9" in said, '"ok": true' in said) == (False, True)
