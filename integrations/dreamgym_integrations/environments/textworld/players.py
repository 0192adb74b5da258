"""The expert of each game of TextWorldExpress other than `coin`. `cook.py` has the one of `cookingworld`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from operator import add, floordiv, mul, sub
from random import Random

from dreamgym.errors import MissingPackage
from dreamgym_integrations.environments.textworld.behaviours import Player
from dreamgym_integrations.environments.textworld.scenes import plain

_UNITS = {"mg": 1e-3, "g": 1.0, "kg": 1e3, "ml": 1.0, "l": 1e3, "mm": 1.0, "cm": 10.0, "m": 1e3}
_QUANTITY = re.compile(r"(\d+)(mg|g|kg|ml|l|mm|cm|m)? ")
_PROBLEM = re.compile(r"(add|subtract|multiply|divide) (\d+) (?:and|to|from|by|with) (\d+)")
_OPERATIONS = {"add": add, "subtract": lambda a, b: sub(b, a), "multiply": mul, "divide": floordiv}
_VERBS = ("eat", "examine", "slice", "smell", "take", "touch")
_FRUITS = ("apple", "banana", "grape", "grapefruit", "orange", "papaya", "peach", "pineapple", "strawberry")


class MapReader(Player):
    """Searches for the coin depth first and carries it back to the box; it does without the map."""

    def command(self) -> str:
        """Take the coin, return, put it into the box."""
        if "coin" in self.scene.carried:
            return "put coin in box" if "box" in self.scene.holders else self.go(lambda scene: "box" in scene.holders)
        return "take coin" if "coin" in self.scene.within_reach else self.go()


class Tidier(Player):
    """Puts away what lies about, and knows where things belong."""

    def command(self) -> str:
        """Put what is carried where it belongs, take what does not lie where it belongs, or search on."""
        scene, homes = self.scene, _homes()
        for item in scene.carried:
            for name, held in scene.holders.items():
                if name in homes.get(item, ()):
                    return f"open {name}" if held is None else f"put {item} in {name}"
        misplaced = [
            *(item for item in scene.things if item in homes),
            *(
                item
                for name, held in scene.holders.items()
                for item in held or ()
                if name not in homes.get(item, (name,))
            ),
        ]
        if misplaced:
            return f"take {misplaced[0]}"
        wanted = {home for item in scene.carried for home in homes.get(item, ())}
        return self.go(lambda there: not wanted.isdisjoint(there.holders))


@cache
def _homes() -> Mapping[str, tuple[str, ...]]:
    """Where things belong, as the package has it. Raises MissingPackage."""
    try:
        text = files("textworld_express").joinpath("twc_objects.folds.json").read_text(encoding="utf-8")
    except ModuleNotFoundError as error:
        raise MissingPackage("a game of TextWorldExpress", "textworld-express") from error
    return {
        plain(name): tuple(map(plain, thing["locations"]))
        for fold in json.loads(text).values()
        for name, thing in fold.items()
    }


class Calculator(Player):
    """Reads the math problem, solves it and puts the item with that quantity into the box."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._answer: int | None = None

    def command(self) -> str:
        """Read, take, put."""
        scene, problem = self.scene, _PROBLEM.search(self.told)
        if problem:
            self._answer = _OPERATIONS[problem[1]](int(problem[2]), int(problem[3]))
        if self._answer is None:
            return "read math problem" if "math problem" in scene.carried else "take math problem"
        is_it = re.compile(rf"{self._answer} ").match
        for item in filter(is_it, scene.carried):
            return f"put {item} in box"
        return next((f"take {item}" for item in filter(is_it, scene.within_reach)), "look around")


class Sorter(Player):
    """Puts what has a quantity into the box, the smallest first."""

    def command(self) -> str:
        """Take the smallest, put it into the box."""
        boxed = self.scene.holders.get("box") or ()
        left = [item for item in (*self.scene.carried, *self.scene.within_reach) if item not in boxed]
        amounts = [(_amount(item), item) for item in left if _QUANTITY.match(item)]
        if not amounts:
            return "look around"
        item = min(amounts)[1]
        return f"put {item} in box" if item in self.scene.carried else f"take {item}"


def _amount(item: str) -> float:
    quantity = _QUANTITY.match(item)
    assert quantity is not None
    return int(quantity[1]) * _UNITS.get(quantity[2] or "", 1.0)


class BookFollower(Player):
    """Reads the book of instructions and takes what it says, again and again."""

    def command(self) -> str:
        """Read, take."""
        told = re.search(r"the current task is to take the ([a-z ]+)\.", self.told)
        return f"take {told[1]}" if told else "read instructions book"


class Follower(Player):
    """Does what Simon says."""

    def command(self) -> str:
        """What was said last."""
        said = re.findall(r"simon says, ([a-z ]+)\.", self.told)
        return said[-1] if said else "look around"

    def possible(self) -> list[str]:
        """What was said, and commands like it."""
        return [self.command(), *(f"{verb} {fruit}" for verb in _VERBS for fruit in _FRUITS)]
