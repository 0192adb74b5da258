"""How a value follows from what a call can speak of: expressions, and their values in a situation.

An expression that has no value in a situation raises NoValue; nothing stands in for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Protocol

from pydantic import JsonValue

from dreamgym.state.wording import JSON_STYLES
from dreamgym.synthesis.situation import Key, Situation, is_number
from dreamgym.types import JsonObject

Style = tuple[int | str | None, tuple[str, str]]


class NoValue(Exception):
    """The expression says nothing of this situation."""


class Expression(Protocol):
    """Gives a value in a situation."""

    def value(self, situation: Situation) -> JsonValue:
        """Raises NoValue."""


@dataclass(frozen=True)
class Constant:
    """The same everywhere."""

    text: str
    """As JSON."""

    def value(self, situation: Situation) -> JsonValue:
        """Itself."""
        value: JsonValue = json.loads(self.text)
        return value


@dataclass(frozen=True)
class Term:
    """What can be named."""

    key: Key

    def value(self, situation: Situation) -> JsonValue:
        """What the key leads to."""
        if self.key not in situation.values:
            raise NoValue(f"there is no {' '.join(self.key)}")
        return situation.values[self.key]


@dataclass(frozen=True)
class Given:
    """An argument where it is given and not empty, else something else."""

    key: Key
    otherwise: Expression

    def value(self, situation: Situation) -> JsonValue:
        """One or the other."""
        return self.otherwise.value(situation) if is_empty(situation, self.key) else situation.values[self.key]


@dataclass(frozen=True)
class Calculation:
    """Of two numbers."""

    operator: str
    """`+`, `-`, `*`, or `//`: the whole number below the quotient."""
    left: Expression
    right: Expression

    def value(self, situation: Situation) -> JsonValue:
        """Decimal, so that 0.1 + 0.2 is 0.3; whole where both are whole."""
        left, right = self.left.value(situation), self.right.value(situation)
        if not is_number(left) or not is_number(right):
            raise NoValue("one of two is no number")
        result = calculated(self.operator, decimal(left), decimal(right))
        whole = (isinstance(left, int) and isinstance(right, int)) or self.operator == "//"
        return int(result) if whole and result == int(result) else float(result)


@dataclass(frozen=True)
class Entities:
    """Those of a collection that pass all filters, in an order; at most as many as a number argument says."""

    collection: str
    filters: tuple[Filter, ...] = ()
    order: str = ""
    """A field; empty: the ids, numbers in them as numbers."""
    descending: bool = False
    limit: Key = ()

    def situations(self, situation: Situation) -> list[Situation]:
        """One for each entity."""
        return [situation.of_entity(self.collection, identity) for identity in self.ids(situation)]

    def ids(self, situation: Situation) -> list[str]:
        """Which they are, in their order."""
        entities = situation.world.collections[self.collection]
        found = sorted(self.unordered(situation), key=natural)
        if self.order:
            found.sort(key=lambda one: _sortable(entities[one].get(self.order)), reverse=self.descending)
        elif self.descending:
            found.reverse()
        limit = situation.values.get(self.limit)
        return found[:limit] if isinstance(limit, int) and limit >= 0 else found

    def unordered(self, situation: Situation) -> frozenset[str]:
        """All that pass."""
        if not self.filters:
            return frozenset(situation.world.collections[self.collection])
        passing = [part.ids(self.collection, situation) for part in self.filters]
        return passing[0].intersection(*passing[1:])


@dataclass(frozen=True)
class Filter:
    """A condition on a field of an entity. Against an argument that is not given everything passes."""

    field: str
    kind: str
    """`is`, `is not`, `contains`, `at least`, `at most`."""
    other: Key | str
    """A key, or a constant as JSON."""

    def ids(self, collection: str, situation: Situation) -> frozenset[str]:
        """Which entities of a collection pass."""
        place = collection, self
        if place not in situation.memory:
            entities = situation.world.collections[collection]
            situation.memory[place] = frozenset(i for i, one in entities.items() if self.passes(one, situation))
        return situation.memory[place]

    def passes(self, entity: JsonObject, situation: Situation) -> bool:
        """Whether the entity is one of those."""
        value = entity.get(self.field)
        if isinstance(self.other, str):
            other = _loaded(self.other)
        elif self.other[0] == "arg" and len(self.other) == 2 and is_empty(situation, self.other):
            return True
        elif self.other not in situation.values:
            return False
        else:
            other = situation.values[self.other]
        if self.kind in {"is", "is not"}:
            return same(value, other) == (self.kind == "is")
        if self.kind == "contains":
            return isinstance(value, str) and isinstance(other, str) and other.lower() in value.lower()
        if (is_number(value) and is_number(other)) or (isinstance(value, str) and isinstance(other, str)):
            return value >= other if self.kind == "at least" else value <= other  # type: ignore[operator]
        return False


@dataclass(frozen=True)
class Items:
    """Those of a list that can be named, all but those with a value."""

    key: Key
    but: tuple[Key, Key] | None = None
    """Left out where the first, in the item, is the second."""

    def situations(self, situation: Situation) -> list[Situation]:
        """One for each item."""
        if not isinstance(situation.values.get(self.key), list):
            raise NoValue(f"there is no list {' '.join(self.key)}")
        items = situation.items(self.key)
        if self.but is None:
            return items
        mine, other = self.but
        return [one for one in items if not same(one.values.get(mine), situation.values.get(other))]


Source = Items | Entities


@dataclass(frozen=True)
class Sum:
    """Over the items of a source; without anything to add, their number."""

    over: Source
    each: Expression | None = None

    def value(self, situation: Situation) -> JsonValue:
        """Whole where all parts are."""
        if self.each is None:
            over = self.over
            return len(over.unordered(situation) if isinstance(over, Entities) else over.situations(situation))
        if isinstance(self.over, Entities) and isinstance(self.each, Term) and len(self.each.key) == 2:
            entities = situation.world.collections[self.over.collection]
            parts = [entities[one].get(self.each.key[1]) for one in self.over.unordered(situation)]
        else:
            parts = [self.each.value(item) for item in self.over.situations(situation)]
        if not all(is_number(part) for part in parts):
            raise NoValue("what is added is no number")
        total = sum((decimal(part) for part in parts), Decimal(0))
        return int(total) if all(isinstance(part, int) for part in parts) else float(total)


@dataclass(frozen=True)
class Each:
    """A list with one value for each item of a source."""

    over: Source
    expression: Expression

    def value(self, situation: Situation) -> JsonValue:
        """In the order of the source."""
        return [self.expression.value(item) for item in self.over.situations(situation)]


@dataclass(frozen=True)
class Record:
    """An object."""

    parts: tuple[tuple[str, Expression], ...]

    def value(self, situation: Situation) -> JsonValue:
        """Each part by its name."""
        return {name: part.value(situation) for name, part in self.parts}


@dataclass(frozen=True)
class Words:
    """A text with values in it."""

    parts: tuple[str | Expression, ...]
    forms: tuple[str, ...]
    """How each part that is no text is written: see `written`."""

    def value(self, situation: Situation) -> JsonValue:
        """The text."""
        forms = iter(self.forms)
        return "".join(
            part if isinstance(part, str) else written(part.value(situation), next(forms)) for part in self.parts
        )


@dataclass(frozen=True)
class AsJson:
    """A text that is JSON."""

    of: Expression
    style: Style
    is_ascii: bool

    def value(self, situation: Situation) -> JsonValue:
        """The text."""
        return in_style(self.of.value(situation), self.style, is_ascii=self.is_ascii)


FORMS = ("", ".2f", ",", ",.2f")


def written(value: JsonValue, form: str) -> str:
    """A value inside of a text."""
    if is_number(value):
        return format(value, form) if form else json.dumps(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def in_style(value: JsonValue, style: Style, *, is_ascii: bool) -> str:
    """JSON as one server writes it."""
    return json.dumps(value, indent=style[0], separators=style[1], ensure_ascii=is_ascii)


def style_of(texts: Sequence[str]) -> tuple[Style, bool] | None:
    """How these texts are written as JSON; None where they are not, or not all in one way."""
    try:
        values = [json.loads(text) for text in texts]
    except ValueError:
        return None
    if not all(isinstance(value, dict | list) for value in values):
        return None
    for style in JSON_STYLES:
        for is_ascii in (False, True):
            if all(in_style(v, style, is_ascii=is_ascii) == text for v, text in zip(values, texts, strict=True)):
                return style, is_ascii
    return None


def calculated(operator: str, left: Decimal, right: Decimal) -> Decimal:
    """Raises NoValue for a division by nothing."""
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    if not right:
        raise NoValue("a division by 0")
    return Decimal((left / right).__floor__())


def decimal(value: object) -> Decimal:
    """A number, exactly as it is written."""
    return Decimal(str(value))


def same(one: JsonValue, other: JsonValue) -> bool:
    """Equal as JSON: True is not 1, and 1.0 is not 1."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict | list):
        return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    return one == other


def is_empty(situation: Situation, key: Key) -> bool:
    """Not given, or given as nothing."""
    value = situation.values.get(key)
    return value is None or value in ("", [])


def natural(identity: str) -> tuple[tuple[bool, int, str], ...]:
    """Sort key in which O-10 comes after O-9."""
    parts = re.split(r"(\d+)", identity)
    return tuple((part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts)


def _sortable(value: JsonValue) -> tuple[bool, bool, Decimal, str]:
    number = decimal(value) if is_number(value) else Decimal(0)
    return value is None, not is_number(value), number, value if isinstance(value, str) else ""


@lru_cache(maxsize=4096)
def _loaded(text: str) -> JsonValue:
    value: JsonValue = json.loads(text)
    return value
