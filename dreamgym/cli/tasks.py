"""`dreamgym tasks`: the tasks of an environment with what each was worth, and new ones by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Annotated

import typer

from dreamgym.cli.options import Dsn, EnvName, ModelName, Seed
from dreamgym.environment import load_spec
from dreamgym.runs.console import say
from dreamgym.runs.tasks import Sort, TaskRow, generate_tasks, in_order, list_tasks

SHOWN_CHARACTERS = 60
"""Of an instruction, in the table."""


def tasks(
    env: EnvName,
    sort: Annotated[Sort, typer.Option(help="value, success: of the policy that tried the task last.")] = Sort.STORED,
    generate: Annotated[
        int, typer.Option(min=0, help="Vary the tasks solved only sometimes until there are so many new ones.")
    ] = 0,
    model: ModelName = None,
    dsn: Dsn = None,
    seed: Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """List the tasks of an environment: origin, parent, attempts, success with its 95 % interval, and value.

    `attempts` are those of all runs; success and value those of the policy that tried the task last. With --generate
    the new tasks are stored and listed: variations of the most valuable ones, by the language model of --model, or,
    where there is none and the environment is deterministic, other recorded starts.

    Example: dreamgym tasks coin --sort value --json
    """
    spec = load_spec(env)
    listed = asyncio.run(
        generate_tasks(spec, generate, model=model, dsn=dsn, seed=seed) if generate else list_tasks(spec, dsn)
    )
    if as_json:
        typer.echo(json.dumps([task.model_dump(mode="json") for task in in_order(listed, sort)], indent=2))
    elif listed:
        typer.echo(_table(in_order(listed, sort)))
    else:
        say(f"{spec.name} has no tasks: `dreamgym collect` or `dreamgym seed` brings some")


def _table(listed: Sequence[TaskRow]) -> str:
    from dreamgym.evaluation.report.tables import aligned

    rows = [("task", "origin", "parent", "attempts", "success", "value", "instruction")]
    for task in listed:
        value = "" if task.value is None else f"{task.value:.3f}"
        success = "" if task.success is None else str(task.success)
        instruction = " ".join(task.instruction.split())[:SHOWN_CHARACTERS]
        rows.append((task.id, task.origin, task.parent or "", str(task.attempts), success, value, instruction))
    return "\n".join(aligned(rows))
