"""How much better than expected an action was: group advantages for GRPO, generalised advantages for PPO.

The functions work on plain numbers, not tensors: a trainer assigns the results to its tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dreamgym.curriculum.value import ROUNDING

EPSILON = 1e-4
"""Added to the standard deviation, as TRL's GRPO trainer does."""


def group_advantages(rewards_G: Sequence[float | None]) -> list[float]:
    """Reward minus the group's mean, divided by the standard deviation, shape (G,); paper, section 3, GRPO.

    A rollout without a reward has advantage 0. If only one rollout has a reward, or all rewards are equal, all have 0.
    Difference from the paper: the standard deviation is that of a sample (n - 1) with 1e-4 added, as in TRL.
    """
    valid = [reward for reward in rewards_G if reward is not None]
    if len(valid) < 2 or max(valid) - min(valid) < ROUNDING:
        return [0.0] * len(rewards_G)
    mean = math.fsum(valid) / len(valid)
    deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in valid) / (len(valid) - 1))
    return [0.0 if reward is None else (reward - mean) / (deviation + EPSILON) for reward in rewards_G]


def generalised_advantages(
    rewards_T: Sequence[float], values_T: Sequence[float], *, discount: float, decay: float
) -> list[float]:
    """Generalised advantage estimates over the actions of one episode, shape (T,); Schulman et al. 2016, eq. 16.

    Args:
        rewards_T: the reward of each action.
        values_T: the value of the state that each action was chosen in; after the last one it is 0.
        discount: gamma.
        decay: lambda of the estimate, not the curriculum's.
    """
    advantages_T = [0.0] * len(rewards_T)
    ahead = following = 0.0
    for t in range(len(rewards_T) - 1, -1, -1):
        ahead = rewards_T[t] + discount * following - values_T[t] + discount * decay * ahead
        advantages_T[t], following = ahead, values_T[t]
    return advantages_T


def trusted(
    rewards_G: Sequence[float | None], confidences_G: Sequence[float | None], *, least: float
) -> list[float | None]:
    """The rewards, with None for episodes whose confidence is below `least`. Without a confidence a reward stays."""
    return [
        None if confidence is not None and confidence < least else reward
        for reward, confidence in zip(rewards_G, confidences_G, strict=True)
    ]


def weighted(advantages_G: Sequence[float], confidences_G: Sequence[float | None]) -> list[float]:
    """Each advantage times the dream's confidence in its episode; times 1 if the dream is not calibrated."""
    return [
        advantage if confidence is None else advantage * confidence
        for advantage, confidence in zip(advantages_G, confidences_G, strict=True)
    ]
