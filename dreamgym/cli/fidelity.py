"""`dreamgym fidelity`: measure how well a dream predicts the real environment, step by step and in closed loop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.options import Budget, Cluster, EnvName, HeldOut, MeasuredModels, RecordedFile, Seed
from dreamgym.evaluation.cost import Prices
from dreamgym.runs.console import for_terminal, say
from dreamgym.runs.spending import spending


def fidelity(
    env: EnvName,
    model: MeasuredModels = None,
    trajectories: RecordedFile = None,
    held_out: HeldOut = 0.3,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Predict at most this many held-out steps, drawn by the seed.")
    ] = None,
    closed_loop: Annotated[
        int,
        typer.Option(min=0, help="Play this many held-out tasks in dream and reality, and attack the dream's reward."),
    ] = 0,
    judge: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Let this model score the paper's four criteria as well.")
    ] = None,
    cost: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=NUMBER",
            help=f"A cost of the real environment. Repeatable. Keys: {', '.join(Prices.model_fields)}.",
        ),
    ] = None,
    budget: Budget = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write report.html, report.json and calibration.json here. Answers kept here are not asked again."
        ),
    ] = None,
    seed: Seed = 0,
    cluster: Cluster = None,
) -> None:
    """Measure a simulation against recordings that it does not know. No database is read or written.

    Ctrl-C prints the report so far; with --out, the same command continues from there.

    Example: dreamgym fidelity crm/ --model local --closed-loop 20 --out runs/crm
    """
    from dreamgym.evaluation.report.text import as_text
    from dreamgym.runs import fidelity as runs

    with spending(budget, out) as ledger:
        report = runs.fidelity(
            env,
            model or [""],
            trajectories=trajectories,
            held_out=held_out,
            limit=limit,
            closed_loop=closed_loop,
            judge=judge,
            prices=Prices.of(cost or ()),
            out=out,
            seed=seed,
            cluster=cluster,
            say=say,
        )
        typer.echo(for_terminal(as_text(report)))
        ledger.check()
    if not report.complete:
        raise typer.Exit(130)
