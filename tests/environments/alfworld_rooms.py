"""Invented rooms of ALFWorld and play in them: recordings for a dream, and other play to compare it with."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from alfworld_room import HOT, SIMPLE, pack, problem, row
from dreamgym_integrations.environments.alfworld import Alfworld, alfworld

from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.nearest import NearestModel
from dreamgym.embedding import TrigramEncoder
from dreamgym.episode import play
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.types import Source, Trajectory

MUG_IN = "(inReceptacle Mug_bar_1 Drawer_bar_1)"
CUP = """(:init
    (objectType Cup_bar_1 CupType)
    (objectType Mug_bar_2 MugType)
    (pickupable Cup_bar_1)
    (pickupable Mug_bar_2)
    (canContain DeskType CupType)
    (canContain DrawerType CupType)
    (heatable Mug_bar_2)
    (inReceptacle Cup_bar_1 Drawer_bar_2)
    (inReceptacle Mug_bar_2 Desk_bar_1)"""
CHANGES = (
    (),
    ((MUG_IN, "(inReceptacle Mug_bar_1 Drawer_bar_2)"),),
    ((MUG_IN, "(inReceptacle Mug_bar_1 Microwave_bar_1)"),),
    (("(:init", CUP),),
    (("(:init", CUP), (MUG_IN, "(inReceptacle Mug_bar_1 Drawer_bar_2)")),
    (("(receptacleAtLocation Drawer_bar_2 loc_bar_3)", "(receptacleAtLocation Drawer_bar_2 loc_bar_2)"),),
)
"""For each room, the replacements in the text of the invented room (`alfworld_room`)."""


@cache
def rooms() -> Alfworld:
    """The rooms as an environment, half of them with the task to heat the mug."""
    rows = []
    for number, changes in enumerate(CHANGES):
        task_type = HOT if number % 2 else SIMPLE
        text = problem(task_type)
        for old, new in changes:
            text = text.replace(old, new)
        rows.append({**row(number, number + 1, task_type), "pddl_problem": text})
    folder = TemporaryDirectory()
    real = alfworld({"data": str(pack(Path(folder.name), rows)), "cache": folder.name})
    real.folder = folder  # type: ignore[attr-defined]  # deletes the folder together with the environment
    return real


async def played(behaviour: str, episodes: int, first_seed: int = 0) -> list[Trajectory]:
    """Play this number of episodes in each room."""
    real, made = rooms(), list[Trajectory]()
    environment = real.create()
    for task in real.tasks("train"):
        for seed in range(first_seed, first_seed + episodes):
            made.append(
                await play(environment, task, real.behaviours[behaviour], spec=real.spec, seed=seed, source=Source.REAL)
            )
    return made


async def dream_of(trajectories: Sequence[Trajectory]) -> DreamEnvironment:
    """A dream of these recordings."""
    buffer = MemoryBuffer(TrigramEncoder())
    await buffer.add(trajectories)
    return DreamEnvironment(rooms().spec, NearestModel(), buffer)
