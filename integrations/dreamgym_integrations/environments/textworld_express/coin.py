"""The game `coin`: find the coin in a house of eight places and take it; and ways to play it without an LLM.

The agent sees the abstract state of a place, not the game's prose: its name, its exits and whether the coin lies there
(`kitchen. north: backyard. west: pantry. coin here.`). Furniture depends on the place alone, so nothing is lost.
The behaviours read only what an agent reads.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping
from random import Random

from dreamgym.environment import Environment
from dreamgym.types import JsonObject, StepResult
from dreamgym_integrations.environments.base import act, graded, mixed
from dreamgym_integrations.environments.textworld_express import TextWorldExpress
from dreamgym_integrations.environments.textworld_express.engine import Game, exits, place_name

GRAMMAR = ("move north", "move east", "move south", "move west", "take coin", "look around", "inventory")
MALFORMED = ("coin", "take", "go", "move", "north", "look", "take the coin", "move coin", "help", ".")
MALFORMED_SHARE = 0.1
"""Share of malformed commands among the random ones of bad play."""
RULES = f"""A house of eight places. The commands are: {", ".join(GRAMMAR)}.
Moving to an exit, or looking around, answers with the place: its name, its exits, and `coin here.` if it is there.
Exits lead both ways, nothing but the coin ever changes, and a place looks the same each time it is entered.
`inventory` answers `you carry nothing.` and then the place.
`take coin` where the coin is answers `you take the coin.`: this is success and the end.
Everything else, such as a move where there is no exit or a text that is no command, answers `unknown action.` as an \
error and then the place."""
_SHORT = {
    "Unknown action: I'm not sure what you mean.": "unknown action.",
    "Inventory: Your inventory is currently empty.": "you carry nothing.",
}


def view(look: str) -> str:
    """The game's description of a place, shortened to its name, its exits clockwise from the north, and the coin."""
    parts = [place_name(look), *(f"{side}: {there}" for side, there in exits(look).items())]
    return ". ".join([*parts, *(["coin here"] if re.search(r"\bcoin\b", look) else [])]) + "."


def short(reply: str) -> str:
    """Shorten a reply that does not describe a place."""
    line = " ".join(reply.split())
    return _SHORT.get(line, line.lower())


class HouseMap:
    """The exits of the places seen so far, and the way from one to another."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._exits: dict[str, Mapping[str, str]] = {}

    def note(self, place: str, exits: Mapping[str, str]) -> None:
        """Remember the exits of a place: the place behind each, by side."""
        self._exits[place] = exits

    def is_unseen(self, place: str) -> bool:
        """True if only the place's name is known."""
        return place not in self._exits

    def side(self, here: str, wanted: Callable[[str], bool]) -> str | None:
        """The side to leave by for the nearest wanted place, drawn among equally near ones.

        Returns any side if no way to a wanted place is known, and None if the place has no exit.
        """
        sides = list(self._exits[here])
        self._random.shuffle(sides)
        routes = deque((side, self._exits[here][side]) for side in sides)
        reached = {here}
        while routes:
            first_side, there = routes.popleft()
            if wanted(there):
                return first_side
            if there not in reached and there in self._exits:
                reached.add(there)
                routes.extend((first_side, beyond) for beyond in self._exits[there].values())
        return sides[0] if sides else None


class Explorer:
    """A depth-first search that takes the coin.

    It goes through an exit to an unseen place, drawn if there are several. If the place has no such exit, it walks
    back to the nearest place that has one.
    """

    def __init__(self, random: Random) -> None:
        self._map = HouseMap(random)

    def look(self, state: str) -> str:
        """Note the place that `state` describes and return the command to give there."""
        place, *details = state.rstrip(".").split(". ")
        self._map.note(place, dict(detail.split(": ", 1) for detail in details if ": " in detail))
        if "coin here" in details:
            return "take coin"
        return f"move {self._map.side(place, self._map.is_unseen) or 'north'}"


async def play(start: StepResult, environment: Environment, random: Random, good: float, malformed: float) -> None:
    """Play to the end: each command is the explorer's with probability `good`, else random."""
    explorer, result = Explorer(random), start
    while not result.done:
        command = explorer.look(result.state)
        if random.random() >= good:
            command = random.choice(MALFORMED if random.random() < malformed else GRAMMAR)
        result = await environment.step(act(command))


COIN = Game(
    name="coin",
    description="Find the coin in a house of eight places and take it (TextWorldExpress, game coin).",
    instruction="Search the house for the coin and take it.",
    doing="Do one thing in the house.",
    rules=RULES,
    commands=", ".join(GRAMMAR),
    example="move north",
    parameters={"numLocations": 8, "numDistractorItems": 0, "includeDoors": 0, "limitInventorySize": 0},
    max_steps=12,  # an expert solves about nine tasks in ten, and random play one in six
    behaviours={
        "expert": graded(play, 1.0),
        "expert_80": graded(play, 0.8),  # the graded ones make a ladder to rank simulators by
        "expert_60": graded(play, 0.6),
        "expert_40": graded(play, 0.4),
        "noisy": graded(play, 0.15),  # a policy is warm-started on it
        "random": graded(play, 0.0, MALFORMED_SHARE),
        "mixed": mixed(play, MALFORMED_SHARE),
    },
    view=lambda answer: view(answer["look"]),
    shorten=short,
)


def coin(options: JsonObject) -> TextWorldExpress:
    """Entry point `coin`."""
    return TextWorldExpress(COIN, options)
