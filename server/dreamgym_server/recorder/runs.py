"""Decides to which run a request belongs, and when a run is over.

The URL or a header contains the id of the run. All requests at the bare URL belong to one current run, because common
clients open a session per tool call and the newest protocol revision has no sessions. The current run ends when it is
finished over the control API, labelled by `dreamgym label`, or idle for `idle_s`. The next request begins another run.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dreamgym.errors import InvalidInput

RUN_HEADER = "x-dreamgym-run"
IDLE_S = 300.0
"""Idle time after which a run ends. Agents think for less, people and schedules pause for longer."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def checked(run: str) -> str:
    """The run id. Raises InvalidInput if it cannot be the name of a file."""
    if not _ID.fullmatch(run):
        raise InvalidInput(
            f"run id {run[:128]!r}: expected at most 128 letters, digits, '.', '_' and '-', of which the first is a "
            "letter or a digit"
        )
    return run


def new_run() -> str:
    """A new run id. Ids sort by time."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"


class Runs:
    """The runs of one recorder.

    Args:
        folder: the folder of recordings, to which `dreamgym label` writes its notes; None in a dry run.
        idle_s: seconds that the current run of the bare URL may be idle.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self, folder: Path | None, idle_s: float = IDLE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._idle_s, self._clock = folder, idle_s, clock
        self._current: str | None = None
        self._last: float | None = None
        self._open: Counter[str] = Counter()
        self._read: dict[str, tuple[int, int]] = {}
        """Run to the inode of its file and the number of bytes read."""
        self.finished: set[str] = set()

    @property
    def current(self) -> str:
        """The run of the bare URL; a new one if the last one is over."""
        run = self._current
        if run is None or self._is_over(run):
            run, self._last = new_run(), None
            self._current = run
        return run

    @contextmanager
    def asking(self, run: str) -> Iterator[None]:
        """Context manager for a request: while it is under way, its run is not idle."""
        self._open[run] += 1
        try:
            yield
        finally:
            self._open[run] -= 1
            if not self._open[run]:
                del self._open[run]
            if run == self._current:
                self._last = self._clock()

    def finish(self, run: str) -> None:
        """End a run. Later requests belong to it only if they contain its id."""
        self.finished.add(run)

    def _is_over(self, run: str) -> bool:
        if run in self.finished or self._is_labelled(run):
            return True
        return self._open[run] == 0 and self._last is not None and self._clock() - self._last > self._idle_s

    def _is_labelled(self, run: str) -> bool:
        """True if another process has noted an answer or a success for the run."""
        if self._folder is None:
            return False
        try:
            with (self._folder / f"{run}.jsonl").open("rb") as file:
                number = os.fstat(file.fileno()).st_ino
                before, start = self._read.get(run, (number, 0))
                start = start if before == number else 0
                file.seek(start)
                text = file.read()
        except OSError:
            return False
        whole = text.rfind(b"\n") + 1
        self._read[run] = (number, start + whole)
        notes = [line for line in text[:whole].splitlines() if line.startswith(b'{"kind":"note"')]
        return any(b'"answer":' in note or b'"success":' in note for note in notes)
