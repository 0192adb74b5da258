"""A recorded call as rules are learned from it."""

from __future__ import annotations

from dataclasses import dataclass

from dreamgym.types import JsonObject


@dataclass(frozen=True)
class ObjectCall:
    """A recorded call. States are as `dreamgym.reading.Reader` gives them; nobody may change them."""

    world: str
    tool: str
    arguments: JsonObject
    before: JsonObject
    after: JsonObject
    answer: JsonObject | None
    """None for a refusal, and for an answer that was not understood."""
    is_error: bool
    words: str
