"""Success with intervals: how good a policy is, and how sure we are."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from dreamgym.rollout import Player
from dreamgym.types import Frozen, Task


class Rate(Frozen):
    """A proportion with its 95 % interval."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"


class Evaluation(Frozen):
    """One policy on a list of tasks."""

    success: Rate
    refused_share: float
    """Share of actions that the environment answered with an error, or that nobody could run."""
    mean_steps: float
    steps: int
    """Environment steps used in all."""
    failed: int
    """Episodes in which the environment failed; they count neither as success nor as failure."""
    outcomes: tuple[float | None, ...]
    """1 for success, 0 for failure, None for a failed environment; in the order of the tasks."""


def wilson(successes: float, n: int, z: float = 1.959964) -> Rate:
    """Wilson score interval of a proportion (Wilson 1927); for scores between 0 and 1 it is wider than need be."""
    if n == 0:
        return Rate(mean=0.0, low=0.0, high=1.0, n=0)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    margin = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return Rate(mean=p, low=max(0.0, min(p, centre - margin)), high=min(1.0, max(p, centre + margin)), n=n)


def paired_difference(
    before_SN: Sequence[Sequence[float]], after_SN: Sequence[Sequence[float]], *, resamples: int = 4000, seed: int = 0
) -> Rate:
    """Mean of after - before with a 95 % percentile bootstrap over seeds and tasks.

    Args:
        before_SN: outcome of each of S training seeds on each of N tasks, before.
        after_SN: the same tasks in the same order, after.
    """
    differences_SN = [
        [a - b for a, b in zip(after_N, before_N, strict=True)]
        for before_N, after_N in zip(before_SN, after_SN, strict=True)
    ]
    seeds, n = len(differences_SN), len(differences_SN[0])
    draw = random.Random(seed)
    means = []
    for _ in range(resamples):
        tasks = draw.choices(range(n), k=n)
        runs = draw.choices(range(seeds), k=seeds)
        means.append(sum(differences_SN[s][t] for s in runs for t in tasks) / (seeds * n))
    means.sort()
    mean = sum(map(sum, differences_SN)) / (seeds * n)
    return Rate(mean=mean, low=means[int(0.025 * resamples)], high=means[int(0.975 * resamples) - 1], n=n)


STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""97.5 % quantiles of Student's t with 1 to 10 degrees of freedom."""


def mean_over_seeds(values_S: Sequence[float]) -> Rate:
    """Mean of one number per training seed with a 95 % interval by Student's t; without bounds for a single seed."""
    n = len(values_S)
    mean = math.fsum(values_S) / n
    if n == 1:
        return Rate(mean=mean, low=-math.inf, high=math.inf, n=1)
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in values_S) / (n - 1) / n)
    margin = _quantile(n - 1) * error
    return Rate(mean=mean, low=mean - margin, high=mean + margin, n=n)


def _quantile(freedom: int, z: float = 1.959964) -> float:
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    # Cornish-Fisher expansion of Student's t around the normal; right to three digits from here on
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )


def clustered(values: Sequence[float], clusters: Sequence[str], *, seed: int = 0) -> Rate:
    """Mean of values in [0, 1] that come in clusters, such as the steps of a trajectory.

    The interval is a percentile bootstrap over clusters, and never narrower than Wilson's over all values, which it
    would be where all values are equal.
    """
    plain = wilson(sum(values), len(values))
    if not values:
        return plain
    low, high = _bootstrap(values, clusters, seed)
    return plain.model_copy(update={"low": min(low, plain.low), "high": max(high, plain.high)})


def clustered_difference(differences: Sequence[float], clusters: Sequence[str], *, seed: int = 0) -> Rate:
    """Mean of paired differences in [-1, 1] with a percentile bootstrap over clusters.

    Where no two differ it would have no width: it is then as wide as what that many clusters cannot exclude.
    """
    if not differences:
        return Rate(mean=0.0, low=-1.0, high=1.0, n=0)
    mean = math.fsum(differences) / len(differences)
    low, high = _bootstrap(differences, clusters, seed)
    if low == high:
        unseen = wilson(0, len(set(clusters))).high
        low, high = max(-1.0, low - unseen), min(1.0, high + unseen)
    return Rate(mean=mean, low=min(low, mean), high=max(high, mean), n=len(differences))


def _bootstrap(
    values: Sequence[float], clusters: Sequence[str], seed: int, resamples: int = 2000
) -> tuple[float, float]:
    import numpy as np

    names = {name: i for i, name in enumerate(sorted(set(clusters)))}
    owners = np.array([names[name] for name in clusters])
    sums = np.bincount(owners, weights=np.array(values, dtype=float), minlength=len(names))
    counts = np.bincount(owners, minlength=len(names))
    drawn = np.random.default_rng(seed).integers(len(names), size=(resamples, len(names)))
    low, high = np.percentile(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1), [2.5, 97.5])
    return float(low), float(high)


async def evaluate(player: Player, tasks: Sequence[Task], *, seed: int = 0, batch: int = 128) -> Evaluation:
    """Play each task once by sampling and count successes; `seed` fixes the sampled tokens."""
    outcomes: list[float | None] = []
    refused = steps = unheard = failed = 0
    for start in range(0, len(tasks), batch):
        chunk = tasks[start : start + batch]
        episodes = await player.play(
            chunk,
            groups=[""] * len(chunk),
            seeds=[seed] * len(chunk),
            version=0,
            sampling_seed=seed + start,
        )
        for episode in episodes:
            failed += episode.error is not None
            outcomes.append(None if episode.error is not None else float(episode.success))
            refused += episode.refused
            unheard += episode.unheard
            steps += len(episode.actions)
    valid = [outcome for outcome in outcomes if outcome is not None]
    return Evaluation(
        success=wilson(int(sum(valid)), len(valid)),
        refused_share=(refused + unheard) / max(1, steps + unheard),
        mean_steps=steps / max(1, len(tasks)),
        steps=steps,
        failed=failed,
        outcomes=tuple(outcomes),
    )
