"""Decision lists, which find the outcome of a call among the outcomes of its tool."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol

from dreamgym.state import is_number, same
from dreamgym.synthesis.expressions import Expression, NoValue, decimal, is_empty, loaded, shown
from dreamgym.synthesis.paths import Bindings, Path


class Question(Protocol):
    """A condition on a call. It does not hold if something in it has no value."""

    def holds(self, bindings: Bindings) -> bool:
        """True if the condition holds before this call."""


@dataclass(frozen=True)
class IsThere:
    """A path is bound, and not to an empty value."""

    path: Path

    def holds(self, bindings: Bindings) -> bool:
        return not is_empty(bindings, self.path)

    def __str__(self) -> str:
        return f"{shown(self.path)} exists"


@dataclass(frozen=True)
class IsBlank:
    """A path is bound to a text that is empty or only white space."""

    path: Path

    def holds(self, bindings: Bindings) -> bool:
        value = bindings.values.get(self.path)
        return isinstance(value, str) and not value.strip()

    def __str__(self) -> str:
        return f"{shown(self.path)} is blank"


@dataclass(frozen=True)
class HasText:
    """A path is bound to a text that contains a certain text."""

    path: Path
    text: str

    def holds(self, bindings: Bindings) -> bool:
        value = bindings.values.get(self.path)
        return isinstance(value, str) and self.text in value

    def __str__(self) -> str:
        return f"{shown(self.path)} contains {json.dumps(self.text)}"


@dataclass(frozen=True)
class IsValue:
    """A path is bound to one value."""

    path: Path
    text: str
    """The value as JSON."""

    def holds(self, bindings: Bindings) -> bool:
        return self.path in bindings.values and same(bindings.values[self.path], loaded(self.text))

    def __str__(self) -> str:
        return f"{shown(self.path)} = {self.text}"


@dataclass(frozen=True)
class AreSame:
    """Two paths are bound to equal values."""

    one: Path
    other: Path

    def holds(self, bindings: Bindings) -> bool:
        values = bindings.values
        return self.one in values and self.other in values and same(values[self.one], values[self.other])

    def __str__(self) -> str:
        return f"{shown(self.one)} = {shown(self.other)}"


@dataclass(frozen=True)
class IsAlready:
    """A path is already bound to the value that a change would give it."""

    path: Path
    value: Expression

    def holds(self, bindings: Bindings) -> bool:
        try:
            return self.path in bindings.values and same(bindings.values[self.path], self.value.value(bindings))
        except NoValue:
            return False

    def __str__(self) -> str:
        return f"{shown(self.path)} = {self.value} already"


@dataclass(frozen=True)
class IsOne:
    """A number is 1, so that a text uses the singular."""

    number: Expression

    def holds(self, bindings: Bindings) -> bool:
        try:
            return same(self.number.value(bindings), 1)
        except NoValue:
            return False

    def __str__(self) -> str:
        return f"{self.number} = 1"


@dataclass(frozen=True)
class IsAbove:
    """One number is larger than another."""

    one: Expression
    other: Expression

    def holds(self, bindings: Bindings) -> bool:
        try:
            one, other = self.one.value(bindings), self.other.value(bindings)
            return is_number(one) and is_number(other) and decimal(one) > decimal(other)
        except NoValue:
            return False

    def __str__(self) -> str:
        return f"{self.one} > {self.other}"


@dataclass(frozen=True)
class Both:
    """Two questions both have the given answers."""

    one: Question
    is_one: bool
    other: Question
    is_other: bool

    def holds(self, bindings: Bindings) -> bool:
        return self.one.holds(bindings) == self.is_one and self.other.holds(bindings) == self.is_other

    def __str__(self) -> str:
        one, other = f"{'' if self.is_one else 'not '}{self.one}", f"{'' if self.is_other else 'not '}{self.other}"
        return f"{one} and {other}"


@dataclass(frozen=True)
class Decision:
    """If the question has this answer, the call has this outcome."""

    question: Question
    answer: bool
    outcome: int


@dataclass(frozen=True)
class DecisionList:
    """Decides by the first decision that applies, as a server checks one thing after another."""

    decisions: tuple[Decision, ...]
    otherwise: int | None
    """The outcome if no decision applies; None if it is not known then."""
    orders: frozenset[tuple[int, int]] = frozenset()
    """Pairs of outcomes whose decisions both applied in a recorded call; the call had the first of them."""

    def outcome(self, bindings: Bindings) -> int | None:
        """The outcome of a call; None if it is not known, or if no recording shows which of several comes first."""
        applying = [one.outcome for one in self.decisions if one.question.holds(bindings) == one.answer]
        if not applying:
            return self.otherwise
        first, *others = applying
        return first if all(other == first or (first, other) in self.orders for other in others) else None
