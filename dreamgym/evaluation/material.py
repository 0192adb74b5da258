"""The trajectories that a dream knows, and the held-out steps that it is measured on.

Steps whose recordings contradict each other are left out: no prediction could be right. A held-out episode has the
check that its task has in the environment's tasks, or none if it has none there, because a server starts the episode
with that task.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from dreamgym.dream.task_check import checked_as_described
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.evaluation.predictions import RecordedStep, steps_of
from dreamgym.recordings.contradictions import contradicted
from dreamgym.recordings.splits import split
from dreamgym.types import Trajectory


class Material(NamedTuple):
    """The recorded steps and tasks that all settings are measured on."""

    spec: EnvironmentSpec
    known: tuple[Trajectory, ...]
    held_out: tuple[Trajectory, ...]
    steps: tuple[RecordedStep, ...]
    """The steps of the held-out trajectories that are predicted."""
    recorded: tuple[Trajectory, ...]
    """All trajectories: the known ones, those held out, and those that are neither."""
    contradicted: int
    """Number of held-out steps that were left out because another recording contradicts them."""
    seed: int

    def known_with(self, k: int | None) -> tuple[Trajectory, ...]:
        """The trajectories that a dream knows which is shown at most k transitions; with k = 0, none."""
        return () if k == 0 else self.known


def material(
    spec: EnvironmentSpec,
    recorded: Sequence[Trajectory],
    *,
    held_out: float,
    learned: frozenset[str] | None = None,
    known: int | None = None,
    limit: int | None = None,
    all_steps: bool = False,
    seed: int = 0,
) -> Material:
    """Split the recordings, and draw what is known and what is predicted.

    Args:
        spec: the recorded environment.
        recorded: all trajectories.
        held_out: share of them that is held out.
        learned: ids of the trajectories that a fitted model has learned; all others are held out instead.
        known: number of transitions of the rest that are known; None: all.
        limit: number of held-out steps that are predicted; None: all.
        all_steps: held-out steps that another recording contradicts are predicted too.
        seed: seed of every draw.

    Raises:
        InvalidInput: nothing is left to predict, or `held_out` is not a share.
    """
    if not 0 <= held_out <= 1:
        raise InvalidInput(f"held_out: expected a share from 0 to 1, got {held_out}")
    if learned is None:
        rest, apart = split(recorded, held_out, seed)
    else:
        apart = tuple(one for one in recorded if one.id not in learned and one.transitions)
        rest = tuple(one for one in recorded if one.id in learned)
    if not apart:
        raise InvalidInput(f"{spec.name!r} has no held-out transitions: the fitted model was trained on all recordings")
    apart = tuple(checked_as_described(spec, apart))
    left_out = frozenset() if all_steps else contradicted(spec, recorded)
    steps = steps_of(apart)
    usable = [step for step in steps if step.key not in left_out]
    if not usable:
        raise InvalidInput(
            f"no held-out transition of {spec.name!r} can be compared: each of the {len(steps)} was also recorded with "
            "another outcome"
        )
    return Material(
        spec=spec,
        known=rest if known is None else first_known(rest, known, seed),
        held_out=apart,
        steps=tuple(drawn(usable, limit, seed)),
        recorded=tuple(recorded),
        contradicted=len(steps) - len(usable),
        seed=seed,
    )


def drawn(steps: Sequence[RecordedStep], limit: int | None, seed: int) -> list[RecordedStep]:
    """At most `limit` steps, drawn by the seed, in their original order. A smaller draw is part of a larger one."""
    if limit is None or limit >= len(steps):
        return list(steps)
    order = list(range(len(steps)))
    random.Random(seed).shuffle(order)
    return [steps[i] for i in sorted(order[:limit])]


def first_known(trajectories: Sequence[Trajectory], transitions: int, seed: int) -> tuple[Trajectory, ...]:
    """Trajectories with this many transitions in all, drawn by the seed; a smaller draw is part of a larger one.

    Raises:
        InvalidInput: there are fewer transitions.
    """
    there = sum(len(one.transitions) for one in trajectories)
    if transitions > there:
        raise InvalidInput(f"known={transitions}: only {there} recorded transitions are not held out")
    order = list(trajectories)
    random.Random(seed).shuffle(order)
    chosen = []
    for one in order:
        if transitions <= 0:
            break
        chosen.append(one.model_copy(update={"transitions": one.transitions[:transitions]}))
        transitions -= len(one.transitions)
    return tuple(chosen)
