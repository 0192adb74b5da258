"""Messages of a run to the person who started it. They go to stderr; results go to stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

SPEAK_EVERY_S = 5.0


def say(text: str) -> None:
    """Write one line to stderr."""
    print(text, file=sys.stderr, flush=True)


def listed(names: Sequence[str], most: int = 20) -> str:
    """The names with commas between them. Of more than `most`, only the first, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def now_and_then(speak: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that calls `speak` at most once in SPEAK_EVERY_S seconds."""
    spoken = time.monotonic()

    def progress(text: str) -> None:
        nonlocal spoken
        if time.monotonic() - spoken > SPEAK_EVERY_S:
            spoken = time.monotonic()
            speak(text)

    return progress
