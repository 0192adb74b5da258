"""Finds the expressions that give the right value in every recorded call: the version space of one value.

Of several that do, the first of this order is taken:

1. what can be named and has the value's own name, the shortest way first; what is after the call before what was;
2. an argument, or an id that the call made, unless its value is as common as 0, 1 or true and stands in no text;
3. a constant, where all calls had it (in a text: after 4, since words there mostly say what they are about);
4. anything else that can be named;
5. an argument where one was given, and 1, 3 or 4 where none was;
6. a number calculated from two others: a sum, difference or product; a sum or a number of items of a list or of
   entities of a collection; a number times, plus or divided by a constant. Only where two values or more were seen;
7. an object or a list part by part, a list for each item of another list or for each entity of a collection that
   passes filters; a text word by word; a text that is JSON as that.

What holds by chance in one call is wrong in the next: with more recordings fewer expressions are left.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property

from pydantic import JsonValue

from dreamgym.synthesis.expressions import (
    AsJson,
    Constant,
    Each,
    Expression,
    Given,
    NoValue,
    Record,
    Term,
    same,
    style_of,
)
from dreamgym.synthesis.numbers import Numbers
from dreamgym.synthesis.situation import Key, Situation, is_number
from dreamgym.synthesis.sources import among_entities, lists_of, shortened
from dreamgym.synthesis.wording import Wordings

COMMON = (None, True, False, 0, 1, "")
"""Values that agree by chance."""


_Items = Callable[[Situation], list[Situation]]


class Explainer:
    """Explains values in some situations, one in each."""

    def __init__(self, situations: Sequence[Situation], depth: int = 0) -> None:
        self.situations = situations
        self._depth = depth

    @cached_property
    def keys(self) -> list[Key]:
        """What can be named in all situations, the plainest first."""
        shared = set(self.situations[0].values)
        for situation in self.situations[1:]:
            shared &= situation.values.keys()
        return sorted(shared, key=rank)

    @cached_property
    def numbers(self) -> Numbers:
        """What can be calculated."""
        return Numbers(self.situations, self.keys, counts_entities=not self._depth)

    def find(self, targets: Sequence[JsonValue], name: str = "", *, in_text: bool = False) -> Expression | None:
        """The expression that gives each situation its target; None where there is none.

        Args:
            targets: one for each situation.
            name: the field that the value stands in.
            in_text: the value is a part of a sentence.
        """
        keys = [key for key in self.keys if self._gives(key, targets)]
        own = [key for key in keys if key[-1] == name]
        is_constant = all(same(target, targets[0]) for target in targets[1:])
        is_common = is_constant and any(same(targets[0], one) for one in COMMON)
        roots = {"arg", "new", "item"} if in_text or not is_common else set()
        spoken = [key for key in keys if key[0] in roots and not _goes_on(key)]
        if in_text and not spoken:
            spoken = [key for key in keys if key[0] == "first"]  # a refusal tells what is wrong with the item
        # A number that a sentence always says is its own; a word that it always says mostly names what it is about.
        is_told = in_text and not is_common and not (len(targets) > 1 and is_number(targets[0]) and is_constant)
        if plainest := own[:1] or spoken[:1] or (keys[:1] if is_told else []):
            return Term(plainest[0])
        found = self._given(targets, name) or (None if in_text else self._composed(targets))
        if found is None and is_constant:
            return Constant(json.dumps(targets[0]))
        if found is None and keys:
            return Term(keys[0])
        if found is None and all(is_number(target) for target in targets):
            found = self.numbers.find(targets)
        return found

    def _gives(self, key: Key, targets: Sequence[JsonValue]) -> bool:
        return all(
            same(situation.values[key], target) for situation, target in zip(self.situations, targets, strict=True)
        )

    def _given(self, targets: Sequence[JsonValue], name: str) -> Expression | None:
        """An argument where it is given, something else where not."""
        spoken = {key for situation in self.situations for key in situation.values if key[0] == "arg"}
        for key in sorted((key for key in spoken if not _goes_on(key)), key=lambda key: (key[-1] != name, rank(key))):
            values = [situation.values.get(key) for situation in self.situations]
            empty = [i for i, value in enumerate(values) if value is None or value in ("", [])]
            given = [i for i in range(len(values)) if i not in empty]
            if empty and given and all(same(values[i], targets[i]) for i in given):
                rest = Explainer([self.situations[i] for i in empty], self._depth)
                otherwise = rest.find([targets[i] for i in empty], name)
                if isinstance(otherwise, Term | Constant):
                    return Given(key, otherwise)
        return None

    def _composed(self, targets: Sequence[JsonValue]) -> Expression | None:
        if all(isinstance(target, dict) for target in targets):
            return self._record([target for target in targets if isinstance(target, dict)])
        if all(isinstance(target, list) for target in targets):
            return self._list([target for target in targets if isinstance(target, list)])
        if all(isinstance(target, str) for target in targets):
            return self._text([target for target in targets if isinstance(target, str)])
        return None

    def _record(self, targets: Sequence[dict[str, JsonValue]]) -> Expression | None:
        if any(target.keys() != targets[0].keys() for target in targets):
            return None
        parts: list[tuple[str, Expression]] = []
        for name in targets[0]:
            found = self.find([target[name] for target in targets], name)
            if found is None:
                return None
            parts.append((name, found))
        return Record(tuple(parts))

    def _text(self, targets: Sequence[str]) -> Expression | None:
        style = style_of(targets)
        if style is not None:
            of = self.find([json.loads(target) for target in targets])
            return of and AsJson(of, *style)
        return Wordings(self.situations).find(targets, lambda values: self.find(values, in_text=True))

    def _list(self, targets: Sequence[list[JsonValue]]) -> Expression | None:
        """For each item of another list, or for each entity of a collection."""
        if self._depth > 1:
            return None
        for source in lists_of(self.keys, self.situations):
            for items in (source, *shortened(source, self.keys, self.situations)):
                if expression := self._each(items.situations, targets):
                    return Each(items, expression)
        for entities in among_entities(self.situations, self.keys, targets):
            if expression := self._each(entities.situations, targets):
                return Each(entities, expression)
        return None

    def _each(self, items: _Items, targets: Sequence[list[JsonValue]]) -> Expression | None:
        inner: list[Situation] = []
        values: list[JsonValue] = []
        for situation, target in zip(self.situations, targets, strict=True):
            try:
                found = items(situation)
            except NoValue:
                return None
            if len(found) != len(target):
                return None
            inner += found
            values += target
        return Explainer(inner, self._depth + 1).find(values) if inner else None


def rank(key: Key) -> tuple[bool, int, bool, Key]:
    """Sort key: what is after the call before what was, a short way before a long one, the call's own words first."""
    return key[0] == "before", len(key), key[0] not in {"arg", "new", "item"}, key


def _goes_on(key: Key) -> bool:
    return any(part.startswith(">") for part in key)
