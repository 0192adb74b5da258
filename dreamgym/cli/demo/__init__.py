"""`dreamgym demo`: the whole loop on a real game, with the truth beside the dream."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.demo.stages import QUICK, Demo, Size
from dreamgym.cli.wiring import Dsn


def demo(
    out: Annotated[Path | None, typer.Option(help="Run folder; naming an interrupted one continues it.")] = None,
    quick: Annotated[bool, typer.Option(help="A minute or two: shows every part, proves nothing.")] = False,
    dsn: Dsn = None,
) -> None:
    """Show the whole loop on the game coin: at most 20 minutes on two cores, no GPU, no key.

    Example: dreamgym demo
    """
    folder = out or Path("runs") / f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder.mkdir(parents=True, exist_ok=True)
    Demo(folder.resolve(), QUICK if quick else Size(), dsn).run()
    typer.echo((folder / "report.md").read_text(encoding="utf-8"))
