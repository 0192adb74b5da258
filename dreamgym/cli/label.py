"""`dreamgym label`: add the task, answer and outcome of a recorded run, which its traffic does not contain."""

from __future__ import annotations

import csv
import os
import time
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.errors import InvalidInput, UnknownName
from dreamgym.runs.console import say
from dreamgym.types import JsonObject

LAST = "last"
TABLE = ".tsv"
COLUMNS = ("success", "task", "task_id", "answer")
OUTCOMES = {"yes": True, "no": False, "true": True, "false": False, "1": True, "0": False}


def label(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The environment folder that was recorded into.")],
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="Id of the run, last, or FILE.tsv: columns run, success, task, task_id, answer."
        ),
    ],
    task: Annotated[str | None, typer.Option(help="What the agent was asked to do.")] = None,
    task_id: Annotated[str | None, typer.Option(help="Id of the task; runs of one task share it.")] = None,
    answer: Annotated[str | None, typer.Option(help="The agent's final answer.")] = None,
    success: Annotated[
        bool | None, typer.Option("--success/--failure", help="Whether the agent accomplished the task.")
    ] = None,
) -> None:
    """Add the task, final answer and outcome of one run, or of each row of a file, and bring the folder up to date.

    A file has a header; success is yes or no, and an empty cell says nothing. A bad row keeps the whole file out.

    Example: dreamgym label crm/ last --task "Who leads the Apollo project?" --answer "Ada" --success
    """
    said: JsonObject = {"task": task, "task_id": task_id, "answer": answer, "success": success}
    given: JsonObject = {name: value for name, value in said.items() if value is not None}
    if run.endswith(TABLE):
        if given:
            raise InvalidInput(f"{', '.join(given)}: with a file, its columns say it")
        notes = _rows(folder, Path(run))
    elif given:
        notes = {_known(folder, run): given}
    else:
        raise InvalidInput(
            "expected at least one of --task, --task-id, --answer, --success and --failure, or FILE.tsv for RUN"
        )
    from dreamgym_server.recorder.recording import add_notes

    from dreamgym.recordings.folder import update_folder

    now = time.time()
    add_notes(folder, [{"kind": "note", "run": name, **said, "at": now} for name, said in notes.items()], os.environ)
    report = update_folder(folder)
    for message in report.messages if report is not None else ():
        say(message)
    for name, said in notes.items():
        say(f"{name}: {', '.join('failure' if value is False else key for key, value in said.items())} noted")


def _rows(folder: Path, file: Path) -> dict[str, JsonObject]:
    """What a table says of each run. Raises InvalidInput naming the line; then nothing is noted."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            lines = list(csv.reader(text, dialect="excel-tab"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{file}: {error}") from error
    header = lines[0] if lines else []
    if "run" not in header or len(header) == 1 or set(header) - {"run", *COLUMNS} or len(set(header)) < len(header):
        raise InvalidInput(
            f"{file}, line 1: expected the names of the columns with tabs between them, run and some of "
            f"{', '.join(COLUMNS)}; got {', '.join(map(repr, header)) or 'nothing'}"
        )
    notes: dict[str, JsonObject] = {}
    for number, cells in enumerate(lines[1:], start=2):
        if not any(cells):
            continue
        try:
            if len(cells) != len(header):
                raise InvalidInput(f"expected {len(header)} columns, got {len(cells)}")
            row = dict(zip(header, cells, strict=True))
            run = _known(folder, row.pop("run"))
            said: JsonObject = {name: cell for name, cell in row.items() if cell}
            if "success" in said:
                said["success"] = _outcome(row["success"])
            if run in notes:
                raise InvalidInput(f"run {run!r} has a line before")
        except InvalidInput as error:
            raise InvalidInput(f"{file}, line {number}: {error}") from error
        if said:
            notes[run] = said
    return notes


def _outcome(cell: str) -> bool:
    word = cell.strip().lower()
    if word not in OUTCOMES:
        raise InvalidInput(f"success: expected one of {', '.join(OUTCOMES)}, got {cell!r}")
    return OUTCOMES[word]


def _known(folder: Path, run: str) -> str:
    files = {file.stem: file.stat().st_mtime for file in (folder / "recordings").glob("*.jsonl")}
    if run == LAST and files:
        return max(files, key=lambda name: files[name])
    if run not in files:
        raise UnknownName("run", run, files, f"They are in {folder / 'recordings'}")
    return run
