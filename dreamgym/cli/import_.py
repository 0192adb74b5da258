"""`dreamgym import`: import existing trajectories from other formats."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.recordings.importers import FORMATS


def import_(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="[FORMAT] FILE...",
            help=f"Files, plain, .xz or .gz. Their format is detected unless it stands first: {', '.join(FORMATS)}.",
        ),
    ],
    env: Annotated[str, typer.Option("--env", metavar="ENV", help="The environment: a name, or a folder.")],
    new: Annotated[
        bool, typer.Option("--new", help="Create the whole folder ENV from the files and the tool definitions in them.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write JSONL here instead of storing in the buffer.")] = None,
) -> None:
    """Import recorded conversations, traces and runs. What cannot be used is listed with the reason; the rest is kept.

    Example: dreamgym import chats.jsonl --env crm/
    """
    from dreamgym.runs.importing import import_files

    asyncio.run(import_files(files, env, new=new, out=out))
