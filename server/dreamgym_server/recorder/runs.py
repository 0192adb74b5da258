"""Which run a request belongs to, and which runs there are.

The run is named in the URL or in a header. At the bare URL everything belongs to one current run, because common
clients open a session per tool call and the newest protocol revision has none. It ends when it is finished, over the
control API or by `dreamgym label`, or when nothing was asked for `idle_s`; the next request begins another one.
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
"""Agents think for less, people and schedules for more."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def checked(run: str) -> str:
    """A run id that can be a file's name. Raises InvalidInput."""
    if not _ID.fullmatch(run):
        raise InvalidInput(f"run id {run[:128]!r}: expected at most 128 letters, digits, '.', '_' and '-'")
    return run


def new_run() -> str:
    """An id that sorts by time."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"


class Runs:
    """The runs of one recorder.

    Args:
        folder: the folder of recordings, where `dreamgym label` leaves its notes; None in a dry run.
        idle_s: how long the current run of the bare URL may be silent.
        clock: seconds that only grow.
    """

    def __init__(
        self, folder: Path | None, idle_s: float = IDLE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._idle_s, self._clock = folder, idle_s, clock
        self._current: str | None = None
        self._last: float | None = None
        self._open: Counter[str] = Counter()
        self._read: dict[str, tuple[int, int]] = {}
        """By run: which file it was, and how far it was read."""
        self.finished: set[str] = set()

    @property
    def current(self) -> str:
        """The run of the bare URL; a new one where the last is over."""
        run = self._current
        if run is None or self._is_over(run):
            run, self._last = new_run(), None
            self._current = run
        return run

    @contextmanager
    def asking(self, run: str) -> Iterator[None]:
        """While a request is under way its run is not idle."""
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
        """Nothing more belongs to this run, unless it is named."""
        self.finished.add(run)

    def _is_over(self, run: str) -> bool:
        if run in self.finished or self._is_labelled(run):
            return True
        return self._open[run] == 0 and self._last is not None and self._clock() - self._last > self._idle_s

    def _is_labelled(self, run: str) -> bool:
        """Somebody said how the run ended, from another process."""
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
