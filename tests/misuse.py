"""A start that is refused, without a process of its own: most of such a process is imports."""

import io
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stderr

import pytest


def refused_start(program: Callable[[], None], *arguments: str) -> tuple[int | str | None, str]:
    """Exit code of the program and what it says to stderr; with nobody on stdin."""
    said = io.StringIO()
    with open(os.devnull) as nobody, pytest.MonkeyPatch.context() as patch, redirect_stderr(said):
        patch.setattr(sys, "stdin", nobody)
        patch.setattr(sys, "argv", ["dreamgym", *arguments])
        with pytest.raises(SystemExit) as left:
            program()
    return left.value.code, said.getvalue()
