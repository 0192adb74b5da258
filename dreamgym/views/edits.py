"""Changes between two answers to the same read, as rules that can be applied to another answer.

A rule adds an item to a list, removes one, or sets a value, at a place in the answer. An item of a list is identified
by a value that it contains (`Item`) or by its position; both are tried.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pydantic import JsonValue

from dreamgym.state import same
from dreamgym.views.expressions import Bindings, NoPatternValue, Slot, ValueName, as_word, is_int
from dreamgym.views.patterns import Pattern

MOST = 8
"""Most changes between two answers that are learned from."""


@dataclass(frozen=True)
class Item:
    """The item of a list that contains a value, in one of its fields or as a word of its text."""

    field: str
    """If empty, the item is the value, or a text that contains it as a word."""
    name: ValueName

    def index(self, items: list[JsonValue], bindings: Bindings) -> int:
        """The position of the item. Raises NoPatternValue unless exactly one item contains the value."""
        found = [i for i, item in enumerate(items) if self.holds(item, bindings)]
        if len(found) != 1:
            raise NoPatternValue(f"{len(found)} items hold the value of {self.name}")
        return found[0]

    def holds(self, item: JsonValue, bindings: Bindings) -> bool:
        """True if an item contains the value."""
        value = bindings.get(self.name)
        if value is None or value == "":
            return False
        if self.field:
            return isinstance(item, dict) and self.field in item and same(item[self.field], value)
        word = as_word(value)
        return same(item, value) or (isinstance(item, str) and word is not None and has_word(item, word))


@dataclass(frozen=True)
class Told:
    """The item at the position that a value gives, counted from `first`."""

    name: ValueName
    first: int

    def index(self, items: list[JsonValue], bindings: Bindings) -> int:
        """The position of the item. Raises NoPatternValue if the list has no such position."""
        value = bindings.get(self.name)
        if not is_int(value) or not 0 <= value - self.first < len(items):
            raise NoPatternValue(f"{self.name} is no position")
        return value - self.first


@dataclass(frozen=True)
class Position:
    """The item at a position, counted from the end if negative."""

    at: int

    def index(self, items: list[JsonValue], bindings: Bindings) -> int:
        """The position of the item. Raises NoPatternValue if the list has no such position."""
        if not -len(items) <= self.at < len(items):
            raise NoPatternValue(f"there is no item {self.at}")
        return self.at % len(items)


Way = Item | Told | Position
Step = str | tuple[Way, ...]
"""A field, or the ways to identify an item of a list."""


@dataclass(frozen=True)
class Edit:
    """A rule for one change."""

    kind: str
    """`add`, `extend` (all items of a list are added), `remove` or `set`."""
    path: tuple[Step, ...]
    """The path to the list, or to the value that is set."""
    value: Pattern | None = None
    """The pattern of what is added or set."""
    places: tuple[str, ...] = ()
    """Where an item is added: at the `start`, at the `end`, `sorted`, or `-N` before the end."""
    items: tuple[Way, ...] = ()
    """The ways to identify the item that is removed."""
    may_add: bool = False
    """True if only 0 or an empty text was ever set: the value may be added to the one before."""
    twice: bool = False
    """True if an item was added to a list that had an equal one."""

    def unified(self, other: Edit) -> Edit | None:
        """The rule that fits the examples of both; None if there is none."""
        if self.kind != other.kind or len(self.path) != len(other.path):
            return None
        path: list[Step] = []
        for one, two in zip(self.path, other.path, strict=True):
            if isinstance(one, str) or isinstance(two, str):
                if one != two:
                    return None
                path.append(one)
            else:
                shared = tuple(way for way in one if way in two)
                if not shared:
                    return None
                path.append(shared)
        value = self.value and other.value and self.value.unified(other.value)
        places = tuple(place for place in self.places if place in other.places)
        items = tuple(way for way in self.items if way in other.items)
        if (self.value and not value) or (self.places and not places) or (self.items and not items):
            return None
        may_add, twice = self.may_add and other.may_add, self.twice or other.twice
        return replace(self, path=tuple(path), value=value, places=places, items=items, may_add=may_add, twice=twice)

    def apply(self, value: JsonValue, bindings: Bindings) -> JsonValue:
        """The value with the change. Raises NoPatternValue if the change does not fit."""
        return self._apply(value, self.path, bindings)

    def _apply(self, value: JsonValue, path: tuple[Step, ...], bindings: Bindings) -> JsonValue:
        if path:
            step, rest = path[0], path[1:]
            if isinstance(step, str):
                if not isinstance(value, dict):
                    raise NoPatternValue("there is no object")
                if step not in value and not (self.kind == "set" and not rest):
                    raise NoPatternValue(f"there is no {step!r}")
                return {**value, step: self._apply(value.get(step), rest, bindings)}
            if not isinstance(value, list):
                raise NoPatternValue("there is no list")
            at = step[0].index(value, bindings)
            return [*value[:at], self._apply(value[at], rest, bindings), *value[at + 1 :]]
        if self.kind == "set":
            assert self.value is not None
            if self.may_add and not _is_zero(value):
                raise NoPatternValue("the examples do not tell whether the value is set or added")
            return self.value.evaluate(bindings)
        if not isinstance(value, list):
            raise NoPatternValue("there is no list")
        if self.kind == "remove":
            at = self.items[0].index(value, bindings)
            return [*value[:at], *value[at + 1 :]]
        assert self.value is not None
        added = self.value.evaluate({**bindings, **_counters(value)})
        if self.kind == "extend":
            return [*value, *(added if isinstance(added, list) else [])]
        if not self.twice and added != "" and any(same(added, one) for one in value):
            raise NoPatternValue("no example adds an item that is there")
        at = _place(self.places, value, added)
        return [*value[:at], added, *value[at:]]

    @property
    def is_guess(self) -> bool:
        """True if a single example does not prove the rule: only its position identifies an item."""
        steps = [*self.path, *([self.items] if self.items else [])]
        return any(isinstance(step, tuple) and isinstance(step[0], Position) for step in steps)

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """The pattern that the change writes, if it has one."""
        return () if self.value is None else (self.value,)


def edits_between(base: JsonValue, new: JsonValue, bindings: Bindings) -> tuple[Edit, ...] | None:
    """The changes as rules that fit this one example; None if there are too many, or if one cannot be a rule."""
    found: list[Edit] = []
    for edit in _edits(base, new, bindings, ()):
        if edit is None or len(found) == MOST:
            return None
        found.append(edit)
    return tuple(found)


def _edits(base: JsonValue, new: JsonValue, bindings: Bindings, path: tuple[Step, ...]) -> Iterator[Edit | None]:
    if same(base, new):
        return
    if isinstance(base, dict) and isinstance(new, dict) and base.keys() <= new.keys():
        for name, part in new.items():
            if name in base:
                yield from _edits(base[name], part, bindings, (*path, name))
            else:
                yield Edit("set", (*path, name), Pattern.of(part, bindings))
    elif isinstance(base, list) and isinstance(new, list):
        yield from _list_edits(base, new, bindings, path)
    elif isinstance(base, dict | list) or isinstance(new, dict | list):
        yield None
    else:
        yield Edit("set", path, Pattern.of(new, bindings), may_add=_is_zero(base) and type(base) is type(new))


def _list_edits(
    base: list[JsonValue], new: list[JsonValue], bindings: Bindings, path: tuple[Step, ...]
) -> Iterator[Edit | None]:
    start = 0
    while start < min(len(base), len(new)) and same(base[start], new[start]):
        start += 1
    end = 0
    while end < min(len(base), len(new)) - start and same(base[-1 - end], new[-1 - end]):
        end += 1
    old, made = base[start : len(base) - end], new[start : len(new) - end]
    if len(old) == len(made):
        for offset, (one, two) in enumerate(zip(old, made, strict=True)):
            at = start + offset
            yield from _edits(one, two, bindings, (*path, _items(base, at, bindings)))
        return
    if len(old) + len(made) > MOST:
        yield None
        return
    for offset in range(len(old)):
        rest = base[:start] + old[offset:] + base[len(base) - end :]
        yield Edit("remove", path, items=_items(rest, start, bindings))
    known = base[:start] + base[len(base) - end :]
    flat = tuple(Slot(name) for name, value in bindings.items() if name[0] == "flat" and same(value, list(made)))
    if flat and not old and not end:
        yield Edit("extend", path, Pattern(flat))
        return
    for offset, item in enumerate(made):
        at = start + offset
        twice = any(same(item, one) for one in known)
        pattern = Pattern.of(item, {**bindings, **_counters(known)})
        yield Edit("add", path, pattern, _places(known, at, item), twice=twice)
        known = [*known[:at], item, *known[at:]]


def _items(items: list[JsonValue], at: int, bindings: Bindings) -> tuple[Way, ...]:
    """Every way to identify the item at a position."""
    item = items[at]
    ways: list[Way] = []
    fields = ("", *item) if isinstance(item, dict) else ("",)
    for name in bindings:
        for field in fields:
            way = Item(field, name)
            if way.holds(item, bindings) and sum(way.holds(other, bindings) for other in items) == 1:
                ways.append(way)
    for first in (0, 1):
        ways += [Told(name, first) for name, value in bindings.items() if value == at + first and is_int(value)]
    return (*ways, Position(at), Position(at - len(items)))


def _counters(items: list[JsonValue]) -> Bindings:
    """Bindings for numbers in the next item of a list: its length, and the largest number in each field plus one."""
    found: dict[ValueName, JsonValue] = {("list", "length"): len(items)}
    largest: dict[str, int] = {}
    for item in items:
        for name, value in item.items() if isinstance(item, dict) else ():
            if is_int(value):
                largest[name] = max(value, largest.get(name, value))
    found.update((("list", "next", name), value + 1) for name, value in largest.items())
    return found


def _places(items: list[JsonValue], at: int, item: JsonValue) -> tuple[str, ...]:
    places = []
    if at == len(items):
        places.append("end")
    if _sorted_place(items, item) == at and (isinstance(item, str) or not places):
        places.append("sorted")
    if at == 0:
        places.append("start")
    if at < len(items):
        places.append(str(at - len(items)))
    return tuple(places)


def _place(places: tuple[str, ...], items: list[JsonValue], item: JsonValue) -> int:
    """The position at which an item is added. Raises NoPatternValue if it is not known whether the list is sorted."""
    if "sorted" in places:
        at = _sorted_place(items, item)
        if at is None:
            raise NoPatternValue("the list is not sorted")
        if "end" in places and at != len(items):
            raise NoPatternValue("the examples do not tell whether the list is sorted")
        return at
    if places[0] == "end":
        return len(items)
    return 0 if places[0] == "start" else max(0, len(items) + int(places[0]))


def _sorted_place(items: list[JsonValue], item: JsonValue) -> int | None:
    """The position of an item in a list that is sorted by its texts; None if the list is too short or not sorted."""
    keys = [_text(one).strip("* ") for one in items]
    if len(items) < 2 or keys != sorted(keys):
        return None
    key = _text(item).strip("* ")
    return sum(one < key for one in keys)


def _text(item: JsonValue) -> str:
    return item if isinstance(item, str) else json.dumps(item, sort_keys=True)


def _is_zero(value: JsonValue) -> bool:
    """True for 0 and for an empty text, to which a value is added without a trace."""
    return not isinstance(value, bool) and value in (0, "")


def has_word(text: str, word: str) -> bool:
    """True if a text contains a word, or several words, that letters and digits do not continue."""
    at = text.find(word)
    while at >= 0:
        before, after = text[at - 1 : at], text[at + len(word) : at + len(word) + 1]
        if not (before.isalnum() or before == "_" or after.isalnum() or after == "_"):
            return True
        at = text.find(word, at + 1)
    return False
