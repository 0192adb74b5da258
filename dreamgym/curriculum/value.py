"""How much there is to learn from a task for the policy as it is now."""

from __future__ import annotations

from collections.abc import Sequence


def group_variance(rewards_G: Sequence[float | None]) -> float | None:
    """V_tau = (1/n) sum (r - mean)^2 over one group's outcome rewards (paper, eq. 7; divided by n, as the paper does).

    For rewards of 0 and 1 it is p (1 - p), at most 0.25 where half the group succeeds. Failed rollouts (None) are left
    out; None is returned where fewer than two are left, since nothing can be said then.
    """
    valid = [reward for reward in rewards_G if reward is not None]
    if len(valid) < 2:
        return None
    mean = sum(valid) / len(valid)
    return sum((reward - mean) ** 2 for reward in valid) / len(valid)
