"""Strategies that choose the next tasks by the outcomes of their last groups."""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import StrEnum

from dreamgym.curriculum.evidence import Evidence

SHARPNESS = 2
"""Exponent of the value in the draw. In four drifting populations of 400 tasks (100 updates of 8 groups of 8) the share
of groups with a mixed outcome was .68 .41 .46 .29 with a uniform draw, .73 .50 .55 .35 with exponent 1, .76 .56 .62 .40
with 2, and .78 .61 .67 .48 with 3, which plays the same few tasks again and again."""
BAND = (0.2, 0.8)
"""Lowest and highest success of a task that the strategy `band` prefers."""
NEVER = 1e-9
"""Weight of a task without value: it is drawn only if no other task is left."""


class Strategy(StrEnum):
    """How the next tasks are chosen."""

    VALUE = "value"
    """By V_tau (paper, eq. 7). The paper chooses the tasks to vary by it and does not say how the given ones are drawn;
    here V_tau decides both. A task is drawn with a chance that grows with the square of its value: V_tau of its last
    groups, weighted by age and shrunk towards the mean of all tasks. A task that was never tried counts as average."""
    UNIFORM = "uniform"
    """Every task with the same chance."""
    HARDEST = "hardest"
    """Lowest success first; a task that was never tried counts as never solved."""
    BAND = "band"
    """First, with equal chance, tasks whose success lies between two bounds and tasks never tried; then those nearest
    to the bounds."""


def choose(
    n: int, strategy: Strategy, keys: Sequence[str], evidence: Evidence, iteration: int, draw: random.Random
) -> list[int]:
    """Indices of the n keys to play next. No key comes twice while there are enough keys."""
    if strategy is Strategy.VALUE:
        weights = [max(NEVER, value**SHARPNESS) for value in evidence.values(keys, iteration)]
        if n > len(keys):
            return draw.choices(range(len(keys)), weights, k=n)
        # a weighted draw without replacement: exponential waiting times (Efraimidis and Spirakis 2006)
        ranks = [(draw.expovariate(1.0) / weight, 0.0) for weight in weights]
    else:
        successes = [evidence.success(key, iteration) for key in keys]
        ranks = [(_rank(strategy, success), draw.random()) for success in successes]
    best = sorted(range(len(keys)), key=ranks.__getitem__)
    return [best[i % len(best)] for i in range(n)]


def _rank(strategy: Strategy, success: float | None) -> float:
    if strategy is Strategy.UNIFORM or success is None:
        return 0.0
    if strategy is Strategy.HARDEST:
        return success
    low, high = BAND
    return max(0.0, low - success, success - high)
