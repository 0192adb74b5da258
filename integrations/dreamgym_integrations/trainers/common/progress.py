"""Progress of a training: a line of text every few seconds, or a call after every few updates."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

SAY_EVERY_S = 10.0

Say = Callable[[str], None]


class TimeLeft:
    """Reports every few seconds how much is done, and how long the rest will take.

    Args:
        say: called with the line.
        what: name of the counted things, in the plural.
    """

    def __init__(self, say: Say, what: str) -> None:
        self._say = say
        self._what = what
        self._started: tuple[float, int] | None = None
        self._said = time.monotonic()

    def tell(self, done: int, total: int, more: str = "") -> None:
        """Report the progress if the last line is at least SAY_EVERY_S old."""
        now = time.monotonic()
        if self._started is None:
            self._started = now, done
        if now - self._said < SAY_EVERY_S:
            return
        self._said = now
        since, first = self._started
        left = (now - since) / max(1, done - first) * (total - done)
        # no forecast from the first 2 %: retrieval embeds all keys at the first call
        forecast = f", {left / 60:.0f} min left" if done > total / 50 else ""
        self._say(f"    {done} of {total} {self._what}{more}{forecast}")


class UpdatesDone(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Calls `tell` with the number of updates done and of all: after every 25th, and sooner if they take long.

    Args:
        tell: called with both numbers.
        clock: returns seconds.
    """

    def __init__(self, tell: Callable[[int, int], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._clock = clock
        self._told = clock()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Call `tell` if it is time."""
        if state.global_step % 25 == 0 or self._clock() - self._told >= SAY_EVERY_S:
            self._told = self._clock()
            self._tell(state.global_step, state.max_steps)
