"""Where errors become exit codes: one line on stderr, never a traceback for a fault that the user can mend."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from dreamgym.cli.old_options import refuse_old_options
from dreamgym.errors import BudgetSpent, DreamGymError, InvalidInput


def run(program: typer.Typer, verb: str = "") -> None:
    """Run a program: exit 0 done, 1 failed, 2 misused, 3 the budget is spent; typer makes 130 of Ctrl-C and SIGTERM.

    Args:
        program: `dreamgym`, or a program of its own for one verb.
        verb: that verb.
    """
    # what is imported stays: to go through it for garbage again and again is a fifth of an import of TRL
    gc.set_threshold(20_000, 20, 50)
    try:
        refuse_old_options([*verb.split(), *sys.argv[1:]])
        with sigterm_as_ctrl_c():
            program()
    except DreamGymError as error:
        typer.echo(f"dreamgym: {error}", err=True)
        sys.exit(2 if isinstance(error, InvalidInput) else 3 if isinstance(error, BudgetSpent) else 1)


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """In the block SIGTERM, by which containers and batch systems end a process, saves and stops as Ctrl-C does."""

    def stop(number: int, frame: FrameType | None) -> None:
        ctrl_c = signal.getsignal(signal.SIGINT)  # ignored in what a shell starts in the background
        (ctrl_c if callable(ctrl_c) else signal.default_int_handler)(number, frame)

    if threading.current_thread() is not threading.main_thread():  # Python sets signal handlers in no other thread
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
