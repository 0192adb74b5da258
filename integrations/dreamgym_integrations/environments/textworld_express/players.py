"""Players of the games other than `coin`: one expert per game, and good and deliberately bad play made from it.

They read only what an agent reads. So they play in a simulation as well as in the real game, and recover from a slip.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from operator import add, mul, sub
from random import Random

from dreamgym.environment import Behaviour, Environment
from dreamgym.errors import MissingPackage
from dreamgym.types import StepResult
from dreamgym_integrations.environments.base import act, graded, mixed
from dreamgym_integrations.environments.textworld_express.coin import HouseMap
from dreamgym_integrations.environments.textworld_express.engine import CLOSED_DOOR, SIDES, plain
from dreamgym_integrations.environments.textworld_express.scenes import Scene

READABLE = ("map", "cookbook", "math problem", "instructions book")
MALFORMED = ("take", "put", "go", "move", "north", "look", "open", "read", "put it in", "move box", "help", ".")
IMPOSSIBLE_SHARE = 0.25
"""Share of impossible or malformed commands among the random commands of bad play."""
_UNITS = {"mg": 1e-3, "g": 1.0, "kg": 1e3, "ml": 1.0, "l": 1e3, "mm": 1.0, "cm": 10.0, "m": 1e3}
_QUANTITY = re.compile(r"(\d{1,9})(mg|g|kg|ml|l|mm|cm|m)? ")
_PROBLEM = re.compile(r"(add|subtract|multiply|divide) (\d{1,9}) (?:and|to|from|by|with) (\d{1,9})")
_OPERATIONS: Mapping[str, Callable[[int, int], int | None]] = {
    "add": add,
    "subtract": lambda a, b: sub(b, a),
    "multiply": mul,
    "divide": lambda a, b: a // b if b else None,
}
_VERBS = ("eat", "examine", "slice", "smell", "take", "touch")
_FRUITS = ("apple", "banana", "grape", "grapefruit", "orange", "papaya", "peach", "pineapple", "strawberry")
_DONE = {"chop": "chopped", "slice": "sliced", "dice": "diced", "fry": "fried", "roast": "roasted", "grill": "grilled"}
_DEVICES = {"fry": ("stove",), "roast": ("oven",), "grill": ("toaster", "barbeque")}
_CUTS = ("chop", "slice", "dice")
_PREPARED = re.compile(rf"^(?:(?:raw|{'|'.join(_DONE.values())}) )*")


class HousePlayer:
    """Remembers what was seen so far and suggests commands. The subclass of a game picks the good one."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.scene = Scene("", {}, (), {}, ())
        self.scenes: dict[str, Scene] = {}
        self.told = ""
        self._map = HouseMap(random)
        self._tried: dict[str, None] = {}

    def see(self, result: StepResult) -> None:
        """Learn from the result of a step."""
        self.told = result.observation
        self.scene = Scene.of_text(result.state)
        self.scenes[self.scene.place] = self.scene
        self._map.note(self.scene.place, self.scene.exits)
        self._tried.update(dict.fromkeys(self.possible()))

    def command(self) -> str:
        raise NotImplementedError

    def possible(self) -> list[str]:
        """Commands that the place suggests. The game refuses only a few, such as taking a fixed thing."""
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
        """A command that fits another place, or a malformed one."""
        elsewhere = [*self._tried, *(f"move {side}" for side in SIDES)]
        return self.random.choice(MALFORMED if self.random.random() < 0.3 else elsewhere)

    def go(self, wanted: Callable[[Scene], bool] | None = None) -> str:
        """Command towards the nearest known place that is wanted, else towards the nearest unseen one."""
        known = {name for name, scene in self.scenes.items() if wanted is not None and wanted(scene)}
        side = self._map.side(self.scene.place, known.__contains__ if known else self._map.is_unseen)
        return self._leave(side) if side else "look around"

    def _leave(self, side: str) -> str:
        return f"open door to {side}" if self.scene.exits.get(side) == CLOSED_DOOR else f"move {side}"


def behaviours(make: Callable[[Random], HousePlayer]) -> Mapping[str, Behaviour]:
    """The behaviours of one game by name."""

    async def play(start: StepResult, environment: Environment, random: Random, good: float, impossible: float) -> None:
        player, result = make(random), start
        while not result.done:
            player.see(result)
            if random.random() < good:
                command = player.command()
            elif random.random() < impossible:
                command = player.impossible()
            else:
                command = random.choice(player.possible())
            result = await environment.step(act(command))

    return {
        "expert": graded(play, 1.0),
        "expert_80": graded(play, 0.8),
        "expert_60": graded(play, 0.6),
        "expert_40": graded(play, 0.4),
        # a policy cloned from it (1,500 episodes of mapreader, 200 steps) wins 15 % of new episodes; a share of 0.15
        # would give 4 %, 0.3 would give 30 %
        "noisy": graded(play, 0.2, 0.1),
        "random": graded(play, 0.0, IMPOSSIBLE_SHARE),
        "mixed": mixed(play, IMPOSSIBLE_SHARE),
    }


class MapReader(HousePlayer):
    """Searches for the coin depth first and carries it back to the box. It does not use the map."""

    def command(self) -> str:
        """Take the coin, return, put it into the box."""
        if "coin" in self.scene.carried:
            return "put coin in box" if "box" in self.scene.holders else self.go(lambda scene: "box" in scene.holders)
        return "take coin" if "coin" in self.scene.within_reach else self.go()


class Tidier(HousePlayer):
    """Puts misplaced things away. It knows from the package where things belong."""

    def command(self) -> str:
        """Put a carried thing where it belongs, else take a misplaced thing, else search on."""
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
    """The places where each thing belongs, from the package's data. Raises MissingPackage."""
    try:
        text = files("textworld_express").joinpath("twc_objects.folds.json").read_text(encoding="utf-8")
    except ModuleNotFoundError as error:
        raise MissingPackage("a game of TextWorldExpress", "textworld-express") from error
    return {
        plain(name): tuple(map(plain, thing["locations"]))
        for fold in json.loads(text).values()
        for name, thing in fold.items()
    }


class Calculator(HousePlayer):
    """Reads the math problem, solves it and puts the item with that quantity into the box."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._answer: int | None = None

    def command(self) -> str:
        scene, problem = self.scene, _PROBLEM.search(self.told)
        if problem:
            self._answer = _OPERATIONS[problem[1]](int(problem[2]), int(problem[3]))
        if self._answer is None:
            return "read math problem" if "math problem" in scene.carried else "take math problem"
        is_it = re.compile(rf"{self._answer} ").match
        for item in filter(is_it, scene.carried):
            return f"put {item} in box"
        return next((f"take {item}" for item in filter(is_it, scene.within_reach)), "look around")


class Sorter(HousePlayer):
    """Puts the things that have a quantity into the box, the smallest first."""

    def command(self) -> str:
        """Take the smallest, put it into the box."""
        boxed = self.scene.holders.get("box") or ()
        left = [item for item in (*self.scene.carried, *self.scene.within_reach) if item not in boxed]
        amounts = [
            (int(quantity[1]) * _UNITS.get(quantity[2] or "", 1.0), item)
            for item in left
            if (quantity := _QUANTITY.match(item))
        ]
        if not amounts:
            return "look around"
        item = min(amounts)[1]
        return f"put {item} in box" if item in self.scene.carried else f"take {item}"


class BookFollower(HousePlayer):
    """Reads the book of instructions and takes the thing that it asks for, again and again."""

    def command(self) -> str:
        told = re.search(r"the current task is to take the ([a-z ]+)\.", self.told)
        return f"take {told[1]}" if told else "read instructions book"


class Follower(HousePlayer):
    """Does what Simon says."""

    def command(self) -> str:
        """The command that Simon said last."""
        said = re.findall(r"simon says, ([a-z ]+)\.", self.told)
        return said[-1] if said else "look around"

    def possible(self) -> list[str]:
        """The command that Simon said last, and commands like it."""
        return [self.command(), *(f"{verb} {fruit}" for verb in _VERBS for fruit in _FRUITS)]


def ingredient(item: str) -> str:
    """Name of an item in commands: without words such as `raw`, `diced` and `fried`."""
    return _PREPARED.sub("", item)


class Cook(HousePlayer):
    """Follows the cookbook."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._ingredients: list[str] = []
        self._directions: list[tuple[str, str]] = []

    def command(self) -> str:
        """Command for the first thing that is left to do."""
        self._read()
        if not self._ingredients:
            near = "cookbook" in (*self.scene.carried, *self.scene.within_reach)
            return "read cookbook" if near else self.go()
        if "meal" in self.scene.carried:
            return "eat meal"
        carried = {ingredient(item): item for item in self.scene.carried}
        left = [(verb, name) for verb, name in self._directions if _DONE[verb] not in carried.get(name, "").split()]
        needed = [*self._ingredients, *(["knife"] if any(verb in _CUTS for verb, _ in left) else [])]
        missing = [name for name in needed if name not in carried]
        if missing:
            return self._find(missing)
        for verb, name in left:
            return f"{verb} {name}" if verb in _CUTS else self._cook(verb, name)
        return "prepare meal" if self.scene.place == "kitchen" else self.go(lambda scene: scene.place == "kitchen")

    def possible(self) -> list[str]:
        """Commands that the place suggests, and those for the food that is carried."""
        scene, food = self.scene, [ingredient(item) for item in self.scene.carried]
        devices = [name for names in _DEVICES.values() for name in names if name in scene.things]
        commands = [command for command in super().possible() if not command.startswith(("take", "put"))]
        return [
            *commands,
            "prepare meal",
            *(f"take {ingredient(item)}" for item in scene.within_reach if item not in devices),
            *(f"{verb} {name}" for name in food for verb in (*_CUTS, "eat")),
            *(f"cook {name} in {device}" for name in food for device in devices),
        ]

    def _read(self) -> None:
        recipe = re.search(r"ingredients: (.+?), directions: (.*?)prepare meal", self.told)
        if recipe:
            self._ingredients = recipe[1].split(", ")
            steps = [step.partition(" the ") for step in recipe[2].split(", ")]
            self._directions = [(verb, name) for verb, _, name in steps if verb in _DONE]

    def _find(self, missing: list[str]) -> str:
        def has_it(scene: Scene) -> bool:
            return any(ingredient(item) in missing for item in scene.within_reach)

        def may_have_it(scene: Scene) -> bool:
            return None in scene.holders.values()

        for item in self.scene.within_reach:
            if ingredient(item) in missing:
                return f"take {ingredient(item)}"
        closed = [name for name, held in self.scene.holders.items() if held is None]
        return f"open {closed[0]}" if closed else self.go(lambda scene: has_it(scene) or may_have_it(scene))

    def _cook(self, verb: str, name: str) -> str:
        for device in _DEVICES[verb]:
            if device in self.scene.things:
                return f"cook {name} in {device}"
        return self.go(lambda scene: any(device in scene.things for device in _DEVICES[verb]))
