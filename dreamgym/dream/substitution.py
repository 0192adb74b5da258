"""Turns a recorded answer into one for another call of the tool: replaces the recorded arguments by the new ones."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection

from pydantic import JsonValue

from dreamgym.state import leaves
from dreamgym.types import JsonObject, ToolCall

BYTES = frozenset({"data", "blob"})
"""Keys under which content blocks hold bytes instead of text."""


class Substitution:
    """Replaces the argument values of one call, as whole words, by those of another; all at once, longest first."""

    def __init__(self, recorded: ToolCall, asked: ToolCall) -> None:
        asked_values = _words(asked.arguments)
        self._replacements: dict[str, str] = {}
        for path, value in _words(recorded.arguments).items():
            if path in asked_values and asked_values[path] != value and (len(value) > 1 or value.isdigit()):
                self._replacements.setdefault(value, asked_values[path])
        values = sorted(self._replacements, key=len, reverse=True)
        # A 2 is not found in 12, 2.5 or v2. Single letters are skipped: they are more often words than the argument.
        whole = "|".join(re.escape(value) for value in values)
        self._pattern = re.compile(rf"(?<!\w)(?<!\d\.)(?:{whole})(?!\w)(?!\.\d)") if values else None

    def __call__(self, text: str) -> str:
        """The text with the recorded values replaced by the asked ones."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: self._replacements[match[0]], text)

    def within(self, value: JsonObject, spared: Collection[str] = ()) -> JsonObject:
        """Replace values in every text of a JSON object, and each number that is equal to a recorded argument.

        Values under the keys in `spared` do not change.
        """
        return {key: item if key in spared else self._replaced(item, spared) for key, item in value.items()}

    def _replaced(self, value: JsonValue, spared: Collection[str]) -> JsonValue:
        if isinstance(value, str):
            return self(value)
        if isinstance(value, dict):
            return self.within(value, spared)
        if isinstance(value, list):
            return [self._replaced(item, spared) for item in value]
        if value is None or isinstance(value, bool):
            return value
        try:
            replaced: JsonValue = json.loads(self._replacements.get(json.dumps(value), json.dumps(value)))
        except ValueError:
            return value
        return replaced if isinstance(replaced, int | float) and math.isfinite(replaced) else value


def _words(arguments: JsonObject) -> dict[tuple[str | int, ...], str]:
    """Every text and number in some arguments, by its path; true, false and null are never replaced."""
    return {
        path: value if isinstance(value, str) else json.dumps(value)
        for path, value in leaves(arguments)
        if value is not None and not isinstance(value, bool)
    }
