"""`dreamgym import`: trajectories that people already have, from the formats they have them in."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.options import Dsn
from dreamgym.recordings.importers import FORMATS


def import_(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="[FORMAT] FILE...", help="Files, plain, .xz or .gz. A FORMAT before them is the same as --format."
        ),
    ],
    env: Annotated[str, typer.Option("--env", metavar="ENV", help="The environment: a name, or a folder.")],
    format_: Annotated[
        str | None, typer.Option("--format", help=f"Format of the files; detected by default: {', '.join(FORMATS)}.")
    ] = None,
    new: Annotated[
        bool, typer.Option("--new", help="Create the folder ENV from the tool definitions in the files.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write JSONL here instead of storing in the buffer.")] = None,
    dsn: Dsn = None,
) -> None:
    """Import recorded conversations, traces and runs. What cannot be used is named with the reason, the rest is kept.

    Example: dreamgym import chats.jsonl --env crm/
    """
    from dreamgym.runs.importing import import_files

    asyncio.run(import_files(files, env, format_=format_, new=new, out=out, dsn=dsn))
