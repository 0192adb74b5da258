"""Sequences in which a server makes new ids."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_NUMBERED = re.compile(r"(.*?)(\d{1,100})")
"""A prefix and a number. No server counts to more digits, and int() refuses more than 4,300."""


@dataclass(frozen=True)
class IdSequence:
    """Ids of one collection: a prefix and a number that grows by one, as in `O-7`, `O-8`."""

    prefix: str
    width: int
    """Digits to which the number is padded with zeros; 0 if it is not padded."""
    first: int | None
    """The number of the first id in an empty collection; None if no recorded call made one there."""

    @classmethod
    def of(cls, created: Sequence[tuple[Sequence[str], str]]) -> IdSequence | None:
        """The sequence that made every recorded id, or None.

        Args:
            created: the ids that existed and the new id, for each recorded call that made one.
        """
        parts = [_NUMBERED.fullmatch(new) for _, new in created]
        if not parts or parts[0] is None:
            return None
        width = len(parts[0][2]) if parts[0][2].startswith("0") else 0
        firsts = [int(part[2]) for part, (existing, _) in zip(parts, created, strict=True) if part and not existing]
        sequence = cls(parts[0][1], width, min(firsts, default=None))
        return sequence if all(sequence.next_after(existing) == new for existing, new in created) else None

    def next_after(self, existing: Iterable[str]) -> str | None:
        """The id that follows the existing ones; None if there are none and no recording shows the first."""
        matches = [_NUMBERED.fullmatch(identity) for identity in existing]
        numbers = [int(match[2]) for match in matches if match and match[1] == self.prefix]
        if not numbers:
            return None if self.first is None else self._id(self.first)
        return self._id(max(numbers) + 1)

    def run_from(self, start: str, count: int) -> list[str]:
        """Consecutive ids, at least one, beginning with `start`, which must belong to this sequence."""
        return [start, *(self.later(start, step) for step in range(1, count))]

    def later(self, start: str, steps: int) -> str:
        """The id that comes a number of steps after `start`, which must belong to this sequence."""
        return self._id(int(start[len(self.prefix) :]) + steps)

    def _id(self, number: int) -> str:
        return f"{self.prefix}{number:0{self.width}d}" if self.width else f"{self.prefix}{number}"
