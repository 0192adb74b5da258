"""Which of several recorded outcomes a call has: a list of questions, in the order in which a server may ask them.

Each step of the list is a question that is answered so for calls of one outcome alone, of those that are left. Of all
such questions the cheapest comes next: it costs what its kind costs (is this named or given, and does something have to
be wrong with an item: 1; would a number fall below 0: 1; does it have this value, are these two the same: 2; is it
above a number that the refusal tells: 2; are there entities like this: 3; is one number above another: 4; above a
constant: 5), 2 more for everything it asks of that the outcome's answer does not speak of, a half for everything that
the answer speaks of and it does not ask of, and 3 where it does not find all calls of the outcome. The most frequent
outcome that is no refusal is left for the end.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Protocol

from pydantic import JsonValue

from dreamgym.synthesis.explaining import rank
from dreamgym.synthesis.expressions import (
    Constant,
    Entities,
    Expression,
    NoValue,
    Sum,
    Term,
    decimal,
    is_empty,
    same,
)
from dreamgym.synthesis.situation import Key, Situation, is_number
from dreamgym.synthesis.sources import related

VALUES = 8
"""A key with more values than so many is asked for none of them."""
CUTS = 12
"""So many constants at most are tried for one number."""


class Question(Protocol):
    """Yes or no."""

    def holds(self, situation: Situation) -> bool:
        """The answer; no where it cannot be asked."""


@dataclass(frozen=True)
class IsThere:
    """It can be named, and is not empty."""

    key: Key

    def holds(self, situation: Situation) -> bool:
        """Whether it is."""
        return not is_empty(situation, self.key)


@dataclass(frozen=True)
class IsBlank:
    """A text of nothing but space."""

    key: Key

    def holds(self, situation: Situation) -> bool:
        """Whether it is."""
        value = situation.values.get(self.key)
        return isinstance(value, str) and not value.strip()


@dataclass(frozen=True)
class IsValue:
    """It has one value."""

    key: Key
    text: str
    """As JSON."""

    def holds(self, situation: Situation) -> bool:
        """Whether it has."""
        return self.key in situation.values and same(situation.values[self.key], _loaded(self.text))


@dataclass(frozen=True)
class AreSame:
    """Two of what can be named are equal."""

    one: Key
    other: Key

    def holds(self, situation: Situation) -> bool:
        """Whether they are."""
        values = situation.values
        return self.one in values and self.other in values and same(values[self.one], values[self.other])


@dataclass(frozen=True)
class IsAbove:
    """One number is larger than another."""

    one: Expression
    other: Expression

    def holds(self, situation: Situation) -> bool:
        """Whether it is."""
        try:
            one, other = self.one.value(situation), self.other.value(situation)
        except NoValue:
            return False
        return is_number(one) and is_number(other) and decimal(one) > decimal(other)


@dataclass(frozen=True)
class Step:
    """Where the question has this answer, the call has this outcome."""

    question: Question
    answer: bool
    outcome: int


@dataclass(frozen=True)
class Outcomes:
    """Decides by the first step that fits."""

    steps: tuple[Step, ...]
    rest: int | None
    """The outcome of what none fits: what more than half of such calls had; None where there is no such outcome."""

    def decide(self, situation: Situation) -> int | None:
        """The outcome of a call."""
        for step in self.steps:
            if step.question.holds(situation) == step.answer:
                return step.outcome
        return self.rest


@dataclass(frozen=True)
class Answered:
    """What the answer of an outcome is made of."""

    is_error: bool
    keys: frozenset[Key]
    """What it speaks of."""
    numbers: frozenset[float]
    """The constants that it tells."""


@dataclass(frozen=True)
class _Asked:
    """A question with its answers as the bits of a number."""

    question: Question
    answers: int
    cost: float
    keys: frozenset[Key]


def learned(
    situations: Sequence[Situation],
    outcomes: Sequence[int],
    answers: Sequence[Answered],
    falls: Sequence[Expression],
    numbers: Sequence[Expression],
) -> Outcomes:
    """The list of questions that the recorded calls show.

    Args:
        situations: before each call.
        outcomes: of each call.
        answers: of each outcome.
        falls: numbers as some outcome would leave them, which may have to stay above 0.
        numbers: what else may be compared, beside the numbers that can be named.
    """
    counts = Counter(outcomes)
    by_count = sorted(counts, key=lambda outcome: (answers[outcome].is_error, -counts[outcome], outcome))
    last = by_count[0]
    bits = {outcome: sum(1 << i for i, one in enumerate(outcomes) if one == outcome) for outcome in counts}
    left = (1 << len(outcomes)) - 1
    steps: list[Step] = []
    asked = _asked(situations, outcomes, answers, falls, numbers) if len(counts) > 1 else []
    while open_ := [outcome for outcome in by_count if outcome != last and bits[outcome] & left]:
        best: tuple[float, int, int, Step, int] | None = None
        for outcome in open_:
            own = bits[outcome] & left
            for number, one in enumerate(asked):
                for answer in (True, False):
                    there = (one.answers if answer else ~one.answers) & left
                    if there and not there & ~own:
                        cost = one.cost + _distance(one.keys, answers[outcome].keys) + 3 * (there != own)
                        found = (cost, -there.bit_count(), number, Step(one.question, answer, outcome), there)
                        if best is None or found[:3] < best[:3]:
                            best = found
        if best is None:
            break
        steps.append(best[3])
        left &= ~best[4]
    unclear = Counter(outcome for i, outcome in enumerate(outcomes) if left >> i & 1)
    most = unclear.most_common(1)
    return Outcomes(tuple(steps), most[0][0] if most and 2 * most[0][1] > unclear.total() else None)


def _distance(asked: frozenset[Key], told: frozenset[Key]) -> float:
    unknown = sum(key not in told for key in asked)
    return 2 * unknown + sum(key not in asked for key in told) / 2


def keys_of(part: object) -> Iterator[Key]:
    """All that an expression, an effect or a question names; an entity counts as the id that leads to it."""
    if is_dataclass(part) and not isinstance(part, type):
        for one in fields(part):
            yield from keys_of(getattr(part, one.name))
    elif isinstance(part, tuple):
        if (
            len(part) > 1
            and part[0] in {"arg", "first", "before", "item"}
            and all(isinstance(one, str) for one in part)
        ):
            plain = part[1:] if part[0] == "before" else part
            yield plain[:-1] if plain[-1].startswith(">") else plain
        else:
            for inner in part:
                yield from keys_of(inner)


def _asked(
    situations: Sequence[Situation],
    outcomes: Sequence[int],
    answers: Sequence[Answered],
    falls: Sequence[Expression],
    numbers: Sequence[Expression],
) -> list[_Asked]:
    """All questions, of those that are answered alike in every call the cheapest for each thing asked of."""
    known: dict[tuple[int, frozenset[Key]], _Asked] = {}
    everything = (1 << len(situations)) - 1
    for cost, questions in _kinds(situations, outcomes, answers, falls, numbers):
        for question in questions:
            bits = sum(1 << i for i, situation in enumerate(situations) if question.holds(situation))
            keys = frozenset(keys_of(question))
            if 0 < bits < everything and (bits, keys) not in known:
                known[bits, keys] = _Asked(question, bits, cost, keys)
    return list(known.values())


def _kinds(
    situations: Sequence[Situation],
    outcomes: Sequence[int],
    answers: Sequence[Answered],
    falls: Sequence[Expression],
    numbers: Sequence[Expression],
) -> Iterator[tuple[float, Iterator[Question]]]:
    keys = sorted({key for one in situations for key in one.values if key[0] != "new"}, key=rank)
    numeric = [Term(key) for key in keys if any(is_number(s.values.get(key)) for s in situations)]
    spoken = [term for term in numeric if is_spoken(term.key)]
    told = sorted({number for answer in answers if answer.is_error for number in answer.numbers})
    yield 1, (IsThere(key) for key in keys if "@" not in key[-1])
    yield 1, (IsAbove(Constant("0"), fall) for fall in falls)
    yield 2, (IsBlank(key) for key in keys if key[0] == "arg" and len(key) == 2)
    yield 2, _values(situations, keys)
    yield 2, _equalities(situations, keys)
    yield 2, (question for term in spoken for number in told for question in _beyond(term, number))
    yield 3, (IsThere(key) for key in keys if "@" in key[-1])
    yield 3, (IsAbove(Sum(entities), Constant("0")) for entities in _related(situations, keys))
    compared: list[Expression] = [*spoken, *numbers]
    yield (
        4,
        (
            IsAbove(*pair)
            for one in compared
            for other in numeric
            if one != other
            for pair in ((one, other), (other, one))
        ),
    )
    yield 5, (question for one in (*spoken, *numbers, *numeric) for question in _cuts(one, situations, outcomes))


def _beyond(term: Term, number: float) -> tuple[Question, Question]:
    limit = Constant(json.dumps(number))
    return IsAbove(term, limit), IsAbove(limit, term)


def is_spoken(key: Key) -> bool:
    """The call's own words, or an item's, and no field of an entity."""
    return key[0] == "arg" and not any(part.startswith(">") for part in key)


def _values(situations: Sequence[Situation], keys: Sequence[Key]) -> Iterator[Question]:
    for key in keys:
        there = [situation.values[key] for situation in situations if key in situation.values]
        if all(isinstance(value, str | bool | None) for value in there):
            texts = {json.dumps(value) for value in there}
            if len(texts) <= min(VALUES, max(2, len(there) // 2)):
                yield from (IsValue(key, text) for text in sorted(texts))


def _equalities(situations: Sequence[Situation], keys: Sequence[Key]) -> Iterator[Question]:
    scalar = [k for k in keys if any(isinstance(s.values.get(k), str | int) for s in situations)]
    for one in (key for key in scalar if is_spoken(key)):
        for other in scalar:
            if one < other or not is_spoken(other):
                yield AreSame(one, other)


def _related(situations: Sequence[Situation], keys: Sequence[Key]) -> list[Entities]:
    """Of the situations that can name most."""
    most = max(len(situation.values) for situation in situations)
    full = [situation for situation in situations if len(situation.values) * 2 >= most]
    shared = [key for key in keys if all(key in situation.values for situation in full)]
    return related(full, shared)


def _cuts(one: Expression, situations: Sequence[Situation], outcomes: Sequence[int]) -> Iterator[Question]:
    """Constants between values of different outcomes."""
    there: list[tuple[float, int]] = []
    for situation, outcome in zip(situations, outcomes, strict=True):
        try:
            value = one.value(situation)
        except NoValue:
            continue
        if isinstance(value, int | float) and is_number(value):
            there.append((value, outcome))
    there.sort()
    cuts = [(low, high) for (low, a), (high, b) in pairwise(there) if low < high and a != b]
    for low, high in cuts[:CUTS]:
        middle = (low + high) // 2 if isinstance(low, int) and isinstance(high, int) else (low + high) / 2
        yield IsAbove(one, Constant(json.dumps(middle)))


@lru_cache(maxsize=4096)
def _loaded(text: str) -> JsonValue:
    value: JsonValue = json.loads(text)
    return value
