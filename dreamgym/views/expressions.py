"""Expressions: how a value or a text in an answer is made of the values that a call can refer to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, islice, product
from typing import TypeGuard

from pydantic import JsonValue

from dreamgym.state import same

ValueName = tuple[str, ...]
"""A value's name: where it comes from, and its path there, such as `("call", "title")`."""
Bindings = Mapping[ValueName, JsonValue]
"""The values that a call can refer to."""

WORLDS = frozenset({"sql", "grid"})
"""Sources of values from a copy of the server's world: tables, or sheets of cells."""
LISTS = frozenset({"seen"}) | WORLDS
"""Sources of values that may be empty lists."""
COUNTING = frozenset({"list", "count", "next"})
"""Sources of values that are counted. They are used only if no other value explains an answer."""
VARIANTS = 64
"""Most ways to read one text that are kept."""
MOST_NUMBERS = 32
"""Most values of a call that are searched for the larger of two numbers."""
COUNTS = ("count", "length", "total", "size", "number", "len")
"""Last words of the names of fields that count something."""


class NoPatternValue(ValueError):
    """A pattern has no value for a call."""


@dataclass(frozen=True)
class FixedValue:
    """A value that does not depend on the call."""

    value: str
    """The value's `repr`, so that values of different types are different."""
    of: JsonValue = field(compare=False, hash=False)

    def evaluate(self, bindings: Bindings) -> JsonValue:
        return self.of


@dataclass(frozen=True)
class Slot:
    """The value that is bound to a name."""

    name: ValueName

    def evaluate(self, bindings: Bindings) -> JsonValue:
        if self.name not in bindings:
            raise NoPatternValue(f"nothing is bound to {self.name}")
        return bindings[self.name]


@dataclass(frozen=True)
class Offset:
    """The number that is bound to a name, plus a constant."""

    name: ValueName
    plus: int

    def evaluate(self, bindings: Bindings) -> JsonValue:
        value = bindings.get(self.name)
        if not is_int(value):
            raise NoPatternValue(f"no number is bound to {self.name}")
        return value + self.plus


@dataclass(frozen=True)
class Largest:
    """The larger one of two numbers of a call, for a total that grows with what is counted."""

    one: ValueName
    two: ValueName

    def evaluate(self, bindings: Bindings) -> JsonValue:
        one, two = bindings.get(self.one), bindings.get(self.two)
        if not is_int(one) or not is_int(two):
            raise NoPatternValue(f"no numbers are bound to {self.one} and {self.two}")
        return max(one, two)


@dataclass(frozen=True)
class Words:
    """A text in which some words are values that are bound to names."""

    parts: tuple[str | ValueName | Offset, ...]

    @property
    def count(self) -> int:
        """How many of its words are values."""
        return sum(not isinstance(part, str) for part in self.parts)

    @property
    def sources(self) -> frozenset[str]:
        """The sources of its values."""
        return frozenset(
            (part.name if isinstance(part, Offset) else part)[0]
            for part in self.parts
            if part and not isinstance(part, str)
        )

    def evaluate(self, bindings: Bindings) -> JsonValue:
        return "".join(part if isinstance(part, str) else self._word(part, bindings) for part in self.parts)

    @staticmethod
    def _word(part: ValueName | Offset, bindings: Bindings) -> str:
        word = as_word((part if isinstance(part, Offset) else Slot(part)).evaluate(bindings))
        if word is None:
            raise NoPatternValue(f"the value of {part} is no word")
        return word


Expression = FixedValue | Slot | Offset | Largest | Words


def leaves_of(root: str, value: JsonValue, path: ValueName = ()) -> Iterator[tuple[ValueName, JsonValue]]:
    """The bindings of a value: itself and every part, each with the path that leads to it."""
    if path:
        yield (root, *path), value
    if isinstance(value, dict):
        for name, part in value.items():
            yield from leaves_of(root, part, (*path, name))
    elif isinstance(value, list):
        for position, part in enumerate(value[:32]):
            yield from leaves_of(root, part, (*path, str(position)))


def is_int(value: object) -> TypeGuard[int]:
    """True if a value is a whole number; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def as_word(value: JsonValue) -> str | None:
    """A text or number as it stands in a text; None for other values."""
    if isinstance(value, bool) or value is None or isinstance(value, dict | list):
        return None
    return value if isinstance(value, str) else repr(value)


def is_own(option: Expression, field: str) -> bool:
    """True if a field is named after the argument or the part of an item that it shows, or if it counts something."""
    counts = field.lower().endswith(COUNTS)
    if isinstance(option, Slot) and option.name[0] == "item":
        return bool(field) and field.lower().endswith(option.name[-1].lower())
    if isinstance(option, Slot) and option.name[0] == "found":
        return counts and option.name[-1] == "count"
    if isinstance(option, Slot) and option.name[0] == "count":
        return option.name[-1] == field or (counts and len(option.name) == 2)
    if isinstance(option, Slot):
        return bool(field) and option.name[0] != "known" and option.name[1:] == (field,)
    return counts and isinstance(option, Offset) and option.name == ("known", "calls")


def expressions_of(value: JsonValue, bindings: Bindings) -> Iterator[Expression]:
    """Every expression that gives a value, the best first."""
    is_empty = value in ("", None, [], {})
    yield from (
        Slot(name) for name, bound in bindings.items() if same(bound, value) and (not is_empty or name[0] in LISTS)
    )
    if is_int(value):
        yield from (
            Offset(name, value - bound)
            for name, bound in bindings.items()
            if is_int(bound) and abs(value - bound) <= 1 and name[0] == "known"
        )
        yield from _largest(value, bindings)
    if isinstance(value, str) and value:
        yield from _texts(value, bindings)
    yield FixedValue(repr(value), value)


def _largest(value: int, bindings: Bindings) -> Iterator[Largest]:
    numbers = [
        (name, bound) for name, bound in islice(bindings.items(), MOST_NUMBERS) if name[0] == "call" and is_int(bound)
    ]
    yield from (Largest(one, two) for (one, a), (two, b) in combinations(numbers, 2) if max(a, b) == value)


def _as_word(word: str) -> str:
    """A regular expression for a word that stands alone, or as one number of a size such as 2x3."""
    before, after = r"(?<!\w)(?<!\d\.)", r"(?!\w)(?!\.\d)"
    if word.isdigit():
        before, after = rf"(?:{before}|(?<=\dx))", rf"(?:{after}|(?=x\d))"
    return before + re.escape(word) + after


def _texts(text: str, bindings: Bindings) -> Iterator[Words]:
    """Every way to read a text as `Words`, those with the most bound words first."""
    names: dict[str, list[ValueName | Offset]] = {}
    for name, bound in bindings.items():
        word = as_word(bound)
        if word is not None and (len(word) > 1 or word.isdigit()) and len(word) < len(text) and word in text:
            names.setdefault(word, []).append(name)
        if name[0] == "known" and is_int(bound):
            names.setdefault(str(bound + 1), []).append(Offset(name, 1))
    if not names:
        return
    words = sorted(names, key=len, reverse=True)
    pattern = re.compile("|".join(_as_word(word) for word in words[:16]))
    pieces: list[str] = []
    found: list[str] = []
    last = 0
    for match in pattern.finditer(text):
        pieces.append(text[last : match.start()])
        found.append(match[0])
        last = match.end()
    pieces.append(text[last:])
    if not found:
        return
    kinds = list(dict.fromkeys(found))[:6]
    choices = [[*names[word][:4], word] for word in kinds]
    variants = islice(product(*choices), VARIANTS)
    for variant in sorted(variants, key=lambda chosen: sum(isinstance(one, str) for one in chosen)):
        if all(isinstance(one, str) for one in variant):
            continue
        as_chosen = dict(zip(kinds, variant, strict=True))
        parts: list[str | ValueName | Offset] = []
        for piece, word in zip(pieces, [*found, ""], strict=True):
            for part in (piece, as_chosen.get(word, word)):
                if isinstance(part, str) and parts and isinstance(parts[-1], str):
                    parts[-1] += part
                elif part:
                    parts.append(part)
        yield Words(tuple(parts))
