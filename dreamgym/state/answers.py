"""The JSON in an answer: its structured content, or its text."""

from __future__ import annotations

import json
from typing import Protocol

from pydantic import JsonValue

from dreamgym.types import JsonObject


class HasAnswer(Protocol):
    """A recorded result, or a prediction."""

    @property
    def observation(self) -> str:
        """The text."""

    @property
    def structured(self) -> JsonObject | None:
        """The structured content."""


def shown_in(answer: HasAnswer) -> JsonValue:
    """The structured content, or the text if that is a JSON object or list; None: the answer is words.

    White space around the JSON does not matter. A number or a word such as `true` alone is words: it names nothing.
    """
    if answer.structured is not None:
        return answer.structured
    if not answer.observation.lstrip().startswith(("{", "[")):
        return None
    try:
        value: JsonValue = json.loads(answer.observation)
    except (ValueError, RecursionError):
        return None
    return value
