"""`dreamgym view`: look at episodes, recordings, training and reports in a browser."""

from __future__ import annotations

import asyncio
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.runs.console import say


def view(
    folder: Annotated[Path | None, typer.Argument(metavar="[RUNFOLDER]", help="A run folder to show as well.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Show the store and a run folder as a page on this machine, for one who has its address.

    Nothing is changed. What servers and training runs do meanwhile is shown as it happens.

    Example: dreamgym view runs/demo
    """
    from dreamgym.runs.view import view_until_stopped

    def tell(address: str) -> None:
        typer.echo(address)
        say("Ctrl-C ends it")
        if browser:
            webbrowser.open(address)

    asyncio.run(view_until_stopped(folder, tell, port=port))
