"""`dreamgym demo`: the whole loop on a real game, shown in the dream and in the real game."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.errors import InvalidInput


def demo(
    env: Annotated[str, typer.Argument(help="coin, or alfworld with the games from your own download.")] = "coin",
    out: Annotated[Path | None, typer.Option(help="Run folder; naming an interrupted one continues it.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One agent at a simulated shop, in seconds: nothing is trained.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Three seeds, 100 updates, more arms: about an hour.")] = False,
) -> None:
    """Show the whole loop on a real game: at most five minutes on two cores, no GPU, no key.

    Example: dreamgym demo
    """
    if quick:
        if env != "coin" or out is not None or full:
            raise InvalidInput("--quick plays one episode at a simulated shop: leave out ENV, --out and --full")
        from dreamgym.runs.quick import first_look

        typer.echo(asyncio.run(first_look()))
        return
    from dreamgym.runs.demo import demo as run

    typer.echo(run(out or Path("runs") / f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}", env, full=full))
