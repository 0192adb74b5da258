"""`dreamgym tasks`: list the tasks of an environment with their outcomes, and generate new ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Annotated

import typer

from dreamgym.cli.options import Budget, EnvName
from dreamgym.environment import EnvironmentSpec
from dreamgym.runs.console import for_terminal, say
from dreamgym.runs.opening import seeded
from dreamgym.runs.spending import spending
from dreamgym.runs.tasks import Sort, TaskRow, generate_tasks, in_order, list_tasks

SHOWN_CHARACTERS = 60
"""Characters of an instruction that the table shows."""


def tasks(
    env: EnvName,
    sort: Annotated[
        Sort, typer.Option(help="Order of the list. value and success are of the update that played the task last.")
    ] = Sort.STORED,
    generate: Annotated[
        int,
        typer.Option(min=0, help="Vary the tasks that are solved only sometimes until there are this many new ones."),
    ] = 0,
    model: Annotated[
        str | None, typer.Option(help="Language model that writes the new tasks: local, http://host/v1, ….")
    ] = None,
    budget: Budget = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the tasks of an environment: origin, parent, attempts, success with its 95 % interval, and value.

    `attempts` counts all runs; success and value are of the update that played the task last. With --generate, the new
    tasks are stored and listed: variations of the most valuable ones, written by the language model of --model. Without
    one, in a deterministic environment, they start in other recorded states.

    Example: dreamgym tasks coin --sort value --json
    """

    async def known() -> tuple[EnvironmentSpec, list[TaskRow]]:
        spec = await seeded(env)
        return spec, await (generate_tasks(spec, generate, model=model) if generate else list_tasks(spec))

    with spending(budget):
        spec, listed = asyncio.run(known())
    if as_json:
        typer.echo(json.dumps([task.model_dump(mode="json") for task in in_order(listed, sort)], indent=2))
    elif listed:
        typer.echo(for_terminal(_table(in_order(listed, sort))))
    else:
        say(f"{spec.name} has no tasks: add some with `dreamgym collect` or `dreamgym seed`")


def _table(listed: Sequence[TaskRow]) -> str:
    from dreamgym.evaluation.report.tables import aligned

    rows = [("task", "origin", "parent", "attempts", "success", "value", "instruction")]
    for task in listed:
        value = "" if task.value is None else f"{task.value:.3f}"
        success = "" if task.success is None else str(task.success)
        instruction = " ".join(task.instruction.split())[:SHOWN_CHARACTERS]
        rows.append((task.id, task.origin, task.parent or "", str(task.attempts), success, value, instruction))
    return "\n".join(aligned(rows))
