"""Rates with intervals: proportions, paired differences, means over seeds, rank correlations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from dreamgym.types import Frozen

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RESAMPLES = 2000
DRAWN = 1 << 24
"""Number of cluster numbers that are drawn at a time: 128 MiB, and as much again in each array of a statistic."""
SEEDS = 1 << 64
"""Number of seeds of numpy that are used: it takes no negative seed."""
NORMAL = 1.959964
"""97.5 % quantile of the normal distribution."""
ROUNDING = 1e-9
"""Values that differ by less are equal: the rest is rounding."""
PIECES = 100
"""Number of pieces of an integral by Simpson's rule; even."""
LARGEST_FREEDOM = 1e6
"""From these degrees of freedom on, Student's t is the normal distribution to five digits."""


class Rate(Frozen):
    """A proportion with its 95 % interval."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        if not self.n:
            return "unknown"
        return f"{100 * self.mean:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"


def shares(counts: Mapping[str, int]) -> str:
    """Each count in percent of all, the largest first: `recorded 92 %, model 8 %`."""
    total = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {count / total:.0%}".replace("%", " %") for name, count in ordered if count)


def wilson(successes: float, n: int) -> Rate:
    """Wilson score interval of a proportion (Wilson 1927); for scores between 0 and 1 it is wider than need be."""
    if n == 0:
        return Rate(mean=0.0, low=0.0, high=1.0, n=0)
    low, high = _wilson_ends(successes / n, n)
    return Rate(mean=successes / n, low=low, high=high, n=n)


def _wilson_ends(p: float, n: float) -> tuple[float, float]:
    z = NORMAL
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    margin = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, min(p, centre - margin)), min(1.0, max(p, centre + margin))


def paired_difference(before_SN: Sequence[Sequence[float]], after_SN: Sequence[Sequence[float]]) -> Rate:
    """Mean of after - before over S training seeds and N tasks, with a 95 % interval for other seeds and other tasks.

    Student's t with both as random factors: the variance of the mean is (MS_seeds + MS_tasks - MS_rest) / (S N) of a
    two-way analysis of variance without replication, with Satterthwaite's degrees of freedom. The interval is never
    narrower than Student's t over the means of the seeds. A percentile bootstrap over seeds and tasks covers only 84 to
    87 % if five seeds scatter widely. With a single seed, the interval is for other tasks alone.

    If these have no width although the differences vary, the interval is Student's t over all differences. If all
    differences are equal, it extends on both sides by Wilson's upper bound for an event that occurs in no task.

    Args:
        before_SN: outcome of each of S training seeds on each of N tasks, before.
        after_SN: the same tasks in the same order, after.
    """
    differences_SN = [
        [a - b for a, b in zip(after_N, before_N, strict=True)]
        for before_N, after_N in zip(before_SN, after_SN, strict=True)
    ]
    means_N = [math.fsum(column) / len(column) for column in zip(*differences_SN, strict=True)]
    means_S = [math.fsum(row) / len(row) for row in differences_SN]
    seeds, n = len(means_S), len(means_N)
    all_values = [value for row in differences_SN for value in row]
    if len(all_values) > 1 and max(all_values) - min(all_values) < ROUNDING:
        low, high = _around_equal(means_N[0], n)
        return Rate(mean=means_N[0], low=low, high=high, n=n)
    if seeds == 1:
        return mean_over_seeds(means_N).model_copy(update={"n": n})
    rate = mean_over_seeds(means_S)
    of_seeds = n * _variance(means_S)
    of_tasks = seeds * _variance(means_N)
    rest = math.fsum(
        (value - means_S[s] - means_N[t] + rate.mean) ** 2
        for s, row in enumerate(differences_SN)
        for t, value in enumerate(row)
    ) / max(1, (seeds - 1) * (n - 1))
    both = of_seeds + of_tasks - rest
    margin = rate.high - rate.mean
    if n > 1 and both > of_seeds:
        parts = of_seeds**2 / (seeds - 1) + of_tasks**2 / (n - 1) + rest**2 / ((seeds - 1) * (n - 1))
        margin = max(margin, _quantile(both**2 / parts) * math.sqrt(both / (seeds * n)))
    if margin < ROUNDING:  # the seeds agree by chance
        margin = _quantile(seeds * n - 1) * math.sqrt(_variance(all_values) / (seeds * n))
    return Rate(mean=rate.mean, low=rate.mean - margin, high=rate.mean + margin, n=n)


def mean_over_seeds(values_S: Sequence[float]) -> Rate:
    """Mean of one number per training seed with a 95 % interval by Student's t; without bounds for a single seed.

    If all seeds agree, the interval has no width: that is chance, and tables leave the interval out.
    """
    n = len(values_S)
    mean = math.fsum(values_S) / n
    if n == 1:
        return Rate(mean=mean, low=-math.inf, high=math.inf, n=1)
    margin = _quantile(n - 1) * math.sqrt(_variance(values_S) / n)
    return Rate(mean=mean, low=mean - margin, high=mean + margin, n=n)


def _variance(values: Sequence[float]) -> float:
    """Variance, divided by n - 1; 0 for a single value."""
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)


@cache
def _quantile(freedom: float) -> float:
    """97.5 % quantile of Student's t, right to five digits; from 1 degree of freedom on, also between whole ones.

    With t = sqrt(freedom) tan(angle) the density is proportional to cos(angle) ** (freedom - 1), which Simpson's rule
    integrates. Newton's method goes from the normal's quantile, which is below, up to that of Student's t.
    """
    freedom = min(max(1.0, freedom), LARGEST_FREEDOM)
    whole = math.sqrt(math.pi) * math.exp(math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2))
    t = NORMAL
    for _ in range(12):
        end = math.atan(t / math.sqrt(freedom))
        density = [math.cos(end * i / PIECES) ** (freedom - 1) for i in range(PIECES + 1)]
        inside = end / PIECES / 3 * (density[0] + 4 * sum(density[1::2]) + 2 * sum(density[2:-1:2]) + density[-1])
        t += (0.475 * whole - inside) * math.sqrt(freedom) / math.cos(end) ** (freedom + 1)
    return t


def bootstrap(
    statistic: Callable[[NDArray[np.intp]], NDArray[np.float64]], clusters: int, *, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap over clusters: the ends of a 95 % interval.

    Args:
        statistic: returns the value of each row of R x `clusters` drawn cluster numbers; may leave rows out.
        clusters: number of clusters.
        seed: seed of the draws; it may be negative.
    """
    import numpy as np

    random, rows = np.random.default_rng(seed % SEEDS), max(1, DRAWN // max(1, clusters))
    sizes = [min(rows, RESAMPLES - done) for done in range(0, RESAMPLES, rows)]
    values = [statistic(random.integers(clusters, size=(size, clusters))) for size in sizes]
    low, high = np.percentile(np.concatenate(values), [2.5, 97.5])
    return float(low), float(high)


def numbered(clusters: Sequence[str]) -> tuple[list[int], int]:
    """The number of each value's cluster, and how many clusters there are."""
    names = {name: i for i, name in enumerate(sorted(set(clusters)))}
    return [names[name] for name in clusters], len(names)


def clustered(values: Sequence[float], clusters: Sequence[str]) -> Rate:
    """Mean of values in [0, 1] that come in clusters, such as the steps of a trajectory.

    The interval is Wilson's for the effective number of values (Korn and Graubard 1998, who use Clopper and Pearson's).
    A bootstrap over clusters covers as little as 34 % of the shares near 0 or 1. If rare events come together in a few
    clusters, the interval covers about 90 %: 0.90 of 3,000 draws of 20 clusters of 20 values with a share of 0.05, if
    the share of a cluster is Beta(0.2, 3.8), and 0.95 if it is Beta(1, 19).
    """
    plain = wilson(sum(values), len(values))
    if not values:
        return plain
    low, high = _wilson_ends(plain.mean, _effective_number(values, clusters))
    # by rounding alone, an end near 0 or 1 could lie within those of independent values
    return plain.model_copy(update={"low": min(low, plain.low), "high": max(high, plain.high)})


def _effective_number(values: Sequence[float], clusters: Sequence[str]) -> float:
    """The number of independent values whose mean p would vary as much: p (1 - p) / variance of the mean.

    The variance is that between clusters; for few of them, the number is smaller, by as much as Student's t demands. It
    is at least 1, and at most the number of values. Clusters of different sizes count as (sum n)^2 / sum n^2 equal ones
    (Kish 1965): a long one hides how few there are. Values that are all equal do not show how clusters differ: they
    count once per cluster, as counted so.
    """
    import numpy as np

    owners, n_clusters = numbered(clusters)
    n, mean = len(values), math.fsum(values) / len(values)
    equal = n**2 / float((np.bincount(owners) ** 2).sum())
    if n_clusters == 1 or max(values) - min(values) < ROUNDING:
        return equal
    sums_C = np.bincount(owners, weights=np.array(values, dtype=float) - mean)
    variance = float((sums_C**2).sum()) / n**2 * equal / (equal - 1)
    fewer = (NORMAL / _quantile(equal - 1)) ** 2
    return max(1.0, fewer * min(n, mean * (1 - mean) / variance if variance else n))


def by_cluster(values_CN: Sequence[Sequence[float]]) -> Rate:
    """`clustered` for values that are given cluster by cluster, such as the steps of each episode."""
    flat = [(value, str(number)) for number, values in enumerate(values_CN) for value in values]
    return clustered([value for value, _ in flat], [number for _, number in flat])


def clustered_difference(differences: Sequence[float], clusters: Sequence[str], *, seed: int = 0) -> Rate:
    """Mean of paired differences in [-1, 1] with a bootstrap over clusters, wider for few of them.

    If all differences are equal, the bootstrap has no width. The interval then extends on both sides by Wilson's upper
    bound for an event that occurs in none of the clusters.
    """
    if not differences:
        return Rate(mean=0.0, low=-1.0, high=1.0, n=0)
    mean = math.fsum(differences) / len(differences)
    low, high = _mean_interval(differences, clusters, seed)
    if high - low < ROUNDING:
        low, high = _around_equal(mean, len(set(clusters)))
    return Rate(mean=mean, low=max(-1.0, min(low, mean)), high=min(1.0, max(high, mean)), n=len(differences))


def _around_equal(value: float, clusters: int) -> tuple[float, float]:
    """The ends of an interval around a value in [-1, 1] that is the same in all clusters, or in all draws of them."""
    unseen = wilson(0, clusters).high
    return max(-1.0, value - unseen), min(1.0, value + unseen)


def with_width(rate: Rate, clusters: int) -> Rate:
    """The rate; if its bootstrap over clusters is a single point, with the interval of values that are all equal."""
    if rate.high - rate.low >= ROUNDING:
        return rate
    low, high = _around_equal(rate.mean, clusters)
    return rate.model_copy(update={"low": low, "high": high})


def _mean_interval(values: Sequence[float], clusters: Sequence[str], seed: int) -> tuple[float, float]:
    """The ends of a bootstrap over clusters, wider by as much as Student's t is for so few of them.

    A percentile bootstrap alone covers only 49 % for 2 clusters, 82 % for 6 and 92 % for 12.
    """
    import numpy as np

    owners, n = numbered(clusters)
    sums_C = np.bincount(owners, weights=np.array(values, dtype=float), minlength=n)
    counts_C = np.bincount(owners, minlength=n)
    low, high = bootstrap(lambda drawn_RC: sums_C[drawn_RC].sum(axis=1) / counts_C[drawn_RC].sum(axis=1), n, seed=seed)
    return widened(math.fsum(values) / len(values), low, high, n)


def widened(mean: float, low: float, high: float, clusters: int) -> tuple[float, float]:
    """The ends of a bootstrap over clusters, further from the mean by as much as Student's t is for so few of them."""
    wider = _quantile(clusters - 1) / NORMAL * math.sqrt(clusters / (clusters - 1)) if clusters > 1 else 1.0
    return mean - wider * (mean - low), mean + wider * (high - mean)


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's rank correlation: Pearson's of the ranks. None if one side is constant and so has no order."""
    import numpy as np

    found = _spearman(np.array([one]), np.array([other]))
    return float(found[0]) if len(found) else None


def rank_correlation(
    one_PN: Sequence[Sequence[float | None]], other_PN: Sequence[Sequence[float | None]], *, seed: int = 0
) -> Rate | None:
    """Rank correlation of the mean outcome of P players between two worlds, with a bootstrap interval over N tasks.

    If an outcome is missing in one world, the task does not count for this player. A draw without an order counts as 0:
    if many draws have none, the order rests on a few tasks. The interval is wider for few tasks; if all draws agree, it
    extends by Wilson's upper bound for an event that occurs in no task. None for fewer than three players, or if all
    players are equally good in one of the worlds.
    """
    import numpy as np

    one, other = np.array(one_PN, dtype=float), np.array(other_PN, dtype=float)  # None becomes NaN
    if len(one_PN) < 3 or not one.size:
        return None
    known = ~np.isnan(one) & ~np.isnan(other)
    one, other = np.where(known, one, 0.0), np.where(known, other, 0.0)

    def correlations(tasks_RN: NDArray[np.intp]) -> NDArray[np.float64]:
        counts_RP = known[:, tasks_RN].sum(axis=2).T
        usable = (counts_RP > 0).all(axis=1)
        ours, theirs = (side[:, tasks_RN[usable]].sum(axis=2).T / counts_RP[usable] for side in (one, other))
        return _spearman(ours, theirs)

    mean = correlations(np.arange(one.shape[1])[None, :])
    if not len(mean):
        return None
    found = float(mean[0])

    def of_draws(drawn_RN: NDArray[np.intp]) -> NDArray[np.float64]:
        drawn = correlations(drawn_RN)
        return np.concatenate([drawn, np.zeros(len(drawn_RN) - len(drawn))])

    low, high = widened(found, *bootstrap(of_draws, one.shape[1], seed=seed), one.shape[1])
    rate = Rate(mean=found, low=max(-1.0, min(low, found)), high=min(1.0, max(high, found)), n=len(one_PN))
    return with_width(rate, one.shape[1])


def ranks(values_RP: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rank of each value in its row from 1; equal values share the mean of their ranks."""
    below = (values_RP[:, None, :] < values_RP[:, :, None]).sum(axis=2)
    equal = (values_RP[:, None, :] == values_RP[:, :, None]).sum(axis=2)
    found: NDArray[np.float64] = below + (equal + 1) / 2
    return found


def _spearman(one_RP: NDArray[np.float64], other_RP: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rank correlation of each pair of rows; pairs without an order are left out."""
    import numpy as np

    a, b = (ranks(side) - (side.shape[1] + 1) / 2 for side in (one_RP, other_RP))
    variances = (a**2).sum(axis=1) * (b**2).sum(axis=1)
    ordered = variances > 0
    found: NDArray[np.float64] = (a * b).sum(axis=1)[ordered] / np.sqrt(variances[ordered])
    return np.clip(found, -1.0, 1.0)
