"""Success and V_tau of each task from its last groups, weighted by their age.

This is the value by which tasks are drawn. The record of training and `dreamgym tasks` show V_tau itself, divided by
n (dreamgym.curriculum.value).

A group is a handful of rollouts of a policy that has changed since. So a task's value is not one old number: a group
counts by its attempts, halved every HALF_LIFE updates, and the less they count, the more the mean of all tasks counts.
A task that was never tried, or not for a long time, therefore has the average value. It is drawn again before an old
low value can exclude it for good.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from dreamgym.errors import InvalidInput
from dreamgym.types import Frozen, JsonObject

HALF_LIFE = 25
"""Updates of the policy after which a group counts half. Measured in four populations of 400 tasks by the share of
groups with a mixed outcome: 10 gave one to five points less; 60 gave up to one point more where success drifted and
three where it did not."""
PRIOR_ATTEMPTS = 4
"""Number of attempts that the mean of all tasks counts for. 8 gave one to three points less of groups with a mixed
outcome."""
LAST_GROUPS = 4
"""Number of groups kept per task."""
STALE = 0.25
"""A task whose newest group weighs less than this counts as never tried in `Evidence.success`, which uses no mean of
all tasks."""
ROUNDING = 1e-12
"""Rewards are equal if their sum of squares exceeds that of equal ones by a smaller share: the rest is rounding."""


class Group(Frozen):
    """The outcomes of one group. More outcomes of the same update are added to it."""

    iteration: int
    attempts: int
    total: float
    squares: float
    unsolved: int = 0
    """Attempts since the last group with a success, this group included."""

    @property
    def mean(self) -> float:
        return self.total / self.attempts

    @property
    def variance(self) -> float:
        """V_tau (paper, eq. 7), divided by n - 1 and not by n, so that groups of different sizes are comparable."""
        if self.attempts < 2:
            return 0.0
        spread = self.squares - self.total**2 / self.attempts
        return 0.0 if spread < self.squares * ROUNDING else spread / (self.attempts - 1)

    def freshness(self, iteration: int) -> float:
        """Weight of the group by its age: 1 at the update that played it, halved every HALF_LIFE updates."""
        return math.pow(0.5, max(0, iteration - self.iteration) / HALF_LIFE)


class Evidence:
    """The last groups of each key: a task, or a cluster of tasks."""

    def __init__(self) -> None:
        self._groups: dict[str, list[Group]] = defaultdict(list)

    def record(self, key: str, rewards: Sequence[float], iteration: int) -> None:
        """Add outcomes of a key; those of one update form one group."""
        groups = self._groups[key]
        last = groups[-1] if groups else None
        same = groups.pop() if last and last.iteration == iteration else None
        is_solved = sum(rewards) > 0 or (same is not None and same.unsolved == 0)
        groups.append(
            Group(
                iteration=iteration,
                attempts=len(rewards) + (same.attempts if same else 0),
                total=sum(rewards) + (same.total if same else 0.0),
                squares=sum(reward * reward for reward in rewards) + (same.squares if same else 0.0),
                unsolved=0 if is_solved else len(rewards) + (last.unsolved if last else 0),
            )
        )
        del groups[:-LAST_GROUPS]

    def groups(self, key: str) -> tuple[Group, ...]:
        """The last groups of a key, oldest first."""
        return tuple(self._groups.get(key, ()))

    def success(self, key: str, iteration: int) -> float | None:
        """Mean outcome reward of a key, weighted by age; None if the newest group weighs less than STALE."""
        groups = self._groups.get(key, ())
        if not groups or groups[-1].freshness(iteration) < STALE:
            return None
        weights = [group.attempts * group.freshness(iteration) for group in groups]
        return sum(w * group.mean for w, group in zip(weights, groups, strict=True)) / sum(weights)

    def values(self, keys: Sequence[str], iteration: int) -> list[float]:
        """Current value of each key: its V_tau weighted by age and shrunk towards the mean of all keys."""
        worth = {key: self._worth(key, iteration) for key in self._groups}
        # exact sums do not depend on the order of the keys, which a restored state has sorted
        weight = math.fsum(w for w, _ in worth.values())
        mean = math.fsum(v for _, v in worth.values()) / weight if weight else 1.0
        own = [worth.get(key, (0.0, 0.0)) for key in keys]
        return [(value + PRIOR_ATTEMPTS * mean) / (weight + PRIOR_ATTEMPTS) for weight, value in own]

    def _worth(self, key: str, iteration: int) -> tuple[float, float]:
        """Sum of the weights of a key's groups, and sum of their weighted V_tau."""
        groups = self._groups[key]  # a variance counts by its degrees of freedom: a single attempt counts nothing
        weighted = [((group.attempts - 1) * group.freshness(iteration), group.variance) for group in groups]
        return sum(w for w, _ in weighted), sum(w * variance for w, variance in weighted)

    def state(self) -> JsonObject:
        """All groups as JSON, for a checkpoint; `of` reads it."""
        return {key: [group.model_dump() for group in groups] for key, groups in sorted(self._groups.items())}

    @classmethod
    def of(cls, state: JsonObject) -> Evidence:
        """Restore what `state` returned. Raises InvalidInput if it is not such a state."""
        evidence = cls()
        for key, groups in state.items():
            if not isinstance(groups, list):
                raise InvalidInput(f"not a saved curriculum: the groups of {key!r} are not a list")
            evidence._groups[key] = [Group.model_validate(group) for group in groups]
        return evidence
