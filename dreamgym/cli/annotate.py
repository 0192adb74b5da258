"""`dreamgym annotate`: let a teacher model write the reasoning that recorded transitions lack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.options import Budget, EnvName


def annotate(
    env: EnvName,
    model: Annotated[
        str,
        typer.Option(
            "--model", metavar="TEACHER", help="The language model that annotates, as in --model of other verbs."
        ),
    ],
    trajectories: Annotated[
        Path | None,
        typer.Option(help="JSONL of recorded trajectories, which is rewritten. Default: the file of the folder."),
    ] = None,
    budget: Budget = None,
) -> None:
    """Write reasoning traces into recorded trajectories. The next `dreamgym serve` or `seed` stores them.

    Annotated trajectories are skipped, so the same command continues an interrupted run. A trajectory for which the
    teacher gives nothing usable is reported and left as it was. Meanwhile, `dreamgym collect` cannot write to the file.

    Example: dreamgym annotate crm/ --model http://localhost:8000/v1
    """
    from dreamgym.runs.annotate import annotate as run
    from dreamgym.runs.spending import spending

    with spending(budget):
        came = run(env, model, trajectories)
    if came.interrupted:
        raise typer.Exit(130)
    typer.echo(f"{came.file}: {came.done} trajectories annotated, {came.failures} left as they were")
    if came.failures and not came.done:
        raise typer.Exit(1)
