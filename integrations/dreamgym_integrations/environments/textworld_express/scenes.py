"""A place of a house: read from the game's prose, written short for an agent, and read back by players.

    pantry. north: kitchen. coin. shelf: 2 apples, flour. fridge: closed. you carry: map.

The text lists the name of the place, its exits clockwise from the north, what lies in the open, the holders with their
contents, and what the agent carries. Words are in lower case without hyphens, as agents write them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dreamgym_integrations.environments.textworld_express.engine import EXIT, SIDES, exits, place_name, plain

_THING = re.compile(r"(?:[Yy]ou (?:also )?see|There is also) (.+?)\.(?:\s|$)")
_HOLDER = re.compile(r"(.+?),? that (?:has (.+) on it|contains (.+)|is (?:closed|empty))$")
_QUOTE = re.compile(r"(?<!\w)'|'(?!\w)")
_ARTICLE = re.compile(r"^(?:an? |the |some )?(?:open )?", re.IGNORECASE)


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
    """By name: what is in or on it; None if it is closed."""
    carried: tuple[str, ...]

    @classmethod
    def of_game(cls, look: str, inventory: str) -> Scene:
        """Parse the game's prose. Raises EnvironmentUnavailable if it does not describe a place."""
        things: list[str] = []
        holders: dict[str, tuple[str, ...] | None] = {}
        for text in _THING.findall(EXIT.sub("", look)):
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
    def of_text(cls, view: str) -> Scene:
        """Parse the text that `str` returns; a score in it is ignored."""
        place, *parts = view.rstrip(".").split(". ")
        pairs = dict(part.split(": ", 1) for part in parts if ": " in part)
        carried = pairs.pop("you carry", "")
        pairs.pop("score", None)
        sides: dict[str, str] = {}
        holders: dict[str, tuple[str, ...] | None] = {}
        for name, text in pairs.items():
            if name in SIDES:
                sides[name] = text
            elif text == "closed":
                holders[name] = None
            else:
                holders[name] = () if text == "empty" else tuple(text.split(", "))
        things = tuple(part for part in parts if ": " not in part)
        return cls(place, sides, things, holders, tuple(carried.split(", ")) if carried else ())

    def __str__(self) -> str:
        parts = [self.place, *(f"{side}: {there}" for side, there in self.exits.items()), *self.things]
        for name, held in self.holders.items():
            parts.append(f"{name}: {'closed' if held is None else ', '.join(held) or 'empty'}")
        if self.carried:
            parts.append(f"you carry: {', '.join(self.carried)}")
        return ". ".join(parts) + "."

    @property
    def within_reach(self) -> tuple[str, ...]:
        """Things that can be seen here and are not carried."""
        return (*self.things, *(item for held in self.holders.values() for item in held or ()))


def scene_view(answer: Mapping[str, Any]) -> str:
    """The place, all that is in it, and what the agent carries."""
    return str(Scene.of_game(answer["look"], answer["inventory"]))


def short(reply: str) -> str:
    """Shorten a reply to one line in lower case, a refusal to `unknown action.`, and an inventory to nothing.

    The place that follows shows what is carried. It does not show an empty inventory, which gives `you carry nothing.`
    """
    lines = [_QUOTE.sub("", plain(line)) for line in reply.splitlines() if line.strip()]
    line = " ".join(line if line.endswith((".", ":", "!")) else f"{line}," for line in lines)
    line = f"{line[:-1]}." if line.endswith(",") else line
    if line.startswith("unknown action"):
        return "unknown action."
    if line.startswith("inventory:"):
        return "you carry nothing." if line.endswith("is currently empty.") else ""
    return line
