"""Measures a model's confidence: fitted on one half of the held-out trajectories, measured on the other."""

from __future__ import annotations

import random
from collections.abc import Sequence

from dreamgym.dream.confidence import Calibration, auroc, calibrate
from dreamgym.evaluation.calls import Compared
from dreamgym.evaluation.rates import Rate, clustered
from dreamgym.types import Frozen

BINS = 10


class Bin(Frozen):
    """Predictions of about the same confidence."""

    confidence: float
    """Mean confidence of the predictions."""
    right: Rate
    """Share of them that were right."""


class Calibrated(Frozen):
    """Quality of the confidences on trajectories that they were not fitted on."""

    fitted_on: int
    """Number of predictions in the first half."""
    measured_on: int
    """Number of predictions in the second half."""
    right: Rate
    """Share of right predictions in the second half."""
    brier: Rate
    """Mean squared error of the confidence; the lower the better."""
    brier_of_base_rate: float
    """Brier score if every prediction had the same confidence: the first half's share of right predictions."""
    ece: float
    """Mean distance between confidence and share of right predictions, over ten bins of equal width."""
    auroc: float | None
    """How often a right prediction has a higher confidence than a wrong one; None if all were right, or all wrong."""
    bins: tuple[Bin, ...]


def fitted(calls: Sequence[Compared], *, model: str, env: str) -> Calibration | None:
    """Fit a calibration on all calls that have features; None if there are none."""
    rows = [(call.features, call.is_right) for call in calls if call.features]
    return calibrate(rows, model=model, env=env) if rows else None


def halves(calls: Sequence[Compared], *, seed: int) -> tuple[list[Compared], list[Compared]] | None:
    """The calls with features to fit on and those to measure on; None if fewer than two trajectories have any."""
    answered = [call for call in calls if call.features]
    names = sorted({call.trajectory for call in answered})
    if len(names) < 2:
        return None
    first = set(random.Random(seed).sample(names, len(names) // 2))
    ours = [call for call in answered if call.trajectory in first]
    return ours, [call for call in answered if call.trajectory not in first]


def calibrated(calls: Sequence[Compared], *, model: str, env: str, seed: int) -> Calibrated | None:
    """Fit on half of the trajectories, measure on the rest; None if fewer than two have calls with features."""
    both = halves(calls, seed=seed)
    if both is None:
        return None
    ours, others = both
    calibration = fitted(ours, model=model, env=env)
    assert calibration is not None
    given = [calibration.confidence(call.features) for call in others]
    right, owners = [call.is_right for call in others], [call.trajectory for call in others]
    base = sum(call.is_right for call in ours) / len(ours)
    bins = _bins(given, right, owners)
    return Calibrated(
        fitted_on=len(ours),
        measured_on=len(others),
        right=clustered(right, owners),
        brier=clustered([(p - y) ** 2 for p, y in zip(given, right, strict=True)], owners),
        brier_of_base_rate=sum((base - y) ** 2 for y in right) / len(right),
        ece=sum(abs(one.confidence - one.right.mean) * one.right.n for one in bins) / len(right),
        auroc=auroc(given, right),
        bins=bins,
    )


def _bins(given: Sequence[float], right: Sequence[bool], owners: Sequence[str]) -> tuple[Bin, ...]:
    """The bins that are not empty, from low to high. `owners` are the trajectories of the predictions."""
    found: dict[int, list[tuple[float, bool, str]]] = {}
    for p, y, owner in sorted(zip(given, right, owners, strict=True)):
        found.setdefault(min(int(p * BINS), BINS - 1), []).append((p, y, owner))
    return tuple(
        Bin(
            confidence=sum(p for p, _, _ in some) / len(some),
            right=clustered([y for _, y, _ in some], [owner for _, _, owner in some]),
        )
        for some in found.values()
    )
