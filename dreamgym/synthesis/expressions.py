"""Expressions: how a value follows from the bindings of a call.

An expression that has no value under some bindings raises NoValue; there is no default.
`str(expression)` is the form in which programs are printed.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from decimal import Context, Decimal
from functools import lru_cache, reduce
from typing import Any, Protocol, TypeGuard

from pydantic import JsonValue

from dreamgym.state import is_number, natural, same
from dreamgym.state.wording import JSON_STYLES
from dreamgym.synthesis.paths import Bindings, Path, is_argument
from dreamgym.types import JsonObject

_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": lambda left, right: left // right if isinstance(left, int) else (left / right).__floor__(),
}
_EXACT = Context(prec=10_000)
"""Sums of numbers are not rounded in it, so that their order is without effect."""
LARGEST = 1e307
"""Calculations are not searched for numbers as large as this."""
Style = tuple[int | str | None, tuple[str, str]]
"""Indent and separators of JSON."""


class NoValue(Exception):
    """The expression has no value under these bindings."""


class Expression(Protocol):
    """Has a value under the bindings of a call."""

    def value(self, bindings: Bindings) -> JsonValue:
        """The value. Raises NoValue."""


def gives(expression: Expression, calls: Sequence[Bindings], targets: Sequence[JsonValue]) -> bool:
    """True if the expression has its target as its value in every call; `targets` has one for each call."""
    try:
        return all(same(expression.value(call), target) for call, target in zip(calls, targets, strict=True))
    except NoValue:
        return False


@dataclass(frozen=True)
class Constant:
    """An expression with one fixed value."""

    text: str
    """The value as JSON."""

    def value(self, bindings: Bindings) -> JsonValue:
        value = loaded(self.text)
        return json.loads(self.text) if isinstance(value, dict | list) else value

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Variable:
    """The value of a path."""

    path: Path

    def value(self, bindings: Bindings) -> JsonValue:
        if self.path not in bindings.values:
            raise NoValue(f"nothing is bound to {shown(self.path)}")
        return bindings.values[self.path]

    def __str__(self) -> str:
        return shown(self.path)


@dataclass(frozen=True)
class Fallback:
    """An argument if it is given and not empty, else another value."""

    path: Path
    otherwise: Expression

    def value(self, bindings: Bindings) -> JsonValue:
        return self.otherwise.value(bindings) if is_empty(bindings, self.path) else bindings.values[self.path]

    def __str__(self) -> str:
        return f"({shown(self.path)} or {self.otherwise})"


@dataclass(frozen=True)
class Calculation:
    """An operation on two numbers, exact in decimal: 0.1 + 0.2 is 0.3."""

    operator: str
    """`+`, `-`, `*`, or `//`: the quotient rounded down."""
    left: Expression
    right: Expression

    def value(self, bindings: Bindings) -> JsonValue:
        """The result; an integer if both numbers are, or for `//`."""
        left, right = self.left.value(bindings), self.right.value(bindings)
        if not is_number(left) or not is_number(right):
            raise NoValue(f"{self} needs two numbers")
        if self.operator == "//" and not right:
            raise NoValue(f"{self} divides by 0")
        operation = _OPERATIONS[self.operator]
        if isinstance(left, int) and isinstance(right, int):  # Decimal would round them to 28 digits
            return int(operation(left, right))
        try:
            result = operation(decimal(left), decimal(right))
        except ArithmeticError as error:
            raise NoValue(f"{self} has no value") from error
        return result if isinstance(result, int) else _finite(result, self)

    def __str__(self) -> str:
        return f"({self.left} {self.operator} {self.right})"


@dataclass(frozen=True)
class Entities:
    """The entities of a collection that pass all filters, in an order."""

    collection: str
    filters: tuple[Filter, ...] = ()
    order: str = ""
    """The field to sort by; empty to sort by id, with digits as numbers."""
    descending: bool = False
    limit: Path = ()
    """Path of the argument with the largest number of entities; empty if there is no limit."""

    def items(self, bindings: Bindings) -> list[Bindings]:
        return [bindings.of_entity(self.collection, identity) for identity in self.ids(bindings)]

    def ids(self, bindings: Bindings) -> list[str]:
        """Ids of the entities, in their order. Raises NoValue if the limit is no number of entities."""
        entities = bindings.state.collections[self.collection]
        found = sorted(self.unordered(bindings), key=natural)
        if self.order:
            found.sort(key=lambda identity: _sort_key(entities[identity].get(self.order)), reverse=self.descending)
        elif self.descending:
            found.reverse()
        limit = bindings.values.get(self.limit)
        if limit is None:
            return found
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
            raise NoValue(f"{shown(self.limit)} is no number of entities")
        return found[:limit]

    def unordered(self, bindings: Bindings) -> frozenset[str]:
        """Ids of all entities that pass, without the limit."""
        if not self.filters:
            return frozenset(bindings.state.collections[self.collection])
        passing = sorted((condition.ids(self.collection, bindings) for condition in self.filters), key=len)
        return passing[0].intersection(*passing[1:])

    def __str__(self) -> str:
        filters = f" where {' and '.join(map(str, self.filters))}" if self.filters else ""
        order = f" by {self.order or 'id'}{' descending' if self.descending else ''}"
        limit = f" up to {shown(self.limit)}" if self.limit else ""
        return f"{self.collection}{filters}{order if self.order or self.descending else ''}{limit}"


KINDS = ("is", "is not", "contains", "has", "shares", "at least", "at most", "above", "below")
"""Comparisons of a filter. A text `contains` another; a list `has` an item, or `shares` one with another list."""
_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "at least": operator.ge,
    "at most": operator.le,
    "above": operator.gt,
    "below": operator.lt,
}


@dataclass(frozen=True)
class Filter:
    """A condition on a field of an entity. Every entity passes if the argument to compare with is not given."""

    field: str
    kind: str
    """One of KINDS."""
    other: Path | str
    """The other side of the comparison: a path, or a constant as JSON."""

    def ids(self, collection: str, bindings: Bindings) -> frozenset[str]:
        """Ids of the entities of a collection that pass."""
        state = bindings.state
        if self.kind == "is" and isinstance(self.other, tuple) and not self._is_open(bindings):
            values = bindings.values
            return state.having(collection, self.field, values[self.other]) if self.other in values else frozenset()
        known = state.passing if isinstance(self.other, str) else bindings.passing
        place = collection, self
        if place not in known:
            entities = state.collections[collection]
            known[place] = frozenset(i for i, entity in entities.items() if self.passes(entity, bindings))
        return known[place]

    def _is_open(self, bindings: Bindings) -> bool:
        """True if the filter compares with an argument that is not given, so that every entity passes."""
        other = self.other
        return isinstance(other, tuple) and len(other) == 2 and other[0] == "arg" and is_empty(bindings, other)

    def passes(self, entity: JsonObject, bindings: Bindings) -> bool:
        value = entity.get(self.field)
        if isinstance(self.other, str):
            other = loaded(self.other)
        elif self._is_open(bindings):
            return True
        elif self.other not in bindings.values:
            return False
        else:
            other = bindings.values[self.other]
        if self.kind in {"is", "is not"}:
            return same(value, other) == (self.kind == "is")
        if self.kind == "contains":
            return isinstance(value, str) and isinstance(other, str) and other.lower() in value.lower()
        if self.kind == "has":
            return isinstance(value, list) and any(same(part, other) for part in value)
        if self.kind == "shares":
            return isinstance(value, list) and isinstance(other, list) and not _texts(value).isdisjoint(_texts(other))
        if (is_number(value) and is_number(other)) or (isinstance(value, str) and isinstance(other, str)):
            return _COMPARED[self.kind](value, other)
        return False

    def __str__(self) -> str:
        return f"{self.field} {self.kind} {self.other if isinstance(self.other, str) else shown(self.other)}"


@dataclass(frozen=True)
class Items:
    """The items of a list, except those that equal a value."""

    path: Path
    excluded: tuple[Path, Path] | None = None
    """An item is left out if its value of the first path equals the call's value of the second path."""

    def items(self, bindings: Bindings) -> list[Bindings]:
        if not isinstance(bindings.values.get(self.path), list):
            raise NoValue(f"no list is bound to {shown(self.path)}")
        items = bindings.items(self.path)
        if self.excluded is None:
            return items
        own, other = self.excluded
        return [item for item in items if not same(item.values.get(own), bindings.values.get(other))]

    def __str__(self) -> str:
        if self.excluded is None:
            return shown(self.path)
        return f"{shown(self.path)} where {shown(self.excluded[0])} is not {shown(self.excluded[1])}"


Source = Items | Entities
"""The source of the items that a loop goes over."""


@dataclass(frozen=True)
class Sum:
    """A sum over the items of a source; without an expression, the number of items."""

    over: Source
    each: Expression | None = None

    def value(self, bindings: Bindings) -> JsonValue:
        """The sum; an integer if all parts are."""
        if self.each is None:
            over = self.over
            return len(over.unordered(bindings) if isinstance(over, Entities) else over.items(bindings))
        if isinstance(self.over, Entities) and isinstance(self.each, Variable) and len(self.each.path) == 2:
            # A field of the entity itself. The search evaluates thousands of these: bindings for each are too slow.
            entities = bindings.state.collections[self.over.collection]
            parts = [entities[one].get(self.each.path[1]) for one in self.over.unordered(bindings)]
        else:
            parts = [self.each.value(item) for item in self.over.items(bindings)]
        if not all(is_number(part) for part in parts):
            raise NoValue(f"{self} adds something that is not a number")
        if all(isinstance(part, int) for part in parts):
            return sum(part for part in parts if isinstance(part, int))
        return _finite(reduce(_EXACT.add, map(decimal, parts)), self)

    def __str__(self) -> str:
        return f"count({self.over})" if self.each is None else f"sum({self.each} for item in {self.over})"


@dataclass(frozen=True)
class ForEach:
    """A list with one value for each item of a source, in its order."""

    over: Source
    expression: Expression

    def value(self, bindings: Bindings) -> JsonValue:
        return [self.expression.value(item) for item in self.over.items(bindings)]

    def __str__(self) -> str:
        return f"[{self.expression} for item in {self.over}]"


@dataclass(frozen=True)
class Joined:
    """The texts of a list, with a separator between them."""

    of: Expression
    separator: str

    def value(self, bindings: Bindings) -> JsonValue:
        parts = self.of.value(bindings)
        if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
            raise NoValue(f"{self} needs a list of texts")
        return self.separator.join(map(str, parts))

    def __str__(self) -> str:
        return f"join({self.of})"


@dataclass(frozen=True)
class Combined:
    """One list of the items of several lists; an argument that is not given counts as an empty list."""

    lists: tuple[Path, ...]
    without: Path = ()
    """Path of a list whose items are left out; empty if none are."""
    is_distinct: bool = False
    """Only the first of equal items is kept."""
    is_sorted: bool = False
    order: str = ""
    """The field of the items to sort by; empty to sort by the items themselves."""

    def value(self, bindings: Bindings) -> JsonValue:
        items = [item for path in self.lists for item in _list_at(path, bindings)]
        left_out = _texts(_list_at(self.without, bindings)) if self.without else frozenset()
        keyed = [(json.dumps(item, sort_keys=True), item) for item in items]
        if self.is_distinct:
            keyed = list({key: (key, item) for key, item in reversed(keyed)}.values())[::-1]
        found = [item for key, item in keyed if key not in left_out]
        if self.is_sorted:
            found.sort(key=lambda item: _sort_key(item.get(self.order) if isinstance(item, dict) else item))
        return found

    def __str__(self) -> str:
        text = (" | " if self.is_distinct else " + ").join(map(shown, self.lists))
        text += f" without {shown(self.without)}" if self.without else ""
        return f"sorted({text}{f' by {self.order}' if self.order else ''})" if self.is_sorted else f"({text})"


@dataclass(frozen=True)
class First:
    """The id of the first of some entities in their order."""

    of: Entities
    or_any: bool = False
    """True to take the first of all entities if none passes the filters."""

    def value(self, bindings: Bindings) -> JsonValue:
        found = self.of.ids(bindings)
        if not found and self.or_any:
            found = replace(self.of, filters=()).ids(bindings)
        if not found:
            raise NoValue(f"there are no {self.of}")
        return found[0]

    def __str__(self) -> str:
        return f"first({self.of}{', or of all' if self.or_any else ''})"


@dataclass(frozen=True)
class Larger:
    """The one of two values that has the larger number, or the smaller number; the first if the numbers are equal."""

    paths: tuple[Path, Path]
    number: Path = ()
    """Steps from each path to its number; empty if the values themselves are the numbers."""
    is_smaller: bool = False

    def value(self, bindings: Bindings) -> JsonValue:
        one, other = (bindings.values.get((*path, *self.number)) for path in self.paths)
        if not is_number(one) or not is_number(other):
            raise NoValue(f"{self} compares two numbers")
        is_other = decimal(other) < decimal(one) if self.is_smaller else decimal(other) > decimal(one)
        return bindings.values[self.paths[is_other]]

    def __str__(self) -> str:
        by = f" by {shown(('item', *self.number))}" if self.number else ""
        return f"{'smaller' if self.is_smaller else 'larger'} of {' and '.join(map(shown, self.paths))}{by}"


@dataclass(frozen=True)
class Table:
    """A table with a value for each recorded combination of values of some paths; others have no value."""

    of: tuple[Path, ...]
    rows: tuple[tuple[str, str], ...]
    """Values of the paths, as a JSON list, and the value of the expression, as JSON."""

    def value(self, bindings: Bindings) -> JsonValue:
        key = json.dumps([Variable(path).value(bindings) for path in self.of])
        for known, text in self.rows:
            if known == key:
                value: JsonValue = json.loads(text)
                return value
        raise NoValue(f"no recorded call shows what follows from {key}")

    def __str__(self) -> str:
        rows = ", ".join(f"{key[1:-1]}: {value}" for key, value in self.rows)
        return f"{{{rows}}}[{', '.join(map(shown, self.of))}]"


@dataclass(frozen=True)
class ObjectOf:
    """A JSON object."""

    parts: tuple[tuple[str, Expression], ...]

    def value(self, bindings: Bindings) -> JsonValue:
        return {name: part.value(bindings) for name, part in self.parts}

    def __str__(self) -> str:
        return "{" + ", ".join(f"{json.dumps(name)}: {part}" for name, part in self.parts) + "}"


@dataclass(frozen=True)
class Template:
    """A text with values in it."""

    parts: tuple[str | Expression, ...]
    formats: tuple[str, ...]
    """The format of each value, one of FORMATS."""

    def value(self, bindings: Bindings) -> JsonValue:
        formats = iter(self.formats)
        return "".join(
            part if isinstance(part, str) else written(part.value(bindings), next(formats)) for part in self.parts
        )

    def __str__(self) -> str:
        text = "".join(part if isinstance(part, str) else f"{{{part}}}" for part in self.parts)
        return json.dumps(text, ensure_ascii=False)


@dataclass(frozen=True)
class JsonText:
    """A text that is JSON."""

    of: Expression
    style: Style
    is_ascii: bool

    def value(self, bindings: Bindings) -> JsonValue:
        return in_style(self.of.value(bindings), self.style, is_ascii=self.is_ascii)

    def __str__(self) -> str:
        return f"json {self.of}"


FORMATS = ("", ".2f", ",", ",.2f")
"""Format specifications of numbers in a text; the empty one means JSON."""


def parts_of(part: object) -> Iterator[object]:
    """A part of a program and everything in it: expressions, tuples, texts."""
    yield part
    if is_dataclass(part) and not isinstance(part, type):
        for one in fields(part):
            yield from parts_of(getattr(part, one.name))
    elif isinstance(part, tuple):
        for one in part:
            yield from parts_of(one)


def shown(path: Path) -> str:
    """A path as people read it: `order_id`, `orders[order_id].status`, `item.count`."""
    root, *steps = path
    if root == "before":
        return f"before({shown(tuple(steps))})"
    if root == "new":
        text, steps = f"new {steps[0]}", steps[1:]
    elif root == "first":
        text, steps = f"first({steps[0]})", steps[1:]
    elif root == "changed":
        text, steps = f"changed({steps[0]})", steps[1:]
    elif root == "chosen":
        text, steps = f"chosen {steps[0]}", steps[1:]
    elif root == "item":
        text = "item"
    else:
        text, steps = (f"state.{steps[0]}" if root == "value" else steps[0]), steps[1:]
    for step in steps:
        collection, _, field = step[1:].partition("@")
        by_field = f"{field} = " if field else ""
        text = f"{collection}[{by_field}{text}]" if step.startswith(">") else f"{text}.{step}"
    return text


def written(value: JsonValue, form: str) -> str:
    """A value as it is written in a text. Raises NoValue if it is a number that has too many digits."""
    if is_number(value):
        try:
            return format(value, form) if form else json.dumps(value)
        except (OverflowError, ValueError) as error:
            raise NoValue("the number has too many digits") from error
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def in_style(value: JsonValue, style: Style, *, is_ascii: bool) -> str:
    """JSON in the style of one server."""
    return json.dumps(value, indent=style[0], separators=style[1], ensure_ascii=is_ascii)


def style_of(texts: Sequence[str]) -> tuple[Style, bool] | None:
    """The common style of texts that are JSON objects or lists, and whether it is ASCII; None if they have none."""
    try:
        values = [json.loads(text) for text in texts]
    except (ValueError, RecursionError):
        return None
    if not all(isinstance(value, dict | list) for value in values):
        return None
    for style in JSON_STYLES:
        for is_ascii in (False, True):
            if all(in_style(v, style, is_ascii=is_ascii) == text for v, text in zip(values, texts, strict=True)):
                return style, is_ascii
    return None


def decimal(value: object) -> Decimal:
    """A number, exactly as it is written. Raises NoValue for NaN and Infinity."""
    number = Decimal(value) if isinstance(value, int) else Decimal(str(value))
    if not number.is_finite():
        raise NoValue(f"{number} is no number that JSON has")
    return number


def is_calculable(value: object) -> TypeGuard[int | float]:
    """True for a number that a calculation is searched for: not for NaN, and not for very large numbers."""
    return is_number(value) and abs(value) < LARGEST


def _finite(exact: Decimal, of: Expression) -> float:
    """The number as JSON has it. Raises NoValue if JSON has no number as large."""
    if not math.isfinite(number := float(exact)):
        raise NoValue(f"{of} is no number that JSON has")
    return number


def is_empty(bindings: Bindings, path: Path) -> bool:
    """True if a path is bound to nothing, null, an empty text or an empty list."""
    value = bindings.values.get(path)
    return value is None or value in ("", [])


@lru_cache(maxsize=4096)
def loaded(text: str) -> JsonValue:
    """The value of a constant, which the caller must not change."""
    value: JsonValue = json.loads(text)
    return value


def _list_at(path: Path, bindings: Bindings) -> list[JsonValue]:
    value = bindings.values.get(path)
    if isinstance(value, list):
        return value
    if value is None and is_argument(path):
        return []
    raise NoValue(f"no list is bound to {shown(path)}")


def _texts(values: Sequence[JsonValue]) -> frozenset[str]:
    return frozenset(json.dumps(value, sort_keys=True) for value in values)


def _sort_key(value: JsonValue) -> tuple[bool, bool, Decimal, str]:
    number = decimal(value) if is_number(value) else Decimal(0)
    return value is None, not is_number(value), number, value if isinstance(value, str) else ""
