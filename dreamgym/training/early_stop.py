"""A rule that decides when training must stop, and which checkpoint to keep.

Reward inside a simulator proves nothing, so the policy is probed in the real environment every few updates, on the same
tasks each time. The probes only measure: they decide when to stop, and the policy does not learn from them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Outcomes = Sequence[float | None]
"""1 or 0 for each task of a probe, None if its episode failed or its reward is unknown; the tasks are the same in each
probe."""


@dataclass(frozen=True)
class Seen:
    """The verdict of a probe on the policy."""

    best: bool
    """True if no earlier probe was better: keep this checkpoint."""
    stop: bool
    """True if training must stop."""


@dataclass(frozen=True)
class Fall:
    """A fall of the success rate in the real environment since an earlier probe."""

    best: int
    """Update of the earlier probe, which was better."""
    now: int
    chance: float
    """Probability of a fall at least this clear if the policy had not become worse (one-sided sign test)."""


class RealProbes:
    """The probes of one run.

    Each probe is compared with every earlier one by an exact one-sided sign test over the tasks whose outcome changed.
    Training stops if the probability of so few gains is below `alarm` divided by the number of pairs of planned probes.
    By the union bound, a run stops with a probability of at most `alarm` if no probe's policy is worse than an earlier
    one.

    Args:
        planned: number of probes in the run, including the one before the first update.
        alarm: highest probability of a false alarm in the whole run.
    """

    def __init__(self, planned: int, alarm: float = 0.05) -> None:
        self._threshold = alarm / max(1, math.comb(planned, 2))
        self._probes: list[tuple[int, Outcomes]] = []
        self.fall: Fall | None = None
        """The fall that the last probe showed."""

    def add(self, update: int, outcomes_N: Outcomes) -> Fall | None:
        """Add a probe; return the fall for which training should stop, or None."""
        falls = [
            Fall(best=earlier, now=update, chance=chance)
            for earlier, before_N in self._probes
            if (chance := chance_of_fall(before_N, outcomes_N)) < self._threshold
        ]
        self._probes.append((update, outcomes_N))
        self.fall = min(falls, key=lambda fall: fall.chance, default=None)
        return self.fall

    @property
    def best(self) -> int:
        """Update of the probe with the highest success; of equal probes, the later one.

        Two probes are compared on the tasks whose outcome both know, if these are more than half of those that either
        knows. Otherwise a probe replaces one that knows less than half as many.
        """
        best, before_N = self._probes[0]
        for update, after_N in self._probes[1:]:
            pairs = [(a, b) for a, b in zip(before_N, after_N, strict=True) if a is not None and b is not None]
            is_known = 2 * len(pairs) > max(_known(before_N), _known(after_N))
            is_better = is_known and math.fsum(b for _, b in pairs) >= math.fsum(a for a, _ in pairs)
            if is_better or 2 * _known(before_N) < _known(after_N):
                best, before_N = update, after_N
        return best


def chance_of_fall(before_N: Outcomes, after_N: Outcomes) -> float:
    """One-sided sign test: the probability of at most this many gains among the tasks whose outcome changed.

    Tasks whose outcome is None in one of the probes are left out.
    """
    pairs = [(a, b) for a, b in zip(before_N, after_N, strict=True) if a is not None and b is not None and a != b]
    gained = sum(b > a for a, b in pairs)
    ways = sum(math.comb(len(pairs), k) for k in range(gained + 1))
    return float(ways / (1 << len(pairs)))


def _known(outcomes_N: Outcomes) -> int:
    return sum(outcome is not None for outcome in outcomes_N)
