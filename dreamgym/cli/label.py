"""`dreamgym label`: add the task, answer and outcome of a recorded run, which its traffic does not contain."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.errors import InvalidInput, UnknownName
from dreamgym.runs.console import say

LAST = "last"


def label(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The environment folder that was recorded into.")],
    run: Annotated[str, typer.Argument(metavar="RUN", help="Id of the run, or last.")],
    task: Annotated[str | None, typer.Option(help="What the agent was asked to do.")] = None,
    task_id: Annotated[str | None, typer.Option(help="Id of the task; runs of one task share it.")] = None,
    answer: Annotated[str | None, typer.Option(help="The agent's final answer.")] = None,
    success: Annotated[
        bool | None, typer.Option("--success/--failure", help="Whether the agent accomplished the task.")
    ] = None,
) -> None:
    """Add a recorded run's task, final answer and outcome, and bring the folder up to date.

    Example: dreamgym label crm/ last --task "Who leads the Apollo project?" --answer "Ada" --success
    """
    said = {"task": task, "task_id": task_id, "answer": answer, "success": success}
    given = {name: value for name, value in said.items() if value is not None}
    if not given:
        raise InvalidInput("expected at least one of --task, --task-id, --answer, --success and --failure")
    from dreamgym_server.recorder.recording import add_note

    from dreamgym.recordings.folder import update_folder

    run = _known(folder, run)
    add_note(folder, {"kind": "note", "run": run, **given, "at": time.time()}, dict(os.environ))
    report = update_folder(folder)
    for message in report.messages if report is not None else ():
        say(message)
    noted = [name if value is not False else "failure" for name, value in given.items()]
    say(f"{run}: {', '.join(noted)} noted")


def _known(folder: Path, run: str) -> str:
    files = {file.stem: file.stat().st_mtime for file in (folder / "recordings").glob("*.jsonl")}
    if run == LAST and files:
        return max(files, key=lambda name: files[name])
    if run not in files:
        raise UnknownName("run", run, files, f"They are in {folder / 'recordings'}")
    return run
