"""`dreamgym experiment`: train and measure the arms of one file with its seeds, and print one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.options import Budget, Cluster


def experiment(
    file: Annotated[Path, typer.Argument(help="The experiment: a TOML file like those in examples/experiments.")],
    out: Annotated[Path | None, typer.Option(help="Run folder. Default: runs/ and the file's name.")] = None,
    parallel: Annotated[
        int, typer.Option(min=1, help="Number of arms that train at once, each in a process of its own.")
    ] = 1,
    budget: Budget = None,
    cluster: Cluster = None,
) -> None:
    """Train and measure every arm with every seed, and print the table.

    Finished work is kept: after Ctrl-C, the same command continues.

    Example: dreamgym experiment examples/experiments/coin.toml
    """
    from dreamgym.runs.experiment.compare import compare, run_folder
    from dreamgym.runs.spending import spending

    with spending(budget, run_folder(file, out)):
        typer.echo(compare(file, out, parallel=parallel, cluster=cluster))
