"""Ways to play ScienceWorld, good and deliberately bad, without an LLM.

The expert follows the package's own solution of the environment's task. Its other actions, and all actions of bad
players, come from what an agent reads.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import lru_cache
from random import Random

from dreamgym.environment import Behaviour, Environment
from dreamgym.types import StepResult
from dreamgym_integrations.environments.base import act, graded, mixed, task_of
from dreamgym_integrations.environments.scienceworld.environment import AMBIGUOUS, world_of
from dreamgym_integrations.environments.scienceworld.simulator import Variation, simulators

_ROOM = re.compile(
    r"This room is called the ([a-z ]+)\.|(?:^|\n)(outside)\b|This outside location is called the ([a-z ]+)"
)
_THING = re.compile(r"(?<![a-z])an? (?:substance called )?([a-z][a-z -]*[a-z])")
_DOOR = re.compile(r"A door to the ([a-z ]+?) \(")
ALONE = ("look around", "inventory", "wait1", "wait")
ON_A_THING = (
    *("look at", "look in", "read", "open", "close", "activate", "deactivate", "pick up", "put down", "mix", "eat"),
    "focus on",
)
ON_TWO = ("move {} to {}", "pour {} in {}", "dunk {} in {}", "use {} on {}")
MALFORMED = ("take", "put", "go", "move", "north", "look", "open", "use it", "focus", "examine everything", ".")


@lru_cache(maxsize=4096)
def gold(world: Variation) -> tuple[str, ...]:
    """The package's own solution. For the two tasks of genetics it takes twenty seconds."""
    simulator = simulators.take()
    try:
        return simulator.gold(world)
    finally:
        simulators.give_back(simulator)


def room_of(state: str) -> str | None:
    """The place that a state describes; None if there is none."""
    found = _ROOM.search(state)
    return None if found is None else next(name for name in found.groups() if name)


class ScienceWorldPlayer:
    """Follows a solution, strays from it with bad commands, and finds its way back.

    Args:
        solution: the good commands in order.
        random: the source of the bad ones.
    """

    def __init__(self, solution: tuple[str, ...], random: Random) -> None:
        self._solution = list(reversed(solution))
        self._random = random
        self._place: str | None = None
        self._stayed = True

    def good(self, result: StepResult) -> str | None:
        """The solution's next command, or first one that leads back to its place; None at the solution's end."""
        if result.observation.startswith(AMBIGUOUS) and not self._stayed:
            return "cancel"  # the question is not about a command of the solution
        if not self._stayed and self._place is not None and room_of(result.state) != self._place:
            return f"teleport to {self._place}"
        self._stayed = True
        return self._solution.pop() if self._solution else None

    def bad(self, state: str) -> str:
        """A random command on things that are here; some are impossible or malformed."""
        if self._stayed:
            self._place, self._stayed = room_of(state), False
        things = sorted(set(_THING.findall(state))) or ["agent"]
        places = _DOOR.findall(state) or ["kitchen"]
        draw = self._random
        return draw.choice(
            [
                *ALONE,
                *(f"{verb} {draw.choice(things)}" for verb in ON_A_THING),
                *(form.format(draw.choice(things), draw.choice([*things, *places])) for form in ON_TWO),
                f"go to {draw.choice(places)}",
                f"go to {draw.choice(places)}",
                f"teleport to {draw.choice(places)}",
                draw.choice(MALFORMED),
            ]
        )


async def play(start: StepResult, environment: Environment, random: Random, good: float, _slips: float) -> None:
    """Play until the solution ends: each command is the solution's with probability `good`, else random.

    `_slips` is ignored: how many random commands are impossible is left to chance.
    """
    solution: tuple[str, ...] = ()
    if good:
        solution = await asyncio.to_thread(gold, world_of(task_of(environment)))
    player, result = ScienceWorldPlayer(solution, random), start
    while not result.done:
        command = player.good(result) if random.random() < good else player.bad(result.state)
        if command is None:
            return
        result = await environment.step(act(command))


BEHAVIOURS: Mapping[str, Behaviour] = {
    "expert": graded(play, 1.0),
    "expert_80": graded(play, 0.8),
    "expert_60": graded(play, 0.6),
    "noisy": graded(play, 0.5),
    "random": graded(play, 0.0),
    "mixed": mixed(play),
}
