"""Values: how a field of an answer, or of the state after a call, follows from the call."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol

from pydantic import JsonValue

from dreamgym.state import natural
from dreamgym.synthesis.objects.terms import MISSING, Found, Term, found, worded
from dreamgym.types import JsonObject


class Value(Protocol):
    """Gives a value in a call; MISSING if something that it needs is not there."""

    def of(self, state: JsonObject, arguments: JsonObject) -> Found:
        """The value."""


@dataclass(frozen=True)
class Always:
    """A fixed value."""

    text: str
    """The value as JSON."""

    def of(self, state: JsonObject, arguments: JsonObject) -> Found:
        value: JsonValue = json.loads(self.text)
        return value

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Read:
    """The value of a term."""

    term: Term

    def of(self, state: JsonObject, arguments: JsonObject) -> Found:
        return found(self.term, state, arguments)

    def __str__(self) -> str:
        return worded(self.term)


@dataclass(frozen=True)
class Having:
    """The ids, in natural order, of the entities whose field is a value or a list that contains it."""

    collection: str
    field: str
    one: Term

    def of(self, state: JsonObject, arguments: JsonObject) -> Found:
        part, one = state.get(self.collection), found(self.one, state, arguments)
        if not isinstance(part, dict) or not isinstance(one, str):
            return MISSING
        ids = []
        for identity, entity in part.items():
            value = entity.get(self.field) if isinstance(entity, dict) else None
            if value == one or (isinstance(value, list) and one in value):
                ids.append(identity)
        return [*sorted(ids, key=natural)]

    def __str__(self) -> str:
        return f"{self.collection} where {self.field} has {worded(self.one)}"


@dataclass(frozen=True)
class Together:
    """The texts in some lists and single values as one list, in natural order and each once.

    Args:
        terms: terms whose items are taken. A null or missing value has none.
        without: terms whose items are left out.
    """

    terms: tuple[Term, ...]
    without: tuple[Term, ...] = ()

    def of(self, state: JsonObject, arguments: JsonObject) -> Found:
        out = {item for term in self.without for item in _items(found(term, state, arguments))}
        items = {item for term in self.terms for item in _items(found(term, state, arguments))}
        return [*sorted(items - out, key=natural)]

    def __str__(self) -> str:
        text = " + ".join(map(worded, self.terms))
        return f"({text}{''.join(f' - {worded(term)}' for term in self.without)})"


def _items(value: Found) -> list[str]:
    parts = value if isinstance(value, list) else [value]
    return [part for part in parts if isinstance(part, str)]
