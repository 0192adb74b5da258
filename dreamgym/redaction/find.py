"""The result of a redaction rule: a span of text that must be removed."""

from __future__ import annotations

from typing import NamedTuple


class Find(NamedTuple):
    """A span of a text that must be removed."""

    start: int
    end: int
    name: str
    """Name of the rule that found it, or the field name that it stood behind."""
    placeholder: str | None = None
    """The text that replaces the span; None: a placeholder made from name and value."""
    is_told: bool = False
    """True if only what is beside the value shows that it is a secret. It is then removed everywhere else, too."""
