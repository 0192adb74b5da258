"""All games by name: `coin`, and the seven others with their rules; and the entry points of the seven."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from dreamgym.errors import UnknownName
from dreamgym.types import JsonObject
from dreamgym_integrations.environments.textworld_express import TextWorldExpress
from dreamgym_integrations.environments.textworld_express.coin import COIN
from dreamgym_integrations.environments.textworld_express.engine import Game
from dreamgym_integrations.environments.textworld_express.players import (
    BookFollower,
    Calculator,
    Cook,
    Follower,
    MapReader,
    Sorter,
    Tidier,
    behaviours,
)
from dreamgym_integrations.environments.textworld_express.scenes import scene_view, short

_PLACES = """A place is shown by its name, its exits with the places they lead to, what lies in the open, what is in \
or on each holder (`empty`, or `closed` until it is opened), and what you carry.
`look around`, and `move` to an exit (north, east, south, west), answer with the place. Exits lead both ways.
`inventory` answers with the place too, after `you carry nothing.` if that is so.
Every other command answers with what happened and then with the place as it is now.
A command that is impossible now, or a text that is no command, answers `unknown action.` as an error and then the \
place; nothing changes.
The state ends with `score: N.` once N per cent of the task are done; the agent does not see it.
"""
_WALK = "look around, inventory, move SIDE"
_TIDY = f"{_WALK}, take ITEM, put ITEM in HOLDER, open HOLDER, close HOLDER"


def _said(answer: Mapping[str, Any]) -> str:
    reply = short(answer["observation"])
    return "" if reply == "unknown action." else reply


def _house(name: str, description: str, rules: str, **fields: Any) -> Game:
    return Game(
        name=name,
        description=f"{description} (TextWorldExpress, game {name}).",
        rules=f"{_PLACES}{rules}",
        view=scene_view,
        shorten=short,
        **fields,
    )


_OTHERS = (
    _house(
        "twc",
        "Put things where they usually belong",
        "The task is done, with success, when each thing that lay in the wrong place is where it belongs.",
        commands=_TIDY,
        example="put white shirt in wardrobe",
        parameters={"numLocations": 1, "numItemsToPutAway": 2, "includeDoors": 0, "limitInventorySize": 0},
        max_steps=15,
        behaviours=behaviours(Tidier),
    ),
    _house(
        "mapreader",
        "Bring a coin from another place of a house into a box",
        "`task` answers with the task and `read map` with which places are connected.\n"
        "`take coin` works where the coin lies. `put coin in box` where the box is ends the episode with success.",
        commands=f"{_WALK}, take ITEM, put ITEM in box, read map, task",
        example="put coin in box",
        parameters={
            "numLocations": 4,
            "maxDistanceApart": 2,
            "includeDoors": 0,
            "maxDistractorItemsPerLocation": 0,
            "limitInventorySize": 0,
        },
        max_steps=16,
        behaviours=behaviours(MapReader),
    ),
    _house(
        "cookingworld",
        "Cook a meal by the recipe and eat it",
        "`read cookbook` answers with the ingredients and directions. Cutting needs a knife that you carry; the stove "
        "fries, the oven roasts, the toaster and the barbeque grill.\n"
        "`prepare meal` works in the kitchen when every ingredient is carried as directed, and gives the meal; "
        "`eat meal` ends the episode with success. Food that is eaten before, or cut or cooked in a way the recipe "
        "does not ask for, ends it without.",
        commands=f"{_TIDY}, read cookbook, examine THING, chop|slice|dice FOOD, cook FOOD in DEVICE, "
        "prepare meal, eat FOOD",
        example="cook red apple in oven",
        parameters={
            "numLocations": 1,
            "numIngredients": 2,
            "numDistractorItems": 2,
            "includeDoors": 0,
            "limitInventorySize": 0,
        },
        max_steps=30,
        behaviours=behaviours(Cook),
    ),
    _house(
        "arithmetic",
        "Solve a math problem and put the item with that quantity into the box",
        "`read math problem` works when it is carried and answers with the problem. `put ITEM in box` ends the episode "
        "with success where the item has the quantity of the answer and the problem was read, and without it where the "
        "item has another quantity.",
        commands=f"{_WALK}, take ITEM, put ITEM in HOLDER, read math problem",
        example="take 2 bananas",
        parameters={},
        max_steps=12,
        behaviours=behaviours(Calculator),
    ),
    _house(
        "sorting",
        "Put things into the box by quantity, the smallest first",
        "The last thing in the right order ends the episode with success, a thing in the wrong order without.",
        commands=f"{_WALK}, take ITEM, put ITEM in HOLDER",
        example="take 25g of oak",
        parameters={},
        max_steps=20,
        behaviours=behaviours(Sorter),
    ),
    _house(
        "peckingorder",
        "Take things in the order that a book says",
        "`read instructions book` answers with what to take now. Taking it is progress, and success when it was the "
        "last; taking something else ends the episode without success.",
        commands=f"{_WALK}, take ITEM, put ITEM in HOLDER, read instructions book",
        example="read instructions book",
        parameters={},
        max_steps=20,
        behaviours=behaviours(BookFollower),
    ),
    Game(
        name="simonsays",
        description="Do what Simon says (TextWorldExpress, game simonsays).",
        rules="""Simon says a command. Saying it answers with the next one, and the last one ends the episode with \
success.
Another command of the game answers `incorrect!` and ends it without success.
A text that is no command of the game answers `unknown action.` as an error and then what Simon said last.
The state ends with `score: N.` once N per cent of the task are done; the agent does not see it.""",
        commands="what Simon says",
        example="smell apple",
        parameters={"gameLength": 5, "numDistractors": 3},
        max_steps=10,
        behaviours=behaviours(Follower),
        view=_said,
        shorten=short,
    ),
)

GAMES: Mapping[str, Game] = {game.name: game for game in (COIN, *_OTHERS)}


def textworld_express(options: JsonObject) -> TextWorldExpress:
    """Entry point `textworld_express`: the game in the option `game`. Raises InvalidInput, UnknownName."""
    name = options.get("game", "coin")
    if not isinstance(name, str) or name not in GAMES:
        raise UnknownName("game of TextWorldExpress", str(name), GAMES)
    return TextWorldExpress(GAMES[name], {key: value for key, value in options.items() if key != "game"})


twc, mapreader, cookingworld, arithmetic, sorting, peckingorder, simonsays = (
    partial(TextWorldExpress, game) for game in _OTHERS
)
"""Entry points of the seven games, under the games' names."""
