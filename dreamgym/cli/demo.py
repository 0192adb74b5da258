"""`dreamgym demo`: the whole loop on a real game, with the truth beside the dream."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.options import Dsn
from dreamgym.runs.demo.stages import QUICK, Demo, Size


def demo(
    out: Annotated[Path | None, typer.Option(help="Run folder; naming an interrupted one continues it.")] = None,
    quick: Annotated[bool, typer.Option(help="A minute or two: shows every part, proves nothing.")] = False,
    controls: Annotated[int, typer.Option(min=1, help="Training runs with the history withheld from retrieval.")] = 1,
    dsn: Dsn = None,
) -> None:
    """Show the whole loop on the game coin: at most 20 minutes on two cores, no GPU, no key.

    Example: dreamgym demo
    """
    folder = out or Path("runs") / f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder.mkdir(parents=True, exist_ok=True)
    size = replace(QUICK if quick else Size(), controls=controls)
    Demo(folder.resolve(), size, dsn).run()
    typer.echo((folder / "report.md").read_text(encoding="utf-8"))
