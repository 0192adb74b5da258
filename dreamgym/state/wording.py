"""How a tool's text follows from its structured content.

Most servers give the same answer twice: as structured content, and as a text that follows from it. If the recordings
of a tool show how its text follows, a model is not asked for the text, so the two cannot disagree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dreamgym.types import JsonObject, StepResult

JSON_STYLES: tuple[tuple[int | str | None, tuple[str, str]], ...] = (
    (2, (",", ": ")),
    (None, (",", ":")),
    (None, (", ", ": ")),
    (4, (",", ": ")),
    ("\t", (",", ": ")),
)
"""Indent and separators of the ways in which servers write JSON."""


@dataclass(frozen=True)
class Wording:
    """How a tool's text follows from its structured content: the whole of it or one field, as it is or as JSON."""

    field: str | None
    style: tuple[int | str | None, tuple[str, str]] | None
    """Indent and separators of the JSON; None for a field that is the text itself."""
    is_ascii: bool = False

    def text(self, structured: JsonObject) -> str:
        """The text for a structured content. Raises ValueError if the content does not fit this wording."""
        if self.field is not None and self.field not in structured:
            raise ValueError(f"there is no {self.field!r} to make the text from")
        value = structured if self.field is None else structured[self.field]
        if self.style is None:
            if not isinstance(value, str):
                raise ValueError(f"{self.field!r} is no text")
            return value
        indent, separators = self.style
        return json.dumps(value, indent=indent, separators=separators, ensure_ascii=self.is_ascii)

    def fits(self, result: StepResult) -> bool:
        """True if this wording makes the recorded text from the recorded structured content."""
        try:
            return result.structured is not None and self.text(result.structured) == result.observation
        except ValueError:
            return False


def wording_of(results: Iterable[StepResult]) -> Wording | None:
    """The wording that all answers of a tool share; None if they share none or none is structured."""
    structured = [result for result in results if result.structured is not None and not result.is_error]
    if not structured or any("content" in result.info for result in structured):
        return None
    shared = (way for way in wordings(structured[0]) if all(way.fits(result) for result in structured))
    return next(shared, None)


def wordings(result: StepResult) -> Iterator[Wording]:
    """Every wording that fits one answer, the plainest first."""
    assert result.structured is not None
    for field in (None, *result.structured):
        for style in (None, *JSON_STYLES) if field is not None else JSON_STYLES:
            for is_ascii in (False, True):
                way = Wording(field, style, is_ascii)
                if way.fits(result):
                    yield way
