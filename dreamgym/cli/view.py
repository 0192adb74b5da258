"""`dreamgym view`: look at episodes, recordings, training and reports in a browser."""

from __future__ import annotations

import asyncio
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.errors import InvalidInput
from dreamgym.runs.console import say


def view(
    folder: Annotated[Path | None, typer.Argument(metavar="[RUNFOLDER]", help="A run folder to show as well.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    write: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Let the page fork episodes and play on by hand at this server, which has the same store. Its token "
            "is that of DREAMGYM_TOKEN.",
        ),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write the page as files that need no server: of RUNFOLDER, else of the store.")
    ] = None,
) -> None:
    """Show the store and a run folder as a page on this machine, for anyone who has its address.

    Without --write, nothing is changed. The page shows what servers and training runs do as it happens.

    Example: dreamgym view runs/demo
    """
    from dreamgym.runs.view import export_view, view_until_stopped

    if export is not None:
        if write is not None:
            raise InvalidInput("--write is for a page with a server: leave it out, or --export")
        episodes = asyncio.run(export_view(folder, export))
        say(f"{episodes} episodes with everything recorded in them: anyone who gets the files can read it")
        typer.echo(export / "index.html")
        return

    def tell(address: str, once: str) -> None:
        typer.echo(address)
        say("press Ctrl-C to stop")
        if browser:
            webbrowser.open(once)

    asyncio.run(view_until_stopped(folder, tell, port=port, write=write))
