"""`dreamgym seed`: load recorded trajectories, and the tasks they came with, into the buffer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.options import Budget, EnvName


def seed(
    env: EnvName,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="An environment folder, or JSONL with one trajectory per line."),
    ],
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Let this model write a task for recorded episodes that have none."),
    ] = None,
    derive_state: Annotated[
        bool,
        typer.Option(
            "--derive-state",
            help="If the server reports no states, write a schema of its answers' states to env.toml, for review.",
        ),
    ] = False,
    budget: Budget = None,
) -> None:
    """Load recorded trajectories. A changed one replaces the stored one; loading the same again changes nothing.

    `dreamgym serve FOLDER` does the same before it serves. Use this to fill a store without a server.

    Example: dreamgym seed crm crm/
    """
    from dreamgym.runs.seed import seed as load
    from dreamgym.runs.spending import spending

    with spending(budget):
        asyncio.run(load(env, paths, model=model, derives_state=derive_state))
