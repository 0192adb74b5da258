"""What a run says to the person who started it, on stderr; results go to stdout."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Write one line to stderr."""
    print(text, file=sys.stderr, flush=True)
