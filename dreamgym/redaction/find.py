"""What a rule says of a text."""

from __future__ import annotations

from typing import NamedTuple


class Find(NamedTuple):
    """Something in a text that has to go."""

    start: int
    end: int
    name: str
    """Which rule found it, or the name that it stood behind."""
    placeholder: str | None = None
    """What stands in its place; None: a placeholder made of name and value."""
    is_told: bool = False
    """Only its name tells that it is a secret, so it is looked for wherever else it stands."""
