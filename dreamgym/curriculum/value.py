"""The value of a task: how much the policy as it is now can learn from it."""

from __future__ import annotations

from collections.abc import Sequence

ROUNDING = 1e-9
"""Rewards of a group that differ by less are equal: the rest is rounding, as of 0.1 + 0.2 and 0.3."""


def group_variance(rewards_G: Sequence[float | None]) -> float | None:
    """V_tau = (1/n) sum (r - mean)^2 over one group's outcome rewards (paper, eq. 7; divided by n, as the paper does).

    For rewards of 0 and 1 it is p (1 - p), at most 0.25, when half the group succeeds. Failed rollouts (None) are left
    out. Returns None if fewer than two are left, because they show nothing.
    """
    valid = [reward for reward in rewards_G if reward is not None]
    if len(valid) < 2:
        return None
    if max(valid) - min(valid) < ROUNDING:
        return 0.0
    mean = sum(valid) / len(valid)
    return sum((reward - mean) ** 2 for reward in valid) / len(valid)
