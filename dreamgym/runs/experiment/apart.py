"""Checks that no world of the test occurs in training. Worlds that no play tells apart are the same world.

A task with one id in both is refused. Different ids prove nothing, because an id may contain the split. So worlds with
equal instructions and first views are played repeatedly with equal seeds until their answers differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

from dreamgym.environment import RealEnvironment
from dreamgym.episode import play
from dreamgym.errors import InvalidInput
from dreamgym.types import Source, Task

ROUNDS = 100
"""Maximum number of rounds of play. In `coin`, 12 rounds tell apart all worlds that begin alike."""

Groups = list[list[Task]]


async def check_apart(real: RealEnvironment, trained: Sequence[Task], tested: Sequence[Task]) -> int:
    """Number of plays that it took to tell all worlds of the test from those of training.

    Raises:
        InvalidInput: a task of the test is a task of training too, or some worlds could not be told apart.
    """
    names = {task.id for task in tested}
    if both := sorted(names & {task.id for task in trained}):
        raise InvalidInput(
            f"{len(both)} of {len(names)} tasks of the test are training or dev tasks too, for example {both[0]!r}: "
            "test another split, or give each task of the environment folder a `metadata.split` of train, dev or test"
        )
    first: dict[Hashable, list[Task]] = defaultdict(list)
    for task in {task.id: task for task in (*trained, *tested)}.values():
        first[task.instruction, task.initial_state].append(task)
    groups, plays = _mixed(list(first.values()), names), 0
    for seed in range(ROUNDS):
        if not groups:
            return plays
        told: dict[Hashable, list[Task]] = defaultdict(list)
        for number, group in enumerate(groups):
            for task in group:
                told[number, await _answers(real, task, seed)].append(task)
                plays += 1
        groups = _mixed(list(told.values()), names)
    if not groups:
        return plays
    pairs = [
        f"{next(task.id for task in group if task.id in names)} from "
        f"{next(task.id for task in group if task.id not in names)}"
        for group in groups
    ]
    raise InvalidInput(
        f"{len(pairs)} worlds of the test cannot be told from worlds of training in {ROUNDS} rounds of play, for "
        f"example {pairs[0]}: split the tasks anew"
    )


def _mixed(groups: Groups, tested: set[str]) -> Groups:
    """The groups that contain worlds of both the test and training."""
    return [group for group in groups if len({task.id in tested for task in group}) == 2]


async def _answers(real: RealEnvironment, task: Task, seed: int) -> tuple[tuple[str, str], ...]:
    """Actions and states of a play with this seed. The seed also chooses the behaviour, so that they take turns."""
    names = sorted(real.behaviours)
    behaviour = real.behaviours[names[seed % len(names)]]
    environment = real.create()
    try:
        played = await play(environment, task, behaviour, spec=real.spec, seed=seed, source=Source.REAL)
    finally:
        await environment.close()
    return tuple((step.action.canonical(), step.next_state) for step in played.transitions)
