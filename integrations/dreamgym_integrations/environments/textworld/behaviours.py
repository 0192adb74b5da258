"""Ways to play the games of TextWorldExpress other than `coin`, good and deliberately bad.

They read only what an agent reads, so they play in a simulation as well as in the real game, and go on after a slip.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from dreamgym.environment import Behaviour, Environment
from dreamgym.types import StepResult, ToolCall
from dreamgym_integrations.environments.textworld.explorer import Explorer
from dreamgym_integrations.environments.textworld.scenes import CLOSED_DOOR, SIDES, Scene

READABLE = ("map", "cookbook", "math problem", "instructions book")
MALFORMED = ("take", "put", "go", "move", "north", "look", "open", "read", "put it in", "move box", "help", ".")
IMPOSSIBLE_SHARE = 0.25
"""Of the random commands of bad play: so many do not fit the place, or are none."""


class Player:
    """What was seen so far, and the commands that it suggests. A game's player says which one is good."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.scene = Scene("", {}, (), {}, ())
        self.scenes: dict[str, Scene] = {}
        self.told = ""
        self._map = Explorer(random)
        self._tried: dict[str, None] = {}

    def see(self, result: StepResult) -> None:
        """Take in what a step showed."""
        self.told = result.observation
        self.scene = Scene.of_text(result.state)
        self.scenes[self.scene.place] = self.scene
        self._map.note(self.scene.place, self.scene.exits)
        self._tried.update(dict.fromkeys(self.possible()))

    def command(self) -> str:
        """The good command now."""
        raise NotImplementedError

    def possible(self) -> list[str]:
        """Every command that the place suggests; few are refused, such as to take what is fixed."""
        scene = self.scene
        return [
            "look around",
            "inventory",
            *(self._leave(side) for side in scene.exits),
            *(f"take {item}" for item in scene.within_reach),
            *(f"open {name}" for name, held in scene.holders.items() if held is None),
            *(
                f"put {item} in {name}"
                for item in scene.carried
                for name, held in scene.holders.items()
                if held is not None
            ),
            *(f"read {item}" for item in (*scene.carried, *scene.within_reach) if item in READABLE),
        ]

    def impossible(self) -> str:
        """A command that fits somewhere else, or none at all."""
        elsewhere = [*self._tried, *(f"move {side}" for side in SIDES)]
        return self.random.choice(MALFORMED if self.random.random() < 0.3 else elsewhere)

    def go(self, wanted: Callable[[Scene], bool] | None = None) -> str:
        """The way to the nearest known place that is wanted, or else to one that was not yet seen."""
        known = {name for name, scene in self.scenes.items() if wanted is not None and wanted(scene)}
        side = self._map.side(self.scene.place, known.__contains__ if known else self._map.is_unseen)
        return self._leave(side) if side else "look around"

    def _leave(self, side: str) -> str:
        return f"open door to {side}" if self.scene.exits.get(side) == CLOSED_DOOR else f"move {side}"


async def play(
    player: Player, start: StepResult, environment: Environment, *, expert: float, impossible: float
) -> None:
    """Play to the end: each command is the expert's with probability `expert`, else random."""
    result, random = start, player.random
    while not result.done:
        player.see(result)
        if random.random() < expert:
            command = player.command()
        elif random.random() < impossible:
            command = player.impossible()
        else:
            command = random.choice(player.possible())
        result = await environment.step(ToolCall(name="act", arguments={"command": command}))


def behaviours(make: Callable[[Random], Player]) -> Mapping[str, Behaviour]:
    """The ways to play one game: `expert`, `noisy` to start a policy from, `mixed` to build a simulator from, ..."""

    def graded(share: float, impossible: float = 0.0) -> Behaviour:
        async def behaviour(start: StepResult, environment: Environment, seed: int) -> None:
            await play(make(Random(seed)), start, environment, expert=share, impossible=impossible)

        return behaviour

    async def mixed(start: StepResult, environment: Environment, seed: int) -> None:
        draw = Random(seed)
        share = draw.choice((0.0, 0.3, 0.6, 0.9))
        await play(make(draw), start, environment, expert=share, impossible=IMPOSSIBLE_SHARE)

    return {
        "expert": graded(1.0),
        "expert_80": graded(0.8),
        "expert_60": graded(0.6),
        "expert_40": graded(0.4),
        # cloned in 200 steps on 1,500 episodes of mapreader it wins 15 % of new ones; 0.15 would give 4 %, 0.3 30 %
        "noisy": graded(0.2, 0.1),
        "random": graded(0.0, IMPOSSIBLE_SHARE),
        "mixed": mixed,
    }
