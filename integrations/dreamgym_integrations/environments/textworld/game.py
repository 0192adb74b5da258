"""What one game of TextWorldExpress is to us: its parameters, what the agent reads of it, and ways to play it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dreamgym.environment import Behaviour
from dreamgym_integrations.environments.textworld.scenes import Scene, plain

_QUOTE = re.compile(r"(?<!\w)'|'(?!\w)")
REFUSALS = ("unknown action.", "you can't", "that is already", "your inventory currently has")


@dataclass(frozen=True)
class Game:
    """A game by its name in the package."""

    name: str
    description: str
    rules: str
    """What the experience model is told about how the game answers."""
    commands: str
    """The commands, in one line."""
    example: str
    """One of them."""
    parameters: Mapping[str, int]
    """The package's own names, with the values that we play by default."""
    max_steps: int
    behaviours: Mapping[str, Behaviour]
    view: Callable[[Mapping[str, Any]], str]
    """What is to be seen after an answer; empty where the answer does not tell."""
    shorten: Callable[[str], str]
    """A reply that describes no place, in few words."""
    doing: str = "Do one thing."
    """What the tool is for."""
    instruction: str | None = None
    """None: the game's own words."""

    def setting(self, parameters: Mapping[str, int]) -> str:
        """Name of the environment: the game's, with the values where they are not the default ones."""
        played = {**self.parameters, **parameters}
        if played == self.parameters:
            return self.name
        return "-".join([self.name, *map(str, played.values())])


def scene_view(answer: Mapping[str, Any]) -> str:
    """The place, all that is in it, and what the agent carries."""
    return str(Scene.of_game(answer["look"], answer["inventory"]))


def short(reply: str) -> str:
    """A reply in small letters on one line; the game's refusal in two words, and nothing for a list of what is carried.

    The place that follows says what is carried, unless that is nothing.
    """
    lines = [_QUOTE.sub("", plain(line)) for line in reply.splitlines() if line.strip()]
    line = " ".join(line if line.endswith((".", ":", "!")) else f"{line}," for line in lines)
    line = f"{line[:-1]}." if line.endswith(",") else line
    if line.startswith("unknown action"):
        return "unknown action."
    if line.startswith("inventory:"):
        return "you carry nothing." if line.endswith("is currently empty.") else ""
    return line
