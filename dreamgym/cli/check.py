"""`dreamgym check`: a short report on how true a dream or a real system is to the recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.options import Budget, EnvName, HeldOut, MeasuredModel, RecordedFile, Seed
from dreamgym.runs.console import for_terminal, say
from dreamgym.runs.opening import Against
from dreamgym.runs.spending import spending


def check(
    env: EnvName,
    against: Annotated[Against, typer.Option(help="Predict the calls, or play them on the real system again.")],
    model: MeasuredModel = None,
    trajectories: RecordedFile = None,
    held_out: HeldOut = 0.3,
    budget: Budget = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the report here too: `dreamgym view` shows it.")] = None,
    seed: Seed = 0,
) -> None:
    """Compare answers with recorded ones, per tool. No database is read or written.

    `exact`: error flag, structured content and text equal the recorded ones; JSON is compared as JSON.
    `similarity`: F1 over words. Brackets contain 95 % intervals.

    Example: dreamgym check crm/ --against dream --model "local -k 5"
    """
    from dreamgym.evaluation.report.text import check_as_text
    from dreamgym.runs import fidelity as runs

    with spending(budget) as ledger:
        report = runs.check(
            env, against, model, trajectories=trajectories, held_out=held_out, out=out, seed=seed, say=say
        )
        typer.echo(report.as_json() if json else for_terminal(check_as_text(report)))
        ledger.check()
    if not report.complete:
        raise typer.Exit(130)
