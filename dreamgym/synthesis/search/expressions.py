"""The search for an expression that gives the right value in every recorded call.

If several do, the first in this order is taken:

1. a path that ends in the value's own field name: values after the call before older ones, then the shortest path;
2. an argument, or an id that the call makes; not if all calls have the same value of COMMON, unless it is in a text;
3. a constant, if all calls have the same value. In a text, this comes after 4: its words mostly name its subject;
4. any other path;
5. an argument if it is given, and 1, 3 or 4 if it is not;
6. a calculation: of two numbers, over a list or a collection, or with a constant. Only if the calls have at least two
   different values. The length of a list in the same answer comes before 3;
7. an object by its fields; a list by its items, one for each item of another list or each entity of a collection, or as
   a combination of other lists; a text by its words and lists; a JSON text by its content;
8. the larger or smaller of two values; the first entity of a collection in an order; a table of the recorded values for
   one or two paths.

An expression that fits by chance fails in a later call: the more recordings there are, the fewer of these are left.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property

from pydantic import JsonValue

from dreamgym.state import is_number, same
from dreamgym.synthesis.expressions import (
    Constant,
    Expression,
    Fallback,
    First,
    ForEach,
    JsonText,
    NoValue,
    ObjectOf,
    Source,
    Sum,
    Table,
    Variable,
    gives,
    style_of,
)
from dreamgym.synthesis.paths import Bindings, Path, entities_on, is_argument, rank
from dreamgym.synthesis.search.calculations import CalculationSearch
from dreamgym.synthesis.search.choices import first_entity, larger, table
from dreamgym.synthesis.search.combined import combined
from dreamgym.synthesis.search.sources import collection_of, list_excluding, lists
from dreamgym.synthesis.search.texts import template_for

COMMON = (None, True, False, 0, 1, "")
"""Values that are equal by chance so often that an equal argument explains nothing."""


class ExpressionSearch:
    """Finds expressions over some recorded calls.

    Args:
        calls: the bindings of each call, or of each item if the expression stands inside of a loop.
        depth: the number of loops around the expression.
        without: names of fields that are left out.
    """

    def __init__(self, calls: Sequence[Bindings], depth: int = 0, without: frozenset[str] = frozenset()) -> None:
        self.calls = calls
        self._depth = depth
        self._without = without
        self._sources: list[Source] = []
        """Sources of the lists that were found."""

    @cached_property
    def paths(self) -> list[Path]:
        """The paths that are bound in all calls, by rank."""
        shared = set(self.calls[0].values)
        for call in self.calls[1:]:
            shared.intersection_update(call.values)
        return sorted((path for path in shared if path[-1] not in self._without), key=rank)

    @cached_property
    def _calculations(self) -> CalculationSearch:
        return CalculationSearch(self.calls, self.paths, counts_entities=not self._depth)

    def find(self, targets: Sequence[JsonValue], name: str = "", *, in_text: bool = False) -> Expression | None:
        """The expression that gives each call its target; None if there is none.

        Args:
            targets: one for each call.
            name: the field that the value stands in.
            in_text: the value is a part of a sentence.
        """
        paths = [
            path
            for path in self.paths
            if all(same(call.values[path], target) for call, target in zip(self.calls, targets, strict=True))
        ]
        is_constant = all(same(target, targets[0]) for target in targets[1:])
        is_common = is_constant and any(same(targets[0], one) for one in COMMON)
        own_name = [path for path in paths if path[-1] == name]
        roots = {"arg", "new", "item"} if in_text or not is_common else set()
        of_call = [path for path in paths if path[0] in roots and not entities_on(path)]
        if in_text and not of_call:
            of_call = [path for path in paths if path[0] == "first"]  # a refusal names the item that it is about
        # If a number in a sentence is always the same, it belongs to the sentence. A word mostly belongs to the call.
        names_call = in_text and not is_common and not (len(targets) > 1 and is_number(targets[0]) and is_constant)
        if chosen := own_name[:1] or of_call[:1] or (paths[:1] if names_call else []):
            return Variable(chosen[0])
        if all(is_number(target) for target in targets):
            counts = (Sum(source) for source in self._sources)
            if count := next((one for one in counts if gives(one, self.calls, targets)), None):
                return count
        found = self._fallback(targets, name) or (None if in_text else self._composed(targets))
        if found is None and is_constant:
            return Constant(json.dumps(targets[0]))
        if found is None and not in_text and paths:
            return Variable(paths[0])
        if found is None and all(is_number(target) for target in targets):
            found = Variable(paths[0]) if paths else self._calculations.find(targets)
        if found is None and paths:
            return Variable(paths[0])
        if found is None and not in_text and not self._depth:
            found = larger(self.calls, self.paths, targets, name) or first_entity(self.calls, targets)
            return found or table(self.calls, self.paths, targets, name)
        return found

    def _fallback(self, targets: Sequence[JsonValue], name: str) -> Expression | None:
        """An argument that some calls give, and something else for the others."""
        arguments = {path for call in self.calls for path in call.values if is_argument(path)}
        for path in sorted(arguments, key=lambda path: (path[-1] != name, rank(path))):
            values = [call.values.get(path) for call in self.calls]
            empty = [i for i, value in enumerate(values) if value is None or value in ("", [])]
            given = [i for i in range(len(values)) if i not in empty]
            if empty and given and all(same(values[i], targets[i]) for i in given):
                others = ExpressionSearch([self.calls[i] for i in empty], self._depth)
                otherwise = others.find([targets[i] for i in empty], name)
                if isinstance(otherwise, Variable | Constant | First | Table):
                    return Fallback(path, otherwise)
        return None

    def _composed(self, targets: Sequence[JsonValue]) -> Expression | None:
        """An object, a list or a text by its parts."""
        objects = [target for target in targets if isinstance(target, dict)]
        arrays = [target for target in targets if isinstance(target, list)]
        texts = [target for target in targets if isinstance(target, str)]
        if len(objects) == len(targets):
            if any(target.keys() != objects[0].keys() for target in objects):
                return None
            parts: dict[str, Expression] = {}
            # lists first: a number may be the length of a list
            for name in sorted(objects[0], key=lambda name: not isinstance(objects[0][name], list)):
                part = self.find([target[name] for target in objects], name)
                if part is None:
                    return None
                parts[name] = part
            return ObjectOf(tuple((name, parts[name]) for name in objects[0]))
        if len(arrays) == len(targets):
            return self._list(arrays)
        if len(texts) < len(targets):
            return None
        style = style_of(texts)
        if style is not None:
            content = self.find([json.loads(text) for text in texts])
            return content and JsonText(content, *style)
        return template_for(texts, self.calls, lambda values: self.find(values, in_text=True), self._list)

    def _list(self, targets: Sequence[list[JsonValue]]) -> Expression | None:
        if self._depth > 1:
            return None
        for source in lists(self.paths, self.calls):
            for items in (source, *list_excluding(source, self.paths, self.calls)):
                if expression := self._of_each(items.items, targets):
                    self._sources.append(items)
                    return ForEach(items, expression)
        for entities in collection_of(self.calls, targets):
            if expression := self._of_each(entities.items, targets):
                self._sources.append(entities)
                return ForEach(entities, expression)
        return combined(self.calls, self.paths, targets)

    def _of_each(
        self, items: Callable[[Bindings], list[Bindings]], targets: Sequence[list[JsonValue]]
    ) -> Expression | None:
        """The expression of each element of the lists, if they have one element for each item."""
        inner: list[Bindings] = []
        values: list[JsonValue] = []
        for call, target in zip(self.calls, targets, strict=True):
            try:
                found = items(call)
            except NoValue:
                return None
            if len(found) != len(target):
                return None
            inner += found
            values += target
        return ExpressionSearch(inner, self._depth + 1).find(values) if inner else None
