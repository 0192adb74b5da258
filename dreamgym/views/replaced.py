"""Writes that replace one text by another wherever it occurs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from pydantic import JsonValue

from dreamgym.types import ToolCall
from dreamgym.views.session import Call

MOST_CALLS = 4
"""Most recorded calls of one tool that are looked at."""
MOST_TEXTS = 2_000
"""Most texts from the start of a session that are searched for the replaced one."""
MOST_CHARACTERS = 1_000_000
"""Most characters that one call puts into the texts of a view or a sheet."""


@dataclass(frozen=True)
class Replacement:
    """A tool that replaces the text of one argument by that of another."""

    find: str
    put: str
    in_words: bool
    """True if a recording shows that a part of a text is replaced; else only whole texts are known to be."""

    def values(self, action: ToolCall) -> tuple[str, str]:
        """The text that a call replaces, and the new one."""
        return str(action.arguments.get(self.find, "")), str(action.arguments.get(self.put, ""))

    def within(self, value: JsonValue, action: ToolCall) -> JsonValue:
        """A value after the call, with all its texts replaced.

        Raises ValueError if no recording shows whether a part of a text is replaced, or if the value would be too long.
        """
        find, put = self.values(action)
        if count_in(value, find) * len(put) > MOST_CHARACTERS:
            raise ValueError(f"the call puts more than {MOST_CHARACTERS:,} characters into the texts")
        return self._within(value, find, put)

    def _in_text(self, text: str, find: str, put: str) -> str:
        if text == find:
            return put
        if not find or find not in text:
            return text
        if not self.in_words:
            raise ValueError("no recording shows whether a part of a text is replaced")
        return text.replace(find, put)

    def _within(self, value: JsonValue, find: str, put: str) -> JsonValue:
        if isinstance(value, str):
            return self._in_text(value, find, put)
        if isinstance(value, dict):
            return {name: self._within(part, find, put) for name, part in value.items()}
        return [self._within(part, find, put) for part in value] if isinstance(value, list) else value


def replacements(episodes: Sequence[Sequence[Call]], start: Sequence[JsonValue]) -> dict[str, Replacement]:
    """The tools that replace texts, as recordings show.

    Such a tool is given two texts. A text that is known from the start contains the first one. Reads after the call
    show that text with the second one in its place, and the first one nowhere.

    Args:
        episodes: the recorded sessions.
        start: the values of answers at the start of sessions.
    """
    texts = list(dict.fromkeys(text for value in start for text in texts_in(value)))[:MOST_TEXTS]
    found: dict[str, Replacement] = {}
    tried: dict[str, int] = {}
    for episode in episodes:
        for number, call in enumerate(episode):
            tool = call.action.name
            values = call.action.arguments.values()
            if not call.changes or tried.get(tool, 0) >= MOST_CALLS or any(isinstance(x, dict | list) for x in values):
                continue
            tried[tool] = tried.get(tool, 0) + 1
            after = {
                text
                for later in episode[number + 1 :]
                if not later.is_write and later.view is not None
                for text in texts_in(later.view.value)
            }
            given = {name: value for name, value in call.action.arguments.items() if isinstance(value, str) and value}
            for find, put in permutations(given, 2):
                old, new = given[find], given[put]
                made = {text for text in texts if old in text and text not in after and text.replace(old, new) in after}
                if made and new not in old and not any(old in text for text in after):
                    in_words = any(text != old for text in made)
                    before = found.get(tool)
                    if before is None or (before.find, before.put) == (find, put):
                        found[tool] = Replacement(find, put, in_words or (before is not None and before.in_words))
    return found


def texts_in(value: JsonValue) -> Iterator[str]:
    """All texts of a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts_in(part)


def count_in(value: JsonValue, text: str) -> int:
    """How often a text occurs in the texts of a value."""
    return sum(one.count(text) for one in texts_in(value)) if text else 0
