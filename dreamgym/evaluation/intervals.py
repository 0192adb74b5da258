"""Rank correlation between two worlds, and proportions of steps, with intervals."""

from __future__ import annotations

import random
from collections.abc import Sequence

from dreamgym.evaluation.rates import Rate, clustered

RESAMPLES = 2000


def ranks(values: Sequence[float]) -> list[float]:
    """Rank of each value from 1; equal values share the mean of their ranks."""
    ordered = sorted(values)
    first = {value: place for place, value in reversed(list(enumerate(ordered, start=1)))}
    return [first[value] + (ordered.count(value) - 1) / 2 for value in values]


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's rank correlation: Pearson's of the ranks. None where there is no order: one side is constant."""
    a, b = ranks(one), ranks(other)
    mean = (len(a) + 1) / 2
    covariance = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    variances = sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b)
    return None if variances == 0 else max(-1.0, min(1.0, covariance / variances**0.5))


def rank_correlation(
    one_PN: Sequence[Sequence[float | None]], other_PN: Sequence[Sequence[float | None]], *, seed: int = 0
) -> Rate | None:
    """Rank correlation of the mean outcome of P players between two worlds, with a bootstrap interval over N tasks.

    Where an outcome is missing in one world the task does not count for this player. Draws without an order are left
    out. None for fewer than three players, or where all players are equally good in one of the worlds.
    """
    pairs_NP = [
        list(zip(*column, strict=True)) for column in zip(_transposed(one_PN), _transposed(other_PN), strict=True)
    ]
    if len(one_PN) < 3 or not pairs_NP or (mean := _correlation(pairs_NP)) is None:
        return None
    draw = random.Random(seed)
    drawn = (_correlation(draw.choices(pairs_NP, k=len(pairs_NP))) for _ in range(RESAMPLES))
    found = sorted(value for value in drawn if value is not None) or [mean]
    low, high = _percentiles(found)
    return Rate(mean=mean, low=min(low, mean), high=max(high, mean), n=len(one_PN))


def by_cluster(values_CN: Sequence[Sequence[float]], *, seed: int = 0) -> Rate:
    """Mean of values in [0, 1] that are given cluster by cluster, such as the steps of each episode."""
    flat = [(value, str(number)) for number, values in enumerate(values_CN) for value in values]
    return clustered([value for value, _ in flat], [number for _, number in flat], seed=seed)


def _transposed(rows: Sequence[Sequence[float | None]]) -> list[list[float | None]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _correlation(pairs_NP: Sequence[Sequence[tuple[float | None, float | None]]]) -> float | None:
    one, other = [], []
    for pairs in zip(*pairs_NP, strict=True):
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        if not known:
            return None
        one.append(sum(a for a, _ in known) / len(known))
        other.append(sum(b for _, b in known) / len(known))
    return spearman(one, other)


def _percentiles(ordered: Sequence[float]) -> tuple[float, float]:
    n = len(ordered)
    return ordered[int(0.025 * n)], ordered[max(0, int(0.975 * n) - 1)]
