"""Which tasks come next, by what their last groups were worth."""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import StrEnum

from dreamgym.curriculum.evidence import Evidence

SHARPNESS = 2
"""Power of the value in the draw. In four drifting populations of 400 tasks (100 updates of 8 groups of 8) the share of
groups with a mixed outcome was .68 .41 .46 .29 drawn uniformly, .73 .50 .55 .35 with 1, .76 .56 .62 .40 with 2 and
.78 .61 .67 .48 with 3, which plays the same few tasks ever again."""
NEVER = 1e-9
"""Weight of a task that is worth nothing: it comes when there is no other."""


class Strategy(StrEnum):
    """How the next tasks are chosen."""

    VALUE = "value"
    """By V_tau (paper, eq. 7). The paper chooses the tasks that are varied by it, and is silent on how the given ones
    come; here both come by it. A task is drawn with a chance that grows with the square of its value, which is that of
    its last groups by age, drawn towards the mean of all tasks: what was never tried comes as often as the average."""
    UNIFORM = "uniform"
    """Every task alike."""
    HARDEST = "hardest"
    """Lowest success first; what was never tried counts as never solved."""
    BAND = "band"
    """Those whose success lies between two bounds, and those never tried, alike; then those nearest to the bounds."""


def choose(
    n: int,
    strategy: Strategy,
    keys: Sequence[str],
    evidence: Evidence,
    iteration: int,
    *,
    band: tuple[float, float],
    draw: random.Random,
) -> list[int]:
    """Positions of the n keys to play next; none twice while there are enough of them."""
    if strategy is Strategy.VALUE:
        weights = [max(NEVER, value**SHARPNESS) for value in evidence.values(keys, iteration)]
        if n > len(keys):
            return draw.choices(range(len(keys)), weights, k=n)
        # a weighted draw without replacement: exponential waiting times (Efraimidis and Spirakis 2006)
        ranks = [(draw.expovariate(1.0) / weight, 0.0) for weight in weights]
    else:
        successes = [evidence.success(key, iteration) for key in keys]
        ranks = [(_rank(strategy, success, band), draw.random()) for success in successes]
    best = sorted(range(len(keys)), key=ranks.__getitem__)
    return [best[i % len(best)] for i in range(n)]


def _rank(strategy: Strategy, success: float | None, band: tuple[float, float]) -> float:
    if strategy is Strategy.UNIFORM or success is None:
        return 0.0
    if strategy is Strategy.HARDEST:
        return success
    low, high = band
    return max(0.0, low - success, success - high)
