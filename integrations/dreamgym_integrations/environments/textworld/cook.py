"""The expert of `cookingworld`: reads the recipe, gathers, cuts, cooks, prepares, eats."""

from __future__ import annotations

import re
from random import Random

from dreamgym_integrations.environments.textworld.behaviours import Player
from dreamgym_integrations.environments.textworld.scenes import Scene

_DONE = {"chop": "chopped", "slice": "sliced", "dice": "diced", "fry": "fried", "roast": "roasted", "grill": "grilled"}
_DEVICES = {"fry": ("stove",), "roast": ("oven",), "grill": ("toaster", "barbeque")}
_CUTS = ("chop", "slice", "dice")
_PREPARED = re.compile(rf"^(?:(?:raw|{'|'.join(_DONE.values())}) )*")


def ingredient(item: str) -> str:
    """The name by which an item is handled, whatever was done to it."""
    return _PREPARED.sub("", item)


class Cook(Player):
    """Follows the cookbook."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._ingredients: list[str] = []
        self._directions: list[tuple[str, str]] = []

    def command(self) -> str:
        """The first thing that is left to do."""
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
        """With what can be done to food."""
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
