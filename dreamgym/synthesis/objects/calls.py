"""A recorded call as rules are learned from it."""

from __future__ import annotations

from dataclasses import dataclass

from dreamgym.types import JsonObject


@dataclass(frozen=True)
class ObjectCall:
    """A recorded call. Its states come from a `dreamgym.reading.Reader` and must not be changed."""

    world: str
    tool: str
    arguments: JsonObject
    before: JsonObject
    after: JsonObject
    answer: JsonObject | None
    """None for a refusal, and for an answer that was not understood."""
    is_error: bool
    words: str
