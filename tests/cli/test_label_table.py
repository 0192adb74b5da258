"""`dreamgym label FOLDER FILE.tsv`: many runs are labelled at once, or none."""

import sys
from pathlib import Path

import pytest
from command_line import Command

from dreamgym.environment import read_jsonl
from dreamgym.recordings.folder import start_folder
from dreamgym.types import Task, Trajectory

RUN = """\
{"kind":"exchange","run":"NAME","session":"s","method":"tools/list","params":{},"result":{"tools":[TOOL]},"error":null,\
"protocol":null,"started_at":1,"ended_at":1}
{"kind":"exchange","run":"NAME","session":"s","method":"tools/call","params":{"name":"get","arguments":{}},\
"result":{"content":[{"type":"text","text":"1"}]},"error":null,"protocol":null,"started_at":2,"ended_at":2}
"""


RECORDED = "expected the environment folder that was recorded into"


@pytest.fixture
def crm(tmp_path: Path) -> Path:
    """A folder with three recorded runs."""
    folder = tmp_path / "crm"
    start_folder(folder, "crm", {"adapter": "mcp", "command": [sys.executable]})
    (folder / "recordings").mkdir()
    for name in "abc":
        text = RUN.replace("NAME", name).replace("TOOL", '{"name":"get","inputSchema":{"type":"object"}}')
        (folder / "recordings" / f"{name}.jsonl").write_text(text)
    return folder


def labels(folder: Path) -> dict[str, tuple[str, float | None]]:
    found = read_jsonl(folder / "trajectories.jsonl", Trajectory)
    return {one.id: (one.task.instruction, one.final_reward) for one in found}


def test_each_row_labels_its_run_and_an_empty_cell_changes_nothing(
    dreamgym: Command, crm: Path, tmp_path: Path
) -> None:
    table = tmp_path / "labels.tsv"
    table.write_text("run\tsuccess\ttask\tanswer\na\tyes\tGet one.\t1\n\nb\tno\tGet two.\t\nc\t\tGet three.\t3\n")
    code, out, err = dreamgym("label", str(crm), str(table))
    assert (code, out) == (0, "")
    assert "a: success, task, answer noted" in err
    assert labels(crm) == {"crm-a": ("Get one.", 1.0), "crm-b": ("Get two.", 0.0), "crm-c": ("Get three.", None)}


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ("run\tsuccess\na\tyes\nnope\tno\n", "line 3: unknown run 'nope': expected one of a, b, c"),
        ("run\tsuccess\na\tperhaps\n", "line 2: success: expected one of yes, no, true, false, 1, 0, got 'perhaps'"),
        ("run\tsuccess\na\tyes\tx\n", "line 2: expected 2 columns, got 3"),
        (
            'run\ttask\na\t"Get one.\nb\tGet two.\n',
            'line 3: unexpected end of data. A cell that begins with " must end with "',
        ),
        ('run\ttask\na\t"Get" one.\n', "line 2: '\t' expected after '\"'. A cell that begins with"),
        pytest.param(
            f"run\ttask\na\tGet one.\nb\t{'x' * 131_073}\n",
            "line 3: expected at most 131,072 characters in a cell: shorten it",
            id="a long cell",
        ),
        ("run\tsuccess\na\tyes\na\tno\n", "line 3: run 'a' has an earlier line"),
        ('run\ttask\tsuccess\na\t"Get\none."\tyes\nb\t\tmaybe\n', "line 4: success: expected one of yes, no"),
        ('run\ttask\tsuccess\na\t"Get\none."\tmaybe\n', "line 2: success: expected one of yes, no"),
        ("run,success\na,yes\n", "line 1: expected the names of the columns with tabs between them"),
        ("run\tsucces\na\tyes\n", "line 1: expected the names of the columns"),
        ("", "line 1: expected the names of the columns with tabs between them, run and some of"),
        ("run\tsuccess\n\na\t\n", "expected at least one line that labels a run, got none"),
    ],
)
def test_a_row_that_cannot_be_read_is_named_and_nothing_is_noted(
    dreamgym: Command, crm: Path, tmp_path: Path, table: str, fault: str
) -> None:
    file = tmp_path / "labels.tsv"
    file.write_text(table)
    before = (crm / "recordings" / "a.jsonl").read_bytes()
    code, _, err = dreamgym("label", str(crm), str(file))
    assert code == 2
    assert str(file) in err
    assert fault in err
    assert (crm / "recordings" / "a.jsonl").read_bytes() == before


def test_a_table_and_options_are_not_mixed_and_a_missing_file_is_reported(dreamgym: Command, crm: Path) -> None:
    code, _, err = dreamgym("label", str(crm), "labels.tsv", "--success")
    assert (code, err) == (2, "dreamgym: success: leave it out with a file, whose columns contain it\n")
    code, _, err = dreamgym("label", str(crm), "no-such.tsv")
    assert code == 2
    assert "No such file" in err


@pytest.mark.parametrize("blank", ["", "  "])
def test_a_blank_task_is_refused_and_a_blank_cell_adds_nothing(
    dreamgym: Command, crm: Path, tmp_path: Path, blank: str
) -> None:
    code, _, err = dreamgym("label", str(crm), "a", "--task", blank, "--task-id", blank, "--success")
    assert (code, "--task, --task-id: expected a text, got only blanks" in err) == (2, True)
    table = tmp_path / "labels.tsv"
    table.write_text(f"run\ttask\tsuccess\na\t{blank}\tyes\n")
    code, _, err = dreamgym("label", str(crm), str(table))
    assert (code, "a: success noted" in err) == (0, True)
    assert labels(crm)["crm-a"] == ("", 1.0)


def test_a_recorded_label_of_blanks_makes_no_task(dreamgym: Command, crm: Path) -> None:
    with (crm / "recordings" / "a.jsonl").open("a") as recording:
        recording.write('{"kind":"note","run":"a","task":"Get one.","at":3}\n')
        recording.write('{"kind":"note","run":"a","task":"  ","task_id":" ","at":4}\n')
    assert dreamgym("label", str(crm), "a", "--success")[0] == 0
    assert labels(crm)["crm-a"] == ("Get one.", 1.0)
    assert [task.instruction for task in read_jsonl(crm / "tasks.jsonl", Task)] == ["Get one."]


def test_a_missing_folder_and_a_table_of_another_format_are_named(dreamgym: Command, crm: Path, tmp_path: Path) -> None:
    code, _, err = dreamgym("label", str(tmp_path / "cmr"), "a", "--task", "Get one.")
    assert (code, err) == (2, f"dreamgym: {tmp_path / 'cmr'}: there is no such folder: {RECORDED}\n")
    table = tmp_path / "labels.csv"
    table.write_text("run,success\na,yes\n")
    code, _, err = dreamgym("label", str(crm), str(table))
    assert (code, err) == (2, f"dreamgym: {table}: expected a table with tabs between its columns, FILE.tsv\n")


def test_a_label_does_not_make_an_older_run_the_last_one(dreamgym: Command, crm: Path) -> None:
    newest = crm / "recordings" / "b.jsonl"
    newest.write_text(newest.read_text().replace('"started_at":1,', '"started_at":1.5,', 1))
    assert dreamgym("label", str(crm), "a", "--task", "Get one.")[0] == 0
    code, _, err = dreamgym("label", str(crm), "last", "--success")
    assert code == 0
    assert "b: success noted" in err
    assert {run: reward for run, (_, reward) in labels(crm).items()} == {"crm-a": None, "crm-b": 1.0, "crm-c": None}


def test_a_label_for_an_imported_episode_says_where_to_write_it(dreamgym: Command, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "trajectories.jsonl").write_text("")
    table = tmp_path / "labels.tsv"
    table.write_text("run\tsuccess\nimported-1\tyes\n")
    for arguments in (("imported-1", "--success"), ("last", "--success"), (str(table),)):
        code, _, err = dreamgym("label", str(folder), *arguments)
        assert code == 2
        assert f"{folder} has no recorded runs" in err
        assert f"set final_reward (1 or 0) and answer in {folder / 'trajectories.jsonl'}" in err
