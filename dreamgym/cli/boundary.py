"""Where errors become exit codes: one line on stderr, never a traceback for a fault that the user can mend."""

from __future__ import annotations

import gc
import sys

import typer

from dreamgym.cli.old_options import refuse_old_options
from dreamgym.errors import BudgetSpent, DreamGymError, InvalidInput


def run(program: typer.Typer, verb: str = "") -> None:
    """Run a program: exit 0 done, 1 failed, 2 misused, 3 the budget is spent; typer makes 130 of Ctrl-C.

    Args:
        program: `dreamgym`, or a program of its own for one verb.
        verb: that verb.
    """
    # what is imported stays: to go through it for garbage again and again is a fifth of an import of TRL
    gc.set_threshold(20_000, 20, 50)
    try:
        refuse_old_options([*verb.split(), *sys.argv[1:]])
        program()
    except DreamGymError as error:
        typer.echo(f"dreamgym: {error}", err=True)
        sys.exit(2 if isinstance(error, InvalidInput) else 3 if isinstance(error, BudgetSpent) else 1)
