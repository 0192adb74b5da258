"""The search for a calculation that gives the right number in every recorded call.

Every number that could take part is a column: its value in each call. For a sum of two columns, the search looks up the
difference between the target and the first column among the columns, so that pairs cost no more than single columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from functools import cached_property
from itertools import combinations

from pydantic import JsonValue

from dreamgym.state import is_number
from dreamgym.synthesis.expressions import (
    Calculation,
    Constant,
    Entities,
    Expression,
    Items,
    NoValue,
    Sum,
    Variable,
    decimal,
    gives,
    is_calculable,
)
from dreamgym.synthesis.paths import Bindings, Path
from dreamgym.synthesis.search.sources import lists, related

Column = tuple[Decimal, ...]
"""The value of one expression in each call."""
SOURCES = 12
"""Most ways to narrow a collection that are tried for sums."""
MOST = 400
"""Most columns that are combined."""


class CalculationSearch:
    """Finds calculations over some recorded calls.

    Args:
        calls: the bindings of each call.
        paths: the paths that are bound in all of them.
        counts_entities: True to try also sums over entities of a collection, after everything else.
    """

    def __init__(self, calls: Sequence[Bindings], paths: Sequence[Path], *, counts_entities: bool) -> None:
        self._calls = calls
        self._paths = paths
        self._counts_entities = counts_entities

    @cached_property
    def columns(self) -> dict[Column, Expression]:
        """The expression of each column: paths first, then sums over lists. The first one with a column is kept."""
        numbers = [path for path in self._paths if all(is_number(call.values[path]) for call in self._calls)]
        return self._distinct((*map(Variable, numbers), *self._sums(lists(self._paths, self._calls))))

    @cached_property
    def entity_columns(self) -> dict[Column, Expression]:
        """Counts of entities, and sums over their fields."""
        return self._distinct(self._sums(related(self._calls, self._paths, SOURCES)) if self._counts_entities else ())

    def find(self, targets: Sequence[JsonValue]) -> Expression | None:
        """The plainest calculation that gives all targets; None if there is none or all targets are equal."""
        if not all(map(is_calculable, targets)):
            return None
        column = tuple(decimal(target) for target in targets)
        if len(set(column)) < 2:
            return None
        return next((one for one in self._candidates(column) if gives(one, self._calls, targets)), None)

    def _candidates(self, targets: Column) -> Iterator[Expression]:
        if targets in self.columns:
            yield self.columns[targets]
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
        for column, expression in self.columns.items():
            yield from _with_constant(targets, column, expression)
        if targets in self.entity_columns:
            yield self.entity_columns[targets]

    def _sums(self, sources: Sequence[Items] | Sequence[Entities]) -> Iterator[Expression]:
        """For each source, the number of items, the sum of each number in them, and the sum of each product of two."""
        for source in sources:
            yield Sum(source)
            if isinstance(source, Entities):
                entities = self._calls[0].state.collections[source.collection].values()
                fields = {field for one in entities for field, value in one.items() if is_number(value)}
                yield from (Sum(source, Variable(("item", field))) for field in sorted(fields))
                continue
            items = [item for call in self._calls for item in source.items(call)]
            if items:
                of_each = ({p for p in item.values if p[0] == "item" and is_number(item.values[p])} for item in items)
                own = sorted(set.intersection(*of_each))
                yield from (Sum(source, Variable(path)) for path in own)
                for one, other in combinations(own, 2):
                    yield Sum(source, Calculation("*", Variable(one), Variable(other)))

    def _distinct(self, expressions: Iterable[Expression]) -> dict[Column, Expression]:
        columns: dict[Column, Expression] = {}
        for expression in expressions:
            if len(columns) >= MOST:
                break
            try:
                values = [expression.value(call) for call in self._calls]
            except NoValue:
                continue
            if all(map(is_calculable, values)):
                columns.setdefault(tuple(decimal(value) for value in values), expression)
        return columns


def _with_constant(targets: Column, column: Column, expression: Expression) -> Iterator[Expression]:
    """The target as a column plus, times or divided by a constant."""
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
    """The roundest whole number d for which `column // d` gives the targets; None if there is none."""
    if any(t != int(t) or t < 0 for t in targets) or any(c <= 0 for c in column) or len(set(targets)) < 3:
        return None
    # t = c // d is the same as c / (t + 1) < d <= c / t.
    pairs = list(zip(targets, column, strict=True))
    lowest = max(int(c / (t + 1)) + 1 for t, c in pairs)
    highest = min((int(c / t) for t, c in pairs if t), default=0)
    for step in (1000, 500, 100, 50, 25, 20, 10, 5, 2, 1):
        first = -(-lowest // step) * step
        if 1 < first <= highest:
            return first
    return None


def _constant(number: Decimal) -> Constant:
    return Constant(json.dumps(int(number) if number == int(number) else float(number)))
