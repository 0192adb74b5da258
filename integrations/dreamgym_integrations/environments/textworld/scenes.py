"""What TextWorldExpress says of a place, shortened to what an agent must know of it, and read back from that.

    pantry. north: kitchen. coin. shelf: 2 apples, flour. fridge: closed. you carry: map.

The name of the place, its exits clockwise from the north, what lies in the open, what holds or can hold something, and
what the agent carries. Words are small letters without hyphens, as agents write them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dreamgym.errors import EnvironmentUnavailable

SIDES = ("north", "east", "south", "west")
CLOSED_DOOR = "closed door"

_PLACE = re.compile(r"You are in the ([a-z ]+)\.")
_EXIT = re.compile(r"[Tt]o the (North|East|South|West) you see (?:the ([a-z ]+)|a (closed) [a-z -]*door)\.")
_THING = re.compile(r"(?:[Yy]ou (?:also )?see|There is also) (.+?)\.(?:\s|$)")
_HOLDER = re.compile(r"(.+?),? that (?:has (.+) on it|contains (.+)|is (?:closed|empty))$")
_ARTICLE = re.compile(r"^(?:an? |the |some )?(?:open )?", re.IGNORECASE)


def plain(text: str) -> str:
    """On one line, in small letters and without hyphens."""
    return " ".join(text.lower().replace("-", " ").split())


def exits(look: str) -> dict[str, str]:
    """Where one can go, clockwise from the north."""
    found = {side.lower(): there or CLOSED_DOOR for side, there, _ in _EXIT.findall(look)}
    return {side: found[side] for side in SIDES if side in found}


def place_name(look: str) -> str:
    """The place that a description is of. Raises EnvironmentUnavailable where it describes none."""
    place = _PLACE.search(look)
    if place is None:
        raise EnvironmentUnavailable(f"expected the description of a place from the game, got {look[:200]!r}")
    return place[1]


def _name(text: str) -> str:
    return _ARTICLE.sub("", plain(text))


@dataclass(frozen=True)
class Scene:
    """A place as the agent knows it."""

    place: str
    exits: Mapping[str, str]
    """By side: the place there, or CLOSED_DOOR."""
    things: tuple[str, ...]
    holders: Mapping[str, tuple[str, ...] | None]
    """By name: what is in or on it; None where it is closed."""
    carried: tuple[str, ...]

    @classmethod
    def of_game(cls, look: str, inventory: str) -> Scene:
        """From the game's prose. Raises EnvironmentUnavailable where it describes no place."""
        things: list[str] = []
        holders: dict[str, tuple[str, ...] | None] = {}
        for text in _THING.findall(_EXIT.sub("", look)):
            holder = _HOLDER.match(text)
            if holder is None:
                things.append(_name(text))
            elif text.endswith("is closed"):
                holders[_name(holder[1])] = None
            else:
                inside = holder[2] or holder[3] or "nothing"
                names = () if inside == "nothing" else tuple(map(_name, re.split(r", and |, ", inside)))
                holders[_name(holder[1])] = names
        lines = [line.strip() for line in inventory.splitlines()[1:] if line.strip()]
        carried = () if lines == ["Your inventory is currently empty."] else tuple(map(_name, lines))
        return cls(place_name(look), exits(look), tuple(things), holders, carried)

    @classmethod
    def of_text(cls, text: str) -> Scene:
        """The scene that `str` wrote; parts that it does not know are left out."""
        place, *parts = text.rstrip(".").split(". ")
        pairs = dict(part.split(": ", 1) for part in parts if ": " in part)
        carried = pairs.pop("you carry", "")
        pairs.pop("score", None)
        holders = {name: held for name, held in pairs.items() if name not in SIDES}
        return cls(
            place,
            {side: there for side, there in pairs.items() if side in SIDES},
            tuple(part for part in parts if ": " not in part),
            {name: None if held == "closed" else _names(held) for name, held in holders.items()},
            tuple(carried.split(", ")) if carried else (),
        )

    def __str__(self) -> str:
        parts = [self.place, *(f"{side}: {there}" for side, there in self.exits.items()), *self.things]
        for name, held in self.holders.items():
            parts.append(f"{name}: {'closed' if held is None else ', '.join(held) or 'empty'}")
        if self.carried:
            parts.append(f"you carry: {', '.join(self.carried)}")
        return ". ".join(parts) + "."

    @property
    def within_reach(self) -> tuple[str, ...]:
        """What can be seen here and is not carried."""
        return (*self.things, *(item for held in self.holders.values() for item in held or ()))


def _names(held: str) -> tuple[str, ...]:
    return () if held == "empty" else tuple(held.split(", "))
