"""Which calculation gives a number in every recorded call."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from functools import cached_property

from pydantic import JsonValue

from dreamgym.synthesis.expressions import (
    Calculation,
    Constant,
    Entities,
    Expression,
    Items,
    NoValue,
    Sum,
    Term,
    decimal,
    same,
)
from dreamgym.synthesis.situation import Key, Situation, is_number
from dreamgym.synthesis.sources import lists_of, related

Column = tuple[Decimal, ...]
"""The value of one expression in each situation."""
SOURCES = 12
"""So many ways to narrow a collection are tried for sums."""
MOST = 400
"""So many columns are combined with each other."""


class Numbers:
    """What can be calculated in some situations.

    Args:
        situations: the recorded calls.
        keys: what can be named in all of them.
        counts_entities: sums over entities of a collection are tried too, after everything else.
    """

    def __init__(self, situations: Sequence[Situation], keys: Sequence[Key], *, counts_entities: bool) -> None:
        self._situations = situations
        self._keys = keys
        self._counts_entities = counts_entities

    @cached_property
    def columns(self) -> dict[Column, Expression]:
        """What is a number in all situations: what can be named, then sums over lists. Of two that agree, the first."""
        return self._columns((*self._terms(), *self._sums(lists_of(self._keys, self._situations))))

    @cached_property
    def entity_columns(self) -> dict[Column, Expression]:
        """How many entities there are of some kind, and what they come to."""
        return self._columns(
            self._sums(related(self._situations, self._keys, SOURCES)) if self._counts_entities else ()
        )

    def find(self, targets: Sequence[JsonValue]) -> Expression | None:
        """The plainest calculation that gives all targets; None where there is none, or one target alone."""
        column = tuple(decimal(target) for target in targets)
        if len(set(column)) < 2:
            return None
        for expression in self._candidates(column):
            try:
                if all(same(expression.value(s), t) for s, t in zip(self._situations, targets, strict=True)):
                    return expression
            except NoValue:
                continue
        return None

    def _candidates(self, targets: Column) -> Iterator[Expression]:
        if targets in self.columns:
            yield self.columns[targets]
        yield from self._of_two(targets)
        for column, expression in self.columns.items():
            yield from _with_constant(targets, column, expression)
        if targets in self.entity_columns:
            yield self.entity_columns[targets]

    def _columns(self, expressions: Iterable[Expression]) -> dict[Column, Expression]:
        columns: dict[Column, Expression] = {}
        for expression in expressions:
            if len(columns) < MOST and (column := self._column(expression)) is not None:
                columns.setdefault(column, expression)
        return columns

    def _of_two(self, targets: Column) -> Iterator[Expression]:
        for column, left in self.columns.items():
            rest = tuple(t - c for t, c in zip(targets, column, strict=True))
            if rest in self.columns:
                yield Calculation("+", left, self.columns[rest])
            less = tuple(c - t for t, c in zip(targets, column, strict=True))
            if less in self.columns:
                yield Calculation("-", left, self.columns[less])
            if all(column):
                try:
                    factor = tuple(t / c for t, c in zip(targets, column, strict=True))
                except InvalidOperation:
                    continue
                if factor in self.columns:
                    yield Calculation("*", left, self.columns[factor])

    def _terms(self) -> Iterator[Expression]:
        for key in self._keys:
            if all(is_number(situation.values[key]) for situation in self._situations):
                yield Term(key)

    def _sums(self, sources: Sequence[Items] | Sequence[Entities]) -> Iterator[Expression]:
        for source in sources:
            yield Sum(source)
            if isinstance(source, Entities):
                yield from (Sum(source, Term(("item", field))) for field in self._numeric(source.collection))
                continue
            items = [item for situation in self._situations for item in source.situations(situation)]
            if items:
                shared = set.intersection(*({k for k, v in item.values.items() if is_number(v)} for item in items))
                own = sorted(key for key in shared if key[0] == "item")
                yield from (Sum(source, Term(key)) for key in own)
                for number, one in enumerate(own):
                    for other in own[number + 1 :]:
                        yield Sum(source, Calculation("*", Term(one), Term(other)))

    def _numeric(self, collection: str) -> list[str]:
        """The fields of a collection that are numbers, as far as one world shows."""
        entities = self._situations[0].world.collections[collection].values()
        return sorted({field for one in entities for field, value in one.items() if is_number(value)})

    def _column(self, expression: Expression) -> Column | None:
        try:
            values = [expression.value(situation) for situation in self._situations]
        except NoValue:
            return None
        return tuple(decimal(value) for value in values) if all(is_number(value) for value in values) else None


def _with_constant(targets: Column, column: Column, expression: Expression) -> Iterator[Expression]:
    differences = {t - c for t, c in zip(targets, column, strict=True)}
    if len(differences) == 1:
        yield Calculation("+", expression, _constant(differences.pop()))
    if any(not c for c in column):
        return
    ratios = {t / c for t, c in zip(targets, column, strict=True)}
    if len(ratios) == 1:
        ratio = ratios.pop()
        yield Calculation("*", expression, _constant(ratio))
        if ratio and 1 / ratio == int(1 / ratio):
            yield Calculation("//", expression, _constant(1 / ratio))
    elif (divisor := _divisor(targets, column)) is not None:
        yield Calculation("//", expression, _constant(Decimal(divisor)))


def _divisor(targets: Column, column: Column) -> int | None:
    """The roundest whole number by which all are divided, without rest; None where there is none."""
    pairs = [(t, c) for t, c in zip(targets, column, strict=True) if t == int(t)]
    if len(pairs) < len(targets) or len(set(targets)) < 3 or any(t < 0 or c <= 0 for t, c in pairs):
        return None
    lowest = max(int(c / (t + 1)) + 1 for t, c in pairs)
    highest = min((int(c / t) for t, c in pairs if t), default=0)
    for step in (1000, 500, 100, 50, 25, 20, 10, 5, 2, 1):
        first = -(-lowest // step) * step
        if 1 < first <= highest:
            return first
    return None


def _constant(number: Decimal) -> Constant:
    return Constant(json.dumps(int(number) if number == int(number) else float(number)))
