"""Shows the progress of training: a table that is redrawn in a terminal, single lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from dreamgym.evaluation.rates import shares
from dreamgym.runs.console import say
from dreamgym.training.record import tiers_of
from dreamgym.types import JsonObject

WINDOW = 10
"""Number of updates that a mean is taken over."""
BARS = "▁▂▃▄▅▆▇█"
BINS = 5
"""Number of bins of the histogram of values, from 0 to 0.25."""


class Progress:
    """Collects the lines of the record as they are written.

    Args:
        steps: number of updates of the run.
        where: environment of the practice, `dream` or `real`.
    """

    def __init__(self, steps: int, where: str) -> None:
        self.steps, self.where = steps, where
        self._began: tuple[int, float] | None = None
        self._recent: deque[JsonObject] = deque(maxlen=WINDOW)
        self._probe: JsonObject | None = None
        self._learned: JsonObject = {}

    def take(self, line: JsonObject) -> None:
        if "rollout_s" in line:
            self._began = self._began or (_whole(line, "step"), time.monotonic() - _number(line, "rollout_s"))
            self._recent.append(line)
        elif "real_success" in line:
            self._probe = line
        elif "loss" in line:
            self._learned = line

    def sentence(self, *names: str) -> str:
        """The rows of these names in one line; without names, all rows."""
        return ", ".join(f"{name} {value}" for name, value in self.rows() if value and (not names or name in names))

    def rows(self) -> Iterator[tuple[str, str]]:
        """Name and value of each figure that is shown."""
        if self._recent:
            yield "update", f"{_whole(self._recent[-1], 'step') + 1} of {self.steps}"
            yield "means of the last", f"{len(self._recent)} updates" if len(self._recent) > 1 else ""
            known = [_number(line, "inside_success") for line in self._recent if line["inside_success"] is not None]
            practice = "the dream" if self.where == "dream" else "real practice"
            yield f"success in {practice}", f"{sum(known) / len(known):.0%}" if known else "unknown"
            yield "answered by", shares(tiers_of(self._recent))
        if self._probe is not None:
            shown = "unknown"
            if self._probe["real_success"] is not None:
                low, high = (100 * _number(self._probe, name) for name in ("real_low", "real_high"))
                shown = f"{_number(self._probe, 'real_success'):.0%} [{low:.0f}, {high:.0f}]"
            yield "success in reality", f"{shown} at update {self._probe['step']}"
        if self._recent:
            yield "refused actions", f"{self._mean('refused_share'):.0%}"
            yield "steps per episode", f"{self._mean('mean_steps'):.1f}"
            yield "dead groups", f"{self._mean('dead_groups') / max(1e-9, self._mean('groups')):.0%}"
            yield "values of tasks, 0 to 0.25", self._histogram()
            tokens, seconds = self._mean("sampled_tokens"), self._mean("rollout_s")
            yield "sampled tokens per second", f"{tokens / max(1e-9, seconds):,.0f}"
        yield from (
            (name, f"{_number(self._learned, name):.3g}") for name in ("kl", "entropy") if name in self._learned
        )
        if self._recent:
            yield "time left", self._left()

    def _mean(self, name: str) -> float:
        return sum(_number(line, name) for line in self._recent) / len(self._recent)

    def _histogram(self) -> str:
        values = [value for line in self._recent for value in _values(line)]
        counts = [0] * BINS
        for value in values:
            counts[min(BINS - 1, int(value / 0.25 * BINS))] += 1
        return "".join(BARS[round(count / max(counts) * (len(BARS) - 1))] for count in counts) if values else ""

    def _left(self) -> str:
        if self._began is None:
            return ""
        first, began = self._began
        done = _whole(self._recent[-1], "step") + 1
        seconds = (time.monotonic() - began) / (done - first) * (self.steps - done)
        return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


@contextmanager
def shown(progress: Progress) -> Iterator[None]:
    """Draw the progress while the run goes on. Without a terminal, `say_line` prints lines instead."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    def table() -> Table:
        drawn = Table(box=None, show_header=False, pad_edge=False)
        for name, value in progress.rows():
            drawn.add_row(name, value)
        return drawn

    with Live(console=Console(stderr=True), get_renderable=table, refresh_per_second=2):
        yield


def say_line(progress: Progress, line: JsonObject) -> None:
    """Without a terminal, print a line for the first, each fifth after it and the last update, and for every probe."""
    if sys.stderr.isatty():
        return
    if "real_success" in line:
        say(progress.sentence("update", "success in reality"))
    elif "rollout_s" in line and (_whole(line, "step") % 5 == 0 or _whole(line, "step") + 1 == progress.steps):
        say(progress.sentence())


def _values(line: JsonObject) -> list[float]:
    values = line.get("values")
    return [float(str(value)) for value in values if value is not None] if isinstance(values, list) else []


def _number(line: JsonObject, name: str) -> float:
    return float(str(line[name]))


def _whole(line: JsonObject, name: str) -> int:
    return int(str(line[name]))
