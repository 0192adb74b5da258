"""A map drawn from what was seen, and the way it shows: for players that search a house."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from random import Random


class Explorer:
    """Knows the exits of the places that it was told of."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._exits: dict[str, Mapping[str, str]] = {}

    def note(self, place: str, exits: Mapping[str, str]) -> None:
        """Remember where a place leads, by side."""
        self._exits[place] = exits

    def is_unseen(self, place: str) -> bool:
        """The place is known by name only."""
        return place not in self._exits

    def side(self, here: str, wanted: Callable[[str], bool]) -> str | None:
        """The side to leave by for the nearest wanted place, drawn among several that are near.

        Any side where no place is wanted that it knows the way to; None where there is no exit.
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
