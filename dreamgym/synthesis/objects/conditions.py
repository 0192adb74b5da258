"""Conditions on a call, which the rules of an outcome check before it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol

from dreamgym.synthesis.objects.terms import MISSING, Term, found, worded
from dreamgym.types import JsonObject


class Condition(Protocol):
    """A condition that a call meets or not."""

    def holds(self, state: JsonObject, arguments: JsonObject) -> bool:
        """True if it holds before the call."""


@dataclass(frozen=True)
class IsKnown:
    """An argument or a single value is the id of a known entity of a collection."""

    term: Term

    def holds(self, state: JsonObject, arguments: JsonObject) -> bool:
        return found(self.term, state, arguments) is not MISSING

    def __str__(self) -> str:
        return f"{worded(self.term)} is known"


@dataclass(frozen=True)
class Is:
    """A term has one value."""

    term: Term
    text: str
    """The value as JSON."""

    def holds(self, state: JsonObject, arguments: JsonObject) -> bool:
        value = found(self.term, state, arguments)
        return value is not MISSING and json.dumps(value) == self.text

    def __str__(self) -> str:
        return f"{worded(self.term)} = {self.text}"


@dataclass(frozen=True)
class Same:
    """Two terms name the same entity."""

    one: Term
    other: Term

    def holds(self, state: JsonObject, arguments: JsonObject) -> bool:
        one = found(self.one, state, arguments)
        return isinstance(one, str) and one == found(self.other, state, arguments)

    def __str__(self) -> str:
        return f"{worded(self.one)} = {worded(self.other)}"


@dataclass(frozen=True)
class Has:
    """A list has an item."""

    items: Term
    one: Term

    def holds(self, state: JsonObject, arguments: JsonObject) -> bool:
        items, one = found(self.items, state, arguments), found(self.one, state, arguments)
        return isinstance(items, list) and isinstance(one, str) and one in items

    def __str__(self) -> str:
        return f"{worded(self.items)} has {worded(self.one)}"


@dataclass(frozen=True)
class Share:
    """Two lists have an item in common."""

    one: Term
    other: Term

    def holds(self, state: JsonObject, arguments: JsonObject) -> bool:
        one, other = found(self.one, state, arguments), found(self.other, state, arguments)
        return isinstance(one, list) and isinstance(other, list) and any(item in other for item in one)

    def __str__(self) -> str:
        return f"{worded(self.one)} and {worded(self.other)} share an item"


@dataclass(frozen=True)
class Not:
    """Another condition does not hold."""

    condition: Condition

    def holds(self, state: JsonObject, arguments: JsonObject) -> bool:
        return not self.condition.holds(state, arguments)

    def __str__(self) -> str:
        return f"not ({self.condition})"


@dataclass(frozen=True)
class Either:
    """One of two conditions holds."""

    one: Condition
    other: Condition

    def holds(self, state: JsonObject, arguments: JsonObject) -> bool:
        return self.one.holds(state, arguments) or self.other.holds(state, arguments)

    def __str__(self) -> str:
        return f"{self.one} or {self.other}"


@dataclass(frozen=True)
class OneOf:
    """The recordings show this combination of categories."""

    terms: tuple[Term, ...]
    known: frozenset[str]
    """Recorded combinations: the values of the terms as a JSON list."""

    def holds(self, state: JsonObject, arguments: JsonObject) -> bool:
        return key_of(self.terms, state, arguments) in self.known

    def __str__(self) -> str:
        return f"({', '.join(map(worded, self.terms))}) is one of {len(self.known)} recorded"


def key_of(terms: tuple[Term, ...], state: JsonObject, arguments: JsonObject) -> str:
    """The values of some terms as one text; empty if one of the values is not a text."""
    values = [found(term, state, arguments) for term in terms]
    return "" if any(not isinstance(value, str) for value in values) else json.dumps(values)
