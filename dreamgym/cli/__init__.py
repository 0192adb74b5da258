"""The command line, with one thin file per verb. It may import all four packages; nothing imports it.

Results go to stdout, messages to stderr. Exit codes: 0 done, 1 failed, 2 misused.

The entry points import their program themselves, because this takes most of a second and Ctrl-C may come meanwhile.
"""

from __future__ import annotations

import gc
import sys

# imported modules stay in memory: searching them for garbage again and again takes a quarter of a command's start
gc.set_threshold(20_000, 20, 50)

INTERRUPTED = 130
"""Exit code after Ctrl-C, as of typer."""


def main() -> None:
    """Entry point of `dreamgym`."""
    try:
        from dreamgym.cli.app import main as program
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    program()


def main_serve() -> None:
    """Entry point of `dreamgym-serve`."""
    try:
        from dreamgym.cli.serve import main as program
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    program()
