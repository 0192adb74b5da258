"""Where errors become exit codes: one line on stderr, never a traceback for a fault that the user can mend."""

from __future__ import annotations

import sys

import typer

from dreamgym.cli.old_options import refuse_old_options
from dreamgym.errors import DreamGymError, InvalidInput


def run(program: typer.Typer) -> None:
    """Run a program: exit 0 done, 1 failed, 2 misused; typer makes 130 of Ctrl-C."""
    try:
        refuse_old_options(sys.argv[1:])
        program()
    except DreamGymError as error:
        typer.echo(f"dreamgym: {error}", err=True)
        sys.exit(2 if isinstance(error, InvalidInput) else 1)
