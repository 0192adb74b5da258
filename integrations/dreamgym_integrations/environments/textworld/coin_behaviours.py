"""Ways to play `coin` without a language model, good and deliberately bad.

A simulator that never saw failing and malformed commands is exploited at once, so bad play is data too.
They read only what an agent reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from dreamgym.environment import Behaviour, Environment
from dreamgym.types import StepResult, ToolCall
from dreamgym_integrations.environments.textworld import explorer

GRAMMAR = ("move north", "move east", "move south", "move west", "take coin", "look around", "inventory")
MALFORMED = ("coin", "take", "go", "move", "north", "look", "take the coin", "move coin", "help", ".")
MALFORMED_SHARE = 0.1


class Explorer(explorer.Explorer):
    """A depth-first search that takes the coin.

    It goes through exits to places not yet seen, draws among several, and otherwise walks back to the nearest place
    that has one.
    """

    def look(self, state: str) -> str:
        """Note the place that `state` describes and return the command to give there."""
        place, *details = state.rstrip(".").split(". ")
        self.note(place, dict(detail.split(": ") for detail in details if ": " in detail))
        return "take coin" if "coin here" in details else f"move {self.side(place, self.is_unseen) or 'north'}"


async def play(start: StepResult, environment: Environment, random: Random, expert: float, malformed: float) -> None:
    """Play to the end: each command is the expert's with probability `expert`, else random."""
    explorer = Explorer(random)
    result = start
    while not result.done:
        command = explorer.look(result.state)
        if random.random() >= expert:
            command = random.choice(MALFORMED if random.random() < malformed else GRAMMAR)
        result = await environment.step(ToolCall(name="act", arguments={"command": command}))


async def expert(start: StepResult, environment: Environment, seed: int) -> None:
    """Search depth first and take the coin."""
    await play(start, environment, Random(seed), expert=1.0, malformed=0.0)


async def random(start: StepResult, environment: Environment, seed: int) -> None:
    """Any command, also one that is impossible here, and now and then one that is none."""
    await play(start, environment, Random(seed), expert=0.0, malformed=MALFORMED_SHARE)


async def mixed(start: StepResult, environment: Environment, seed: int) -> None:
    """Anything between bad and good play, drawn for the episode: what a simulator should be built from."""
    draw = Random(seed)
    await play(start, environment, draw, expert=draw.choice((0.0, 0.3, 0.6, 0.9)), malformed=MALFORMED_SHARE)


async def noisy(start: StepResult, environment: Environment, seed: int) -> None:
    """Mostly random commands of the grammar, with a little expertise: what a policy is warm-started on."""
    await play(start, environment, Random(seed), expert=0.15, malformed=0.0)


def graded(share: float) -> Behaviour:
    """The expert's command with probability `share`, else any of the grammar: a ladder to rank simulators by."""

    async def behaviour(start: StepResult, environment: Environment, seed: int) -> None:
        await play(start, environment, Random(seed), expert=share, malformed=0.0)

    return behaviour


BEHAVIOURS: Mapping[str, Behaviour] = {
    "expert": expert,
    "expert_80": graded(0.8),
    "expert_60": graded(0.6),
    "expert_40": graded(0.4),
    "noisy": noisy,
    "random": random,
    "mixed": mixed,
}
