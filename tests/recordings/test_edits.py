"""A person's edit of a folder's files stays until its recording changes, and is never lost without a copy."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from folder_stage import FIND, GET, Tape, contents, crm, trajectories

from dreamgym.environment import EnvironmentSpec, read_jsonl
from dreamgym.files import write_whole
from dreamgym.recordings.folder import build, build_folder, update_folder
from dreamgym.types import JsonObject, Task


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder built from two runs."""
    folder = crm(tmp_path)
    Tape(folder, "a").hello().call("get", "Ada", id="x1")
    Tape(folder, "b", at=2000).hello().call("get", "Bob", id="x2")
    assert update_folder(folder) is not None
    return folder


def edit(folder: Path, old: str, new: str) -> bytes:
    """Replace a text in trajectories.jsonl; return the new content."""
    file = folder / "trajectories.jsonl"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    return file.read_bytes()


def copies(folder: Path) -> list[bytes]:
    return [file.read_bytes() for file in folder.glob("*.bak")]


def test_a_folder_is_built_again_only_if_something_that_it_is_made_from_has_changed(folder: Path) -> None:
    before = contents(folder)
    assert update_folder(folder) is None
    assert contents(folder) == before
    for change in ("env.toml", "tasks.jsonl", "trajectories.jsonl", "recordings/a.jsonl"):
        with (folder / change).open("a") as file:
            file.write("\n")
        assert update_folder(folder) is not None, change
        assert update_folder(folder) is None, change


@pytest.mark.parametrize("at", ["tasks.jsonl", "trajectories.jsonl", "observed.json", "tools.json"])
def test_a_folder_whose_build_was_killed_is_soon_the_same_as_without_the_kill(
    at: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Tape(folder, "a", at=2500).note(task="Who is x1?", task_id="x1")
    update_folder(folder)
    edit(folder, "Ada", "Eve")
    Tape(folder, "c", at=3000).hello(GET).call("get", "Cyd", id="x3").note(task="Who is Cyd?", task_id="cyd")
    whole = shutil.copytree(folder, tmp_path / "whole" / "crm")

    def killed(file: Path, content: str) -> None:
        if file.name == at:
            raise KeyboardInterrupt
        write_whole(file, content)

    with monkeypatch.context() as patched:
        patched.setattr(build, "write_whole", killed)
        with pytest.raises(KeyboardInterrupt):
            update_folder(folder)
    for place in (folder, whole):
        update_folder(place)
        Tape(place, "c", at=4000).note(task="Who is Cyd, please?")
        update_folder(place)
    assert contents(folder) == contents(whole)
    assert "Eve" in (folder / "trajectories.jsonl").read_text()


def test_a_task_that_is_edited_after_a_killed_build_keeps_its_edit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Tape(folder, "c", at=3000).hello().call("get", "Cyd", id="x3").note(task="Who is Cyd?", task_id="cyd")
    with monkeypatch.context() as patched:
        patched.setattr(build, "write_built", lambda *_: None)
        update_folder(folder)
    file = folder / "tasks.jsonl"
    file.write_text(file.read_text().replace("Who is Cyd?", "Who is Cyd Li?"))
    update_folder(folder)
    assert file.read_text().count("Who is Cyd") == file.read_text().count("Who is Cyd Li?") == 1


def test_an_edit_from_before_a_killed_build_is_lost_with_a_copy_if_its_recording_has_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update_folder(folder)
    file = folder / "trajectories.jsonl"
    file.write_text(file.read_text().replace("Ada", "Eve"))
    Tape(folder, "a", at=1000).hello().call("get", "Bob", id="x1").note(task="Who is Bob?")
    with monkeypatch.context() as patched:
        patched.setattr(build, "write_whole", killed)
        with pytest.raises(KeyboardInterrupt):
            update_folder(folder)
    report = update_folder(folder)
    assert report is not None
    assert any("lost the edits of" in said for said in report.messages)
    assert "Eve" not in file.read_text()


def killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_of_updates_at_the_same_time_one_builds_the_folder_and_the_others_wait_for_it(folder: Path) -> None:
    begin = Barrier(4)

    def updates() -> bool:
        begin.wait()
        return update_folder(folder) is not None

    with ThreadPoolExecutor(4) as threads:
        for run in ("c", "d", "e"):
            Tape(folder, run, at=3000).hello().call("get", "Cyd", id="x3")
            builds = [threads.submit(updates) for _ in range(4)]
            assert sum(built.result() for built in builds) == 1


def test_a_folder_without_recordings_is_left_alone(folder: Path) -> None:
    shutil.rmtree(folder / "recordings")
    before = contents(folder)
    assert update_folder(folder) is None
    assert contents(folder) == before


def test_a_folder_whose_last_recording_was_deleted_loses_its_trajectories_and_keeps_what_the_server_and_a_person_said(
    folder: Path,
) -> None:
    own = trajectories(folder)["crm-a"].model_copy(update={"id": "mine"})
    with (folder / "trajectories.jsonl").open("a") as file:
        file.write(own.model_dump_json())
    Tape(folder, "b").note(task="Who is x2?")
    update_folder(folder)
    before = contents(folder)
    for recording in (folder / "recordings").glob("*.jsonl"):
        recording.unlink()
    report = update_folder(folder)
    assert report is not None
    assert report.messages == ()
    assert list(trajectories(folder)) == ["mine"]
    assert "Bob" not in (folder / "observed.json").read_text()
    assert {name for name, content in contents(folder).items() if content != before[name]} == {
        "trajectories.jsonl", "observed.json", "tasks.jsonl",
    }  # fmt: skip
    assert update_folder(folder) is None
    Tape(folder, "c", at=3000).hello().call("get", "Cyd", id="x3")
    assert update_folder(folder) is not None
    assert list(trajectories(folder)) == ["crm-c", "mine"]


def test_an_edit_a_removal_and_an_addition_stay_when_another_run_comes(folder: Path) -> None:
    own = trajectories(folder)["crm-a"].model_copy(update={"id": "mine"})
    (folder / "trajectories.jsonl").write_text(
        "\n".join([trajectories(folder)["crm-b"].model_dump_json().replace("Bob", "Bert"), own.model_dump_json()])
    )
    Tape(folder, "c", at=3000).hello().call("get", "Cyd", id="x3")
    report = update_folder(folder)
    assert report is not None
    assert report.messages == ()
    assert list(trajectories(folder)) == ["crm-b", "crm-c", "mine"]
    assert trajectories(folder)["crm-b"].transitions[0].result.observation == "Bert"
    assert copies(folder) == []


def test_a_label_wins_over_an_edit_and_the_edited_file_is_kept_as_a_copy(folder: Path) -> None:
    edited = edit(folder, "Bob", "Bert")
    Tape(folder, "b").note(task="Who is x2?")
    report = update_folder(folder)
    assert report is not None
    (message,) = report.messages
    assert message.startswith(
        "trajectories.jsonl was built again and lost the edits of crm-b; the edited file was saved as "
    )
    assert copies(folder) == [edited]
    assert trajectories(folder)["crm-b"].task.instruction == "Who is x2?"
    assert trajectories(folder)["crm-b"].transitions[0].result.observation == "Bob"


def test_a_file_built_by_an_older_version_is_copied_only_if_something_of_it_is_lost(folder: Path) -> None:
    (folder / "recordings" / "built.json").unlink()
    Tape(folder, "c", at=3000).hello().call("get", "Cyd", id="x3")
    report = update_folder(folder)
    assert report is not None
    assert (report.messages, copies(folder)) == ((), [])
    (folder / "recordings" / "built.json").unlink()
    edited = edit(folder, "Bob", "Bert")
    build_folder(folder)
    assert copies(folder) == [edited]


def test_a_damaged_line_costs_no_other_line_and_the_damaged_file_is_kept_as_a_copy(folder: Path) -> None:
    edit(folder, "Bob", "Bert")
    file = folder / "trajectories.jsonl"
    one, *others = file.read_text().splitlines()
    imported = json.dumps({**json.loads(one), "id": "imported"})
    damaged = "\n".join([one[: len(one) // 2], *others, imported, '{"id":"hal'])
    file.write_text(damaged)
    report = update_folder(folder)
    assert report is not None
    assert "line 1: " in report.messages[0]
    assert "the damaged file was saved as trajectories.jsonl." in report.messages[0]
    there = [json.loads(line) for line in file.read_text().splitlines()]
    assert {row["id"] for row in there} == {"imported", *(json.loads(line)["id"] for line in (one, *others))}
    assert "Bert" in file.read_text()
    assert copies(folder) == [damaged.encode()]


def test_an_empty_file_is_built_again(folder: Path) -> None:
    file = folder / "trajectories.jsonl"
    good = file.read_bytes()
    file.write_bytes(b"")
    update_folder(folder)
    assert file.read_bytes() == good


def test_a_line_with_the_id_of_a_recorded_trajectory_does_not_displace_it_and_is_kept_in_a_copy(folder: Path) -> None:
    file = folder / "trajectories.jsonl"
    good = file.read_text()
    forged = good + good.split("\n")[1].replace('"final_reward":null', '"final_reward":1.0') + "\n"
    file.write_text(forged)
    report = update_folder(folder)
    assert report is not None
    assert "line 3: an earlier trajectory has the id 'crm-b' and other content" in report.messages[0]
    assert file.read_text() == good
    assert copies(folder) == [forged.encode()]


def test_a_line_that_differs_in_the_type_of_a_value_alone_is_kept_in_a_copy(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    Tape(folder, "a").hello().call("find", "Ada", limit=1)
    update_folder(folder)
    file = folder / "trajectories.jsonl"
    good = file.read_text()
    file.write_text(good + good.replace('"limit":1', '"limit":true'))
    report = update_folder(folder)
    assert report is not None
    assert "line 2: an earlier trajectory has the id 'crm-a' and other content" in report.messages[0]


def test_an_edit_that_does_not_fit_the_schema_is_reported_left_out_and_kept_in_a_copy(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    world: JsonObject = {"people": {"P-1": {"person_id": "P-1", "name": "Ada"}}}
    Tape(folder, "a").hello(GET).told("get", "Ada", world, world, id="P-1").told("get", "Ada!", world, world, id="P-1")
    update_folder(folder)
    assert EnvironmentSpec.load(folder).state is not None
    file = folder / "trajectories.jsonl"
    one = trajectories(folder)["crm-a"]
    off = one.transitions[1].model_copy(update={"state": one.transitions[1].state.replace('"Ada"', "7")})
    file.write_text(one.model_copy(update={"transitions": (one.transitions[0], off)}).model_dump_json())
    edited = file.read_bytes()
    report = update_folder(folder)
    assert report is not None
    left_out, made_again = report.messages
    assert left_out.startswith(
        "crm-a: call 2 (get) is left out: the state before the call does not fit [state] in env.toml"
    )
    assert made_again.startswith("trajectories.jsonl was built again and lost the edits of crm-a")
    assert copies(folder) == [edited]
    assert len(trajectories(folder)["crm-a"].transitions) == 1


def test_an_edited_tool_list_stays_until_the_server_lists_other_tools(folder: Path) -> None:
    file = folder / "tools.json"
    edited = file.read_text().replace('"name": "get"', '"name": "get", "description": "Better."')
    file.write_text(edited)
    Tape(folder, "c", at=3000).hello().call("get", "Cyd", id="x3").note(task="Who is x3?")
    report = update_folder(folder)
    assert report is not None
    assert (report.messages, file.read_text(), copies(folder)) == ((), edited, [])
    assert update_folder(folder) is None
    Tape(folder, "d", at=4000).hello({**GET, "title": "New"}).call("get", "Dan", id="x4")
    report = update_folder(folder)
    assert report is not None
    assert any(line.startswith("tools.json was built again and lost its edits") for line in report.messages)
    assert copies(folder) == [edited.encode()]
    assert "Better." not in file.read_text()


def test_an_edited_tool_list_stays_if_a_client_of_another_protocol_revision_reads_the_same_tools(folder: Path) -> None:
    file = folder / "tools.json"
    edited = file.read_text().replace('"name": "get"', '"name": "get", "description": "Better."')
    file.write_text(edited)
    Tape(folder, "c", at=3000).exchange("tools/list", {}, result={"tools": [GET, FIND], "ttlMs": 0})
    report = update_folder(folder)
    assert report is not None
    assert (report.messages, file.read_text(), copies(folder)) == ((), edited, [])


def test_a_task_that_was_copied_from_a_recorded_one_stays_as_written_by_hand(folder: Path) -> None:
    Tape(folder, "a").note(task="Who is x1?")
    update_folder(folder)
    file = folder / "tasks.jsonl"
    (task,) = read_jsonl(file, Task)
    mine = task.model_copy(update={"id": "mine", "instruction": "Who is x2?"})
    file.write_text(f"{task.model_dump_json()}\n{mine.model_dump_json()}\n")
    kept = mine.model_copy(update={"metadata": {}})
    for run in ("c", "d"):
        Tape(folder, run, at=3000).hello().call("get", "Cyd", id="x3")
        report = update_folder(folder)
        assert report is not None
        assert (report.messages, read_jsonl(file, Task)) == ((), [kept, task])
    for recording in ("a", "c", "d"):
        (folder / "recordings" / f"{recording}.jsonl").unlink()
    update_folder(folder)
    assert read_jsonl(file, Task) == [kept]  # a recorded task goes with its run


def test_an_edited_task_stays_the_task_of_its_episodes_until_it_is_labelled_again(folder: Path) -> None:
    Tape(folder, "a").note(task="Who is x1?")
    update_folder(folder)
    file = folder / "tasks.jsonl"
    (task,) = read_jsonl(file, Task)
    check: JsonObject = {"type": "object"}
    mine = task.model_copy(update={"instruction": "Find x1.", "metadata": {**task.metadata, "success": check}})
    file.write_text(f"{mine.model_dump_json()}\n")
    for run in ("c", "d"):
        Tape(folder, run, at=3000).hello().call("get", "Cyd", id="x3")
        report = update_folder(folder)
        assert report is not None
        assert (report.messages, read_jsonl(file, Task), copies(folder)) == ((), [mine], [])
        assert trajectories(folder)["crm-a"].task.instruction == "Find x1."
    edited = file.read_bytes()
    Tape(folder, "a").note(task="Who was x1?")
    report = update_folder(folder)
    assert report is not None
    assert [line.partition(";")[0] for line in report.messages] == [
        f"tasks.jsonl was built again and lost the edits of {task.id}"
    ]
    assert copies(folder) == [edited]
    assert trajectories(folder)["crm-a"].task.instruction == "Who was x1?"
