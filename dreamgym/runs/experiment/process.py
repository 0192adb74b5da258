"""The processes in which arms are trained and experience models fitted. Each runs a verb of `dreamgym`."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from dreamgym.errors import EnvironmentUnavailable
from dreamgym.runs.console import say

_running: set[subprocess.Popen[str]] = set()
_starting = threading.Lock()
"""Held while a process starts, so that `interrupt` misses none."""
_interrupted = threading.Event()


def logged(verb: Sequence[str], log: Path, who: str, environ: Mapping[str, str]) -> int:
    """Run a verb with its output in a log, print its progress lines, and return its exit code.

    Args:
        verb: the verb of `dreamgym` and its options.
        log: file to which the output is appended.
        who: text before each printed line.
        environ: environment variables of the process.

    Raises:
        EnvironmentUnavailable: the experiment was interrupted; the verb was not run.
    """
    with log.open("a", encoding="utf-8") as file, _started(verb, environ) as process:
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


def _started(verb: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[str]:
    with _starting:
        check_interrupted()
        process = subprocess.Popen(
            [sys.executable, "-m", "dreamgym", *verb],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",  # agents and games print what they like
            process_group=0,  # Ctrl-C is for us, and `interrupt` passes it on
        )
        _running.add(process)
    return process


def begin() -> None:
    """Let processes start again after an earlier `interrupt`."""
    _interrupted.clear()


def interrupt() -> None:
    """Let all running processes save their work and end, and no other start until `begin` is called.

    The processes continue from there when they are run again.
    """
    with _starting:
        _interrupted.set()
        for process in list(_running):
            process.terminate()


def check_interrupted() -> None:
    """Raises EnvironmentUnavailable after `interrupt`, so that a thread begins no further work."""
    if _interrupted.is_set():
        raise EnvironmentUnavailable("the experiment was interrupted: run the same command again to continue")
