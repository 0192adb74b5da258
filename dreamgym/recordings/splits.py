"""Splits recorded trajectories into known and held-out ones."""

from __future__ import annotations

import random
from collections.abc import Sequence

from dreamgym.errors import InvalidInput
from dreamgym.types import Trajectory


def split(
    trajectories: Sequence[Trajectory], held_out: float, seed: int
) -> tuple[tuple[Trajectory, ...], tuple[Trajectory, ...]]:
    """Return (known, held out): the trajectories that have calls, split by the seed, at least one on either side.

    `held_out` is the share of trajectories that are held out.

    Raises:
        InvalidInput: fewer than two trajectories have calls.
    """
    played = [trajectory for trajectory in trajectories if trajectory.transitions]
    if len(played) < 2:
        raise InvalidInput(
            f"expected at least two trajectories with calls (one known, one held out), got {len(played)}: "
            "record or collect another"
        )
    count = min(len(played) - 1, max(1, round(held_out * len(played))))
    drawn = set(random.Random(seed).sample(range(len(played)), count))
    known = tuple(trajectory for i, trajectory in enumerate(played) if i not in drawn)
    return known, tuple(trajectory for i, trajectory in enumerate(played) if i in drawn)
