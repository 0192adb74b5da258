"""Labels of recorded runs: the task, answer and outcome that a person adds."""

from __future__ import annotations

import csv
import os
import shlex
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from dreamgym.errors import InvalidInput, UnknownName
from dreamgym.recordings.log import Event, Exchange
from dreamgym.types import JsonObject

if TYPE_CHECKING:
    from dreamgym.recordings.folder import FolderReport

LAST = "last"
COLUMNS = ("success", "task", "task_id", "answer")
OUTCOMES = {"yes": True, "no": False, "true": True, "false": False, "1": True, "0": False}
_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


def note(folder: Path, notes: Mapping[str, JsonObject]) -> FolderReport | None:
    """Add the labels of each run to its recording, and bring the folder up to date."""
    from dreamgym_server.recorder.recording import add_notes

    from dreamgym.recordings.folder import update_folder

    now = time.time()
    add_notes(folder, [{"kind": "note", "run": name, **said, "at": now} for name, said in notes.items()], os.environ)
    return update_folder(folder)


def rows_of(folder: Path, file: Path) -> dict[str, JsonObject]:
    """Read the labels of each run from a table. A bad line raises InvalidInput with its number; no label is added."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            table = csv.reader(text, dialect="excel-tab", strict=True)
            lines = [(cells, table.line_num) for cells in table]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file}: {error}") from error
    except csv.Error as error:
        raise InvalidInput(f"{file}, line {table.line_num}: {_fault_of_cell(error)}") from error
    header = lines[0][0] if lines else []
    if "run" not in header or len(header) == 1 or set(header) - {"run", *COLUMNS} or len(set(header)) < len(header):
        raise InvalidInput(
            f"{file}, line 1: expected the names of the columns with tabs between them, run and some of "
            f"{', '.join(COLUMNS)}; got {', '.join(map(repr, header)) or 'nothing'}"
        )
    notes: dict[str, JsonObject] = {}
    for (_, before), (cells, _) in pairwise(lines):
        if not any(cells):
            continue
        try:
            if len(cells) != len(header):
                raise InvalidInput(f"expected {len(header)} columns, got {len(cells)}")
            row = dict(zip(header, cells, strict=True))
            run = known_run(folder, row.pop("run"))
            said: JsonObject = {name: cell for name, cell in row.items() if cell.strip()}
            if "success" in said:
                said["success"] = _outcome(row["success"])
            if run in notes:
                raise InvalidInput(f"run {run!r} has an earlier line")
        except InvalidInput as error:
            raise InvalidInput(f"{file}, line {before + 1}: {error}") from error
        if said:
            notes[run] = said
    if not notes:
        raise InvalidInput(f"{file}: expected at least one line that labels a run, got none")
    return notes


def _fault_of_cell(error: csv.Error) -> str:
    if "field limit" in str(error):  # a quote that nothing ends makes a long cell too
        most = csv.field_size_limit()
        return f'expected at most {most:,} characters in a cell: shorten it or, if it begins with ", end it with "'
    return f'{error}. A cell that begins with " must end with ", and each " in it must be written twice'


def _outcome(cell: str) -> bool:
    word = cell.strip().lower()
    if word not in OUTCOMES:
        raise InvalidInput(f"success: expected one of {', '.join(OUTCOMES)}, got {cell!r}")
    return OUTCOMES[word]


def known_run(folder: Path, run: str) -> str:
    """The id of a recorded run; `last` is the one that began last.

    Raises:
        InvalidInput: there is no such folder, or nothing is recorded in it.
        UnknownName: there is no such run.
    """
    files = {file.stem: file for file in (folder / "recordings").glob("*.jsonl")}
    if not folder.is_dir():
        raise InvalidInput(f"{folder}: there is no such folder: expected the environment folder that was recorded into")
    if not files:
        quoted = shlex.quote(str(folder))
        raise InvalidInput(
            f"{folder} has no recorded runs, and only these can be labelled. For imported episodes, set final_reward "
            f"(1 or 0) and answer in {folder / 'trajectories.jsonl'}; then run `dreamgym seed {quoted} {quoted}`"
        )
    if run == LAST:
        return max(files, key=lambda name: _began(files[name]))
    if run not in files:
        raise UnknownName("run", run, files, f"Runs are in {folder / 'recordings'}")
    return run


def _began(file: Path) -> float:
    """The time of the first event of a run. The file's own time does not tell it: a label is written into it too."""
    with file.open("rb") as lines:
        first = lines.readline()
    try:
        event = _EVENT.validate_json(first)
    except ValueError:  # a line that a crash left unfinished
        return file.stat().st_mtime
    return event.started_at if isinstance(event, Exchange) else event.at
