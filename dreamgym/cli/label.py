"""`dreamgym label`: add the task, answer and outcome of a recorded run, which its traffic does not contain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dreamgym.errors import InvalidInput
from dreamgym.runs.console import say
from dreamgym.runs.labels import known_run, note, rows_of
from dreamgym.types import JsonObject

TABLE = ".tsv"


def label(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The environment folder that was recorded into.")],
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Id of the run, last (it began last), or FILE.tsv: columns run, success, task, task_id, answer.",
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

    A file has a header. success is yes or no; an empty cell adds nothing. If a row is bad, no row is added.

    Example: dreamgym label crm/ last --task "Who leads the Apollo project?" --answer "Ada" --success
    """
    said: JsonObject = {"task": task, "task_id": task_id, "answer": answer, "success": success}
    given: JsonObject = {name: value for name, value in said.items() if value is not None}
    if blank := [name for name in ("task", "task_id") if name in given and not str(given[name]).strip()]:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in blank)
        raise InvalidInput(f"{options}: expected a text, got only blanks: leave it out to keep what was noted")
    if run.endswith(TABLE):
        if given:
            raise InvalidInput(f"{', '.join(given)}: leave it out with a file, whose columns contain it")
        notes = rows_of(folder, Path(run))
    elif given:
        notes = {known_run(folder, run): given}
    elif Path(run).is_file():
        raise InvalidInput(f"{run}: expected a table with tabs between its columns, FILE{TABLE}")
    else:
        raise InvalidInput(
            "expected at least one of --task, --task-id, --answer, --success and --failure, or FILE.tsv for RUN"
        )
    report = note(folder, notes)
    for message in report.messages if report is not None else ():
        say(message)
    for name, said in notes.items():
        say(f"{name}: {', '.join('failure' if value is False else key for key, value in said.items())} noted")
