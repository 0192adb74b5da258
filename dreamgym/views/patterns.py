"""Patterns: how values in an answer follow from the values that a call can refer to.

A pattern is learned from examples, each a value and the bindings of its call. Each node keeps every expression that
gives the value in all examples. If there is none, the parts of the value have patterns of their own. The best
expression comes first: a value of the call's own, then a calculation, then a constant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from dreamgym.state import same
from dreamgym.views.expressions import (
    COUNTING,
    WORLDS,
    Bindings,
    Expression,
    FixedValue,
    Largest,
    NoPatternValue,
    Offset,
    Slot,
    ValueName,
    Words,
    expressions_of,
    is_own,
    leaves_of,
)

MOST_SAID = 60
"""Longest constant in one answer that is believed to be the same in every call, in characters."""
_DIGIT = re.compile(r"\d")


@dataclass(frozen=True)
class Pattern:
    """One node of a pattern."""

    options: tuple[Expression, ...]
    own: Expression | None = None
    """The option that the name of this field suggests: a value of the same name, or a count for a length."""
    fields: Mapping[str, Pattern] | None = None
    items: tuple[Pattern, ...] | None = None
    each: Mapping[ValueName, Pattern | None] = field(default_factory=dict)
    """The pattern of the items in a list of found items, by the list's name. None: no example has an item."""

    @classmethod
    def of(cls, value: JsonValue, bindings: Bindings, field: str = "") -> Pattern:
        """The pattern of one example, or of the part of it in a field."""
        options = tuple(expressions_of(value, bindings))
        own = next((one for one in options if is_own(one, field)), None)
        if isinstance(value, dict):
            return cls(options, own, fields={name: cls.of(part, bindings, name) for name, part in value.items()})
        if isinstance(value, list):
            items = tuple(cls.of(part, bindings) for part in value)
            return cls(options, own, items=items, each=dict(cls._each(value, bindings)))
        return cls(options, own)

    @classmethod
    def _each(cls, value: list[JsonValue], bindings: Bindings) -> Iterator[tuple[ValueName, Pattern | None]]:
        """For each list of found items, the pattern with which the value shows them one by one."""
        for name, found in bindings.items():
            if name[0] == "found" and isinstance(found, list) and len(found) == len(value):
                told: Pattern | None = None
                for number, (part, item) in enumerate(zip(value, found, strict=True)):
                    one = cls.of(part, _of_item(bindings, item))
                    told = one if number == 0 else told and told.unified(one)
                if told is not None or not value:
                    yield name, told

    def unified(self, other: Pattern) -> Pattern | None:
        """The pattern that fits the examples of both; None if there is none."""
        shared = tuple(option for option in self.options if option in set(other.options))
        fields = self._unified_fields(other)
        items = self._unified_items(other)
        each = dict(self._unified_each(other))
        if not shared and fields is None and items is None and not each:
            return None
        own = self.own if self.own in shared and self.own == other.own else None
        return Pattern(shared, own, fields, items, each)

    def _unified_each(self, other: Pattern) -> Iterator[tuple[ValueName, Pattern | None]]:
        for name in self.each.keys() & other.each.keys():
            one, two = self.each[name], other.each[name]
            both = one.unified(two) if one is not None and two is not None else one or two
            if both is not None or (one is None and two is None):
                yield name, both

    def _unified_fields(self, other: Pattern) -> Mapping[str, Pattern] | None:
        if self.fields is None or other.fields is None or list(self.fields) != list(other.fields):
            return None
        found: dict[str, Pattern] = {}
        for name, part in self.fields.items():
            both = part.unified(other.fields[name])
            if both is None:
                return None
            found[name] = both
        return found

    def _unified_items(self, other: Pattern) -> tuple[Pattern, ...] | None:
        if self.items is None or other.items is None or len(self.items) != len(other.items):
            return None
        found = [one.unified(two) for one, two in zip(self.items, other.items, strict=True)]
        return None if any(part is None for part in found) else tuple(part for part in found if part is not None)

    def evaluate(self, bindings: Bindings) -> JsonValue:
        """The value for a call. Raises NoPatternValue, also if expressions that fit all examples disagree."""
        best = self._best()
        if best:
            # what a write has said about the field counts beside its own value: a read may be of another item
            said = [one for one in self.options if isinstance(one, Slot) and one.name[0] == "said"] if self.own else []
            values = [option.evaluate(bindings) for option in (*best, *said)]
            if not all(same(values[0], value) for value in values):
                raise NoPatternValue("the examples do not tell which of several values it is")
            return values[0]
        if self.each:
            return self._evaluate_each(bindings)
        if self.fields is not None:
            return {name: part.evaluate(bindings) for name, part in self.fields.items()}
        if self.items is not None:
            return [part.evaluate(bindings) for part in self.items]
        raise NoPatternValue("no expression is left")

    def _evaluate_each(self, bindings: Bindings) -> JsonValue:
        made: list[JsonValue] = []
        for name, told in self.each.items():
            found = bindings.get(name)
            if not isinstance(found, list) or (found and told is None):
                raise NoPatternValue(f"nothing is bound to {name}")
            value: JsonValue = [told.evaluate(_of_item(bindings, item)) for item in found] if told is not None else []
            made.append(value)
        if not all(same(made[0], value) for value in made):
            raise NoPatternValue("the examples do not tell which of several lists it is")
        return made[0]

    def _best(self) -> tuple[Expression, ...]:
        """The expressions that are used: the field's own, else the best that are not constants, else constants."""
        if self.own is not None:
            return (self.own,)
        slots = [option for option in self.options if isinstance(option, Slot | Offset)]
        of_world = [option for option in slots if option.name[0] in WORLDS]  # it alone knows the current content
        words = [option for option in self.options if isinstance(option, Words)]
        most = max((option.count for option in words), default=0)
        longest = [option for option in words if option.count == most]
        longest = [option for option in longest if "found" in option.sources] or longest
        longest = [option for option in longest if not option.sources & COUNTING] or longest
        constants = self.options if self.fields is None and self.items is None and not self.each else ()
        slots = [option for option in slots if option.name[0] not in COUNTING] or slots
        of_two = [option for option in self.options if isinstance(option, Largest)]
        return tuple(of_world or slots or longest or of_two or constants)

    def chosen(self) -> Iterator[Expression]:
        """The expressions that `evaluate` uses."""
        best = self._best()
        if best:
            yield from best
            return
        if self.each:
            yield from (Slot(name) for name in self.each)
            parts = [told for told in self.each.values() if told is not None]
        else:
            parts = list(self.items or () if self.fields is None else self.fields.values())
        for part in parts:
            yield from part.chosen()

    @property
    def names(self) -> frozenset[ValueName]:
        """The names that the value is made of."""
        found: set[ValueName] = set()
        for option in self.chosen():
            if isinstance(option, Slot | Offset):
                found.add(option.name)
            elif isinstance(option, Largest):
                found |= {option.one, option.two}
            elif isinstance(option, Words):
                found |= {
                    part.name if isinstance(part, Offset) else part
                    for part in option.parts
                    if part and not isinstance(part, str)
                }
        return frozenset(found)

    @property
    def constants(self) -> int:
        """How many of its parts do not depend on the call."""
        return sum(isinstance(option, FixedValue) for option in self.chosen())

    @property
    def has_number(self) -> bool:
        """True if a number is a part of it that does not depend on the call."""
        return any(_DIGIT.search(text) for option in self.chosen() for text in _constants(option))

    @property
    def is_empty(self) -> bool:
        """True if a part of it is an empty list or object in every example, and nothing explains that."""
        if self._best() or self.each:
            return False
        parts = list(self.items or () if self.fields is None else self.fields.values())
        return not parts or any(part.is_empty for part in parts)

    @property
    def is_guess(self) -> bool:
        """True if a single example does not prove the pattern: a constant contains a number, or reads like content.

        One answer does not show which of its words are the same in every call. A sentence that confirms a call has such
        words; several lines, or several words in a field, may be content.
        """
        between = " " if self.fields is not None or self.items is not None else "\n"
        return any(
            between in text or len(text) > MOST_SAID or _DIGIT.search(text)
            for option in self.chosen()
            for text in _constants(option)
        )


def _of_item(bindings: Bindings, item: JsonValue) -> Bindings:
    """The values that the pattern of one found item may use."""
    return {**{name: value for name, value in bindings.items() if name[0] == "call"}, **dict(leaves_of("item", item))}


def _constants(option: Expression) -> Iterator[str]:
    if isinstance(option, Words):
        yield "".join(part for part in option.parts if isinstance(part, str)).strip()
    elif isinstance(option, FixedValue):
        yield option.of if isinstance(option.of, str) else option.value


def pattern_of(examples: Sequence[tuple[JsonValue, Bindings]]) -> Pattern | None:
    """The pattern that gives the value of every example; None if there is none."""
    found: Pattern | None = None
    for number, (value, bindings) in enumerate(examples):
        one = Pattern.of(value, bindings)
        found = one if number == 0 else found and found.unified(one)
        if found is None:
            return None
    if found is None:
        return None
    try:
        return found if all(same(found.evaluate(bindings), value) for value, bindings in examples) else None
    except NoPatternValue:
        return None
