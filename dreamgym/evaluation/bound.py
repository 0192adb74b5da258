"""The two errors of the paper's theory, and the terms of its bound (appendix B, eq. 9 and 26).

The theory takes the largest error over all states and actions, which cannot be observed. This module measures averages
over the recorded steps: they are diagnostics, and guarantee nothing even if the bound is not vacuous.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from dreamgym.evaluation.calls import Compared
from dreamgym.evaluation.rates import Rate, clustered
from dreamgym.types import Frozen


class Terms(Frozen):
    """The terms of Lemma 1 and Theorem 1 for some errors."""

    model_error: float
    """Lemma 1: how far the value of a policy may differ between dream and reality."""
    trust_region: float
    """Theorem 1: the loss from a policy step of the given divergence."""
    lost: float
    """Theorem 1: the gain in the dream must exceed this to be a gain in reality."""


class Bound(Frozen):
    """Measured errors and the bound's terms, at the errors' means and at the upper ends of their intervals."""

    eps_reward: Rate
    """Mean of |R - R_hat| over the recorded steps. R is the step's reward; if the task has a check of its own, R is
    R_max for the step that accomplishes it. A step without an answer counts as a reward of 0."""
    eps_transition: Rate
    """Mean total variation: 1 if a deterministic prediction is not the recorded outcome, else 0."""
    gamma: float = Field(ge=0, lt=1)
    max_reward: float
    divergence: float
    """Largest KL divergence of the policy step over all states (nats); delta in the paper."""
    largest_return: float
    """R_max / (1 - gamma): no policy can gain more."""
    at_mean: Terms
    at_upper: Terms
    informative_below: float
    """With no reward error and no policy step, eps_P must be below this for the bound to be informative."""

    @property
    def vacuous(self) -> bool:
        """True if the bound allows every loss that is possible."""
        return self.at_mean.lost >= self.largest_return


def bound(calls: Sequence[Compared], *, gamma: float, divergence: float = 0.0, max_reward: float = 1.0) -> Bound:
    """Measure the errors on compared calls, and put them into the bound."""
    clusters = [call.trajectory for call in calls]
    scaled = clustered([reward_error(call, max_reward) for call in calls], clusters)
    reward = scaled.model_copy(update={name: getattr(scaled, name) * max_reward for name in ("mean", "low", "high")})
    transition = clustered([float(not is_outcome(call)) for call in calls], clusters)

    def terms_at(eps_reward: float, eps_transition: float) -> Terms:
        return terms(eps_reward, eps_transition, gamma=gamma, divergence=divergence, max_reward=max_reward)

    return Bound(
        eps_reward=reward,
        eps_transition=transition,
        gamma=gamma,
        max_reward=max_reward,
        divergence=divergence,
        largest_return=max_reward / (1 - gamma),
        at_mean=terms_at(reward.mean, transition.mean),
        at_upper=terms_at(reward.high, transition.high),
        informative_below=(1 - gamma) / (4 * gamma) if gamma else 1.0,
    )


def is_outcome(call: Compared) -> bool:
    """True if state, answer and end are the recorded ones: the theory's next state, as far as an agent can see it."""
    return (
        call.got is not None and call.exact and call.state_is_exact and call.got.terminated == call.recorded.terminated
    )


def reward_error(call: Compared, max_reward: float) -> float:
    """|R - R_hat| of one step, between 0 and 1, in units of the largest reward."""
    if (call.accomplished is True) != (call.claimed is True):
        return 1.0
    if call.told_by_check:
        return 0.0
    return min(1.0, abs(call.recorded.reward - (call.got.reward if call.got else 0.0)) / max_reward)


def terms(
    eps_reward: float, eps_transition: float, *, gamma: float, divergence: float = 0.0, max_reward: float = 1.0
) -> Terms:
    """The terms of Lemma 1 (eq. 26), and those that Theorem 1 (eq. 9) subtracts from the gain; KL is in nats."""
    model_error = eps_reward / (1 - gamma) + 2 * gamma * max_reward * eps_transition / (1 - gamma) ** 2
    trust_region = 4 * gamma * max_reward * divergence / (1 - gamma) ** 3
    return Terms(model_error=model_error, trust_region=trust_region, lost=trust_region + 2 * model_error)
