"""The processes in which arms are trained and experience models fitted. Each runs a verb of `dreamgym`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from dreamgym.runs.console import say

_running: set[subprocess.Popen[str]] = set()


def logged(verb: Sequence[str], log: Path, who: str, environ: Mapping[str, str]) -> int:
    """Run a verb with its output in a log, print its progress lines, and return its exit code.

    Args:
        verb: the verb of `dreamgym` and its options.
        log: file to which the output is appended.
        who: text before each printed line.
        environ: environment variables of the process.
    """
    with (
        log.open("a", encoding="utf-8") as file,
        subprocess.Popen(
            [sys.executable, "-m", "dreamgym", *verb],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,  # Ctrl-C is for us, and `interrupt` passes it on
        ) as process,
    ):
        _running.add(process)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                file.write(line)
                file.flush()
                if line.startswith("update "):
                    say(f"{who}: {line.rstrip()}")
        finally:
            _running.discard(process)
    return process.returncode


def interrupt() -> None:
    """Let all running processes save their work and end. They continue from there when they are run again."""
    for process in list(_running):
        process.terminate()
