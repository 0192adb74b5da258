"""The game `coin`: find the coin in a house of eight places and take it.

The agent sees the abstract state of a place, not the game's prose: its name, its exits and whether the coin lies there
(`kitchen. north: backyard. west: pantry. coin here.`). Furniture depends on the place alone, so nothing is lost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dreamgym_integrations.environments.textworld.coin_behaviours import BEHAVIOURS, GRAMMAR
from dreamgym_integrations.environments.textworld.game import Game
from dreamgym_integrations.environments.textworld.scenes import exits, place_name

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
    """A reply that describes no place, in few words."""
    line = " ".join(reply.split())
    return _SHORT.get(line, line.lower())


def _view(answer: Mapping[str, Any]) -> str:
    return view(answer["look"])


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
    behaviours=BEHAVIOURS,
    view=_view,
    shorten=short,
)
