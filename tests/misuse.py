"""A refused start of a program, in this process: a new process would spend most of its time on imports."""

import io
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stderr

import pytest


def refused_start(program: Callable[[], None], *arguments: str) -> tuple[int | str | None, str]:
    """Run the program with an empty stdin; return its exit code and stderr."""
    said = io.StringIO()
    with open(os.devnull) as nobody, pytest.MonkeyPatch.context() as patch, redirect_stderr(said):
        patch.setattr(sys, "stdin", nobody)
        patch.setattr(sys, "argv", ["dreamgym", *arguments])
        with pytest.raises(SystemExit) as left:
            program()
    return left.value.code, said.getvalue()
