"""Messages of a run to the person who started it. They go to stderr; results go to stdout."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence

SPEAK_EVERY_S = 5.0
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)")


def say(text: str) -> None:
    """Write one line to stderr."""
    print(for_terminal(text), file=sys.stderr, flush=True)


def for_terminal(text: str) -> str:
    """The text without control characters other than line breaks and tabs.

    With them, a recording or a task could clear the terminal, change its title or fill the clipboard.
    """
    return _CONTROL.sub("\ufffd", text)


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
