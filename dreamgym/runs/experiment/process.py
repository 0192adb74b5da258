"""The processes in which arms are trained and experience models fitted: each is a verb of `dreamgym`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from dreamgym.runs.console import say

_running: set[subprocess.Popen[str]] = set()


def logged(verb: Sequence[str], log: Path, who: str, environ: Mapping[str, str]) -> int:
    """Run a verb with its output in a log, and say its lines of progress; its exit code.

    Args:
        verb: the verb of `dreamgym` and its options.
        log: is added to.
        who: what is said before a line of progress.
        environ: the environment's variables.
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
    """Let all that run save what they have and end. They go on from there when they are run again."""
    for process in list(_running):
        process.terminate()
