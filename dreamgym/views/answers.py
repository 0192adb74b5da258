"""An answer as a value that can be compared, changed and written again: JSON, a Python literal, or lines of text."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from pydantic import JsonValue

from dreamgym.state.wording import JSON_STYLES, Wording, wordings
from dreamgym.types import JsonObject, StepResult

MAX_LITERAL = 100_000
"""Longest text that is read as a Python literal, in characters."""
REFUSAL = re.compile(
    # "Retried failed job 3." and "No invalid rows" are no refusals, but "Found unknown arguments" is one
    r"(?!\W*(?:removed|deleted|dropped|purged|cleared|closed|cancell?ed|archived|ignored|skipped|resolved|fixed|repaired"
    r"|replaced|updated|marked|retried|restarted|resumed|requeued)\s+(?:the\s+)?(?:failed|invalid|unknown|error)\s+"
    r"(?!(?:arguments?|credentials?|parameters?)\b)\w)"
    r"(?!\W*(?:[\w.-]+\s+)?(?:\w+ed|\w+ing|\d+|no|of|all|the|found)\s+(?:failed|invalid|unknown)\s+"
    r"(?!this\b|(?:arguments|credentials|parameters)\b)\w{3,}s\b)"
    r"\W*(?:[\w.-]+\s+){0,2}(?:\w*error|invalid|failed|cannot|unknown|fatal|no such|not found)\b",
    re.IGNORECASE,
)
"""Matches the beginning of a text that refuses a call without setting the error flag."""
REASONS = frozenset({"message", "error", "detail", "reason"})
"""Fields that tell why a call was refused. Without one, a failed status may be that of an item."""

MARK, PLAIN = re.compile(r"[*>+] (?=\S)"), re.compile(r"  (?=\S)")
"""Match the beginning of a marked line, and of the other lines beside it."""


class Style(Protocol):
    """A way to write a value as a text."""

    def text(self, value: JsonValue) -> str:
        """The value as a text. Raises ValueError if the value is of another kind."""


@dataclass(frozen=True)
class JsonStyle:
    """JSON, in one of the ways in which servers write it."""

    indent: int | str | None
    separators: tuple[str, str]
    is_ascii: bool

    def text(self, value: JsonValue) -> str:
        return json.dumps(value, indent=self.indent, separators=self.separators, ensure_ascii=self.is_ascii)


@dataclass(frozen=True)
class LiteralStyle:
    """A Python literal, as written by servers that print a list."""

    def text(self, value: JsonValue) -> str:
        return repr(value)


@dataclass(frozen=True)
class LinesStyle:
    """A text; its value is the list of its lines."""

    def text(self, value: JsonValue) -> str:
        if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
            raise ValueError("expected lines")
        return "\n".join(map(str, value))


@dataclass(frozen=True)
class MarkedStyle:
    """Lines of which one is marked, like the current branch in a list. The value contains all lines and that one."""

    mark: str
    """The mark, as long as the indent of the other lines."""

    def text(self, value: JsonValue) -> str:
        items = value.get("items") if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(items, list) or items.count(value.get("marked")) != 1:
            raise ValueError("expected lines and the marked one")
        plain = " " * len(self.mark)
        return "\n".join(f"{self.mark if item == value['marked'] else plain}{item}" for item in items)


@dataclass(frozen=True)
class StructuredStyle:
    """The text follows from the structured content, which is the value."""

    wording: Wording

    def text(self, value: JsonValue) -> str:
        if not isinstance(value, dict):
            raise ValueError("expected an object")
        return self.wording.text(value)


@dataclass(frozen=True)
class BothStyle:
    """The text does not follow from the structured content; the value contains both."""

    def text(self, value: JsonValue) -> str:
        if not isinstance(value, dict):
            raise ValueError("expected an object")
        return str(value["text"])


@dataclass(frozen=True)
class View:
    """An answer as a value."""

    value: JsonValue
    style: Style
    is_error: bool = False
    blocks: str = ""
    """The content blocks as JSON, if they are more than the text. Such an answer is repeated, never changed."""

    def with_value(self, value: JsonValue) -> View:
        """An answer of this kind with another value."""
        return replace(self, value=value)

    @property
    def structured(self) -> JsonObject | None:
        """The structured content; None if there is none."""
        value = self.value if isinstance(self.value, dict) else {}
        if isinstance(self.style, BothStyle):
            value = value["structured"] if isinstance(value["structured"], dict) else {}
        return value if isinstance(self.style, StructuredStyle | BothStyle) else None

    @property
    def content(self) -> tuple[JsonObject, ...] | None:
        """The content blocks if they are more than the text; else None."""
        return tuple(json.loads(self.blocks)) if self.blocks else None

    @property
    def observation(self) -> str:
        """The text. Raises ValueError if the value does not fit the style."""
        return self.style.text(self.value)

    @property
    def said(self) -> JsonValue:
        """The value that patterns are learned from: the whole text of an answer of lines, else `value`."""
        return self.observation if isinstance(self.style, LinesStyle) else self.value

    def saying(self, said: JsonValue) -> View:
        """An answer of this kind with another value of `said`. Raises ValueError if that is of another kind."""
        if not isinstance(self.style, LinesStyle):
            return self.with_value(said)
        if not isinstance(said, str):
            raise ValueError("expected a text")
        return self.with_value(list(said.split("\n")))

    @cached_property
    def is_refusal(self) -> bool:
        """True if the error flag, the first words of the text or an error field show that the call was refused."""
        return self.is_error or _begins_as_refusal(self.value)

    def key(self) -> str:
        """A key that is equal for equal answers."""
        return json.dumps([self.is_error, type(self.style).__name__, self.value, self.blocks], sort_keys=True)


def view_of(result: StepResult) -> View:
    """The answer of a step as a value."""
    blocks = json.dumps(result.content) if "content" in result.info else ""
    text = result.observation
    if result.structured is not None:
        wording = next(wordings(result), None)
        if wording is not None:
            return View(result.structured, StructuredStyle(wording), result.is_error, blocks)
        return View({"text": text, "structured": result.structured}, BothStyle(), result.is_error, blocks)
    if text.lstrip()[:1] in ("{", "["):
        for style, value in _readings(text):
            if style.text(value) == text:
                return View(value, style, result.is_error, blocks)
    return _marked(text, result.is_error, blocks) or View(list(text.split("\n")), LinesStyle(), result.is_error, blocks)


def _marked(text: str, is_error: bool, blocks: str) -> View | None:
    """The view of a text in which one line is marked; None for any other text."""
    lines = text.split("\n")
    marked = [line for line in lines if MARK.match(line)]
    if len(lines) < 2 or len(marked) != 1 or not all(MARK.match(line) or PLAIN.match(line) for line in lines):
        return None
    view = View(
        {"items": [line[2:] for line in lines], "marked": marked[0][2:]}, MarkedStyle(marked[0][:2]), is_error, blocks
    )
    try:
        return view if view.observation == text else None
    except ValueError:
        return None


def _readings(text: str) -> list[tuple[Style, JsonValue]]:
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        pass
    else:
        return [(JsonStyle(*way, is_ascii), value) for way in JSON_STYLES for is_ascii in (False, True)]
    if len(text) > MAX_LITERAL:
        return []
    try:
        literal = ast.literal_eval(text)
        json.dumps(literal, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return []
    return [(LiteralStyle(), literal)]


def _begins_as_refusal(value: JsonValue) -> bool:
    if isinstance(value, list) and value and isinstance(value[0], str):
        return REFUSAL.match(value[0][:200]) is not None
    if isinstance(value, dict):
        error, is_told = value.get("error"), len(value) == 1 or bool(value.keys() & REASONS)
        is_failed = is_told and str(value.get("status", "")).lower() in {"error", "failed"}
        return is_failed or (isinstance(error, str) and bool(error.strip()))
    return False
