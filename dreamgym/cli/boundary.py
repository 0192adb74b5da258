"""Turns errors into exit codes and one line on stderr, without a traceback for faults that the user can mend."""

from __future__ import annotations

import errno
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from dreamgym.cli import INTERRUPTED
from dreamgym.cli.old_options import refuse_old_options
from dreamgym.errors import BudgetSpent, DreamGymError, InvalidInput
from dreamgym.runs.console import for_terminal

UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
"""Errors of a disk that takes no more."""
UNUSABLE = {errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}
"""Errors of a path that the user has given."""


def run(program: typer.Typer, verb: str = "") -> None:
    """Run a program. It exits with 0 done, 1 failed, 2 misused, 3 budget spent, or 130 after Ctrl-C or SIGTERM (typer).

    Args:
        program: `dreamgym`, or the separate program of one verb.
        verb: the verb of a separate program.
    """
    try:
        refuse_old_options([*verb.split(), *sys.argv[1:]])
        with sigterm_as_ctrl_c():
            program()
    except KeyboardInterrupt:  # typer handles it while it runs the verb, but not before and after
        sys.exit(INTERRUPTED)
    except OSError as error:
        if error.errno in UNUSABLE and error.filename is not None:
            typer.echo(
                f"dreamgym: {error.filename} cannot be used: {error.strerror}; check the path, and who may read and "
                "write it",
                err=True,
            )
            sys.exit(2)
        if error.errno not in UNWRITABLE:
            raise
        typer.echo(
            f"dreamgym: {error.filename or 'a file'} cannot be written: {error.strerror}; make room or give another "
            "place, and run the same command again",
            err=True,
        )
        sys.exit(1)
    except DreamGymError as error:
        typer.echo(f"dreamgym: {for_terminal(str(error))}", err=True)
        sys.exit(2 if isinstance(error, InvalidInput) else 3 if isinstance(error, BudgetSpent) else 1)


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Make SIGTERM save and stop as Ctrl-C does, in the block. Containers and batch systems end processes with it."""

    def stop(number: int, frame: FrameType | None) -> None:
        ctrl_c = signal.getsignal(signal.SIGINT)  # ignored in a process that a shell starts in the background
        (ctrl_c if callable(ctrl_c) else signal.default_int_handler)(number, frame)

    if threading.current_thread() is not threading.main_thread():  # Python sets signal handlers only in the main one
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
