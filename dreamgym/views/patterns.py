"""Patterns: how values in an answer follow from the values that a call can refer to.

A pattern is learned from examples, each a value and the bindings of its call. A node of it keeps every expression that
gives the value in all examples; where there is none, its parts are patterns of their own. The best expression comes
first: a value of the call's own, then a calculation, then a constant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice, product

from pydantic import JsonValue

from dreamgym.state import same

ValueName = tuple[str, ...]
"""A value's name: where it comes from, and its path there, such as `("call", "title")`."""
Bindings = Mapping[ValueName, JsonValue]
"""The values that a call can refer to."""

WORLDS = frozenset({"sql", "grid"})
"""Where values come from that a copy of the server's world tells: tables, or sheets of cells."""
LISTS = frozenset({"seen"}) | WORLDS
"""Where values come from that may be empty lists."""
VARIANTS = 64
"""Most ways to read one text that are kept."""
MOST_SAID = 60
"""Longest constant in one answer that is believed to be the same in every call, in characters."""
MOST_NUMBERS = 32
"""Most values of a call among which the larger of two numbers is looked for."""
COUNTS = ("count", "length", "total", "size", "number", "len")
"""Last words of the names of fields that count something."""
_DIGIT = re.compile(r"\d")


class NoPatternValue(ValueError):
    """A pattern has no value for a call."""


@dataclass(frozen=True)
class FixedValue:
    """A value that does not depend on the call."""

    value: str
    """As JSON-like text of Python, which compares by type."""
    of: JsonValue = field(compare=False, hash=False)

    def evaluate(self, bindings: Bindings) -> JsonValue:
        return self.of


@dataclass(frozen=True)
class Slot:
    """The value of a name."""

    name: ValueName

    def evaluate(self, bindings: Bindings) -> JsonValue:
        if self.name not in bindings:
            raise NoPatternValue(f"nothing is bound to {self.name}")
        return bindings[self.name]


@dataclass(frozen=True)
class Offset:
    """The number of a name and a constant."""

    name: ValueName
    plus: int

    def evaluate(self, bindings: Bindings) -> JsonValue:
        value = bindings.get(self.name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise NoPatternValue(f"no number is bound to {self.name}")
        return value + self.plus


@dataclass(frozen=True)
class Largest:
    """The larger one of two numbers of a call: a total that grows with what is counted."""

    one: ValueName
    two: ValueName

    def evaluate(self, bindings: Bindings) -> JsonValue:
        values = [bindings.get(self.one), bindings.get(self.two)]
        if not all(map(is_int, values)):
            raise NoPatternValue(f"no numbers are bound to {self.one} and {self.two}")
        return max(value for value in values if isinstance(value, int))


@dataclass(frozen=True)
class Words:
    """A text in which some words are values of names."""

    parts: tuple[str | ValueName | Offset, ...]

    @property
    def count(self) -> int:
        """How many of its words are values."""
        return sum(not isinstance(part, str) for part in self.parts)

    def evaluate(self, bindings: Bindings) -> JsonValue:
        return "".join(part if isinstance(part, str) else self._word(part, bindings) for part in self.parts)

    @staticmethod
    def _word(part: ValueName | Offset, bindings: Bindings) -> str:
        word = as_word((part if isinstance(part, Offset) else Slot(part)).evaluate(bindings))
        if word is None:
            raise NoPatternValue(f"the value of {part} is no word")
        return word


Expression = FixedValue | Slot | Offset | Largest | Words


@dataclass(frozen=True)
class Pattern:
    """One node."""

    options: tuple[Expression, ...]
    own: Expression | None = None
    """The one of them that the name of this field speaks for: a value of the same name, or a count for a length."""
    fields: Mapping[str, Pattern] | None = None
    items: tuple[Pattern, ...] | None = None

    @classmethod
    def of(cls, value: JsonValue, bindings: Bindings, field: str = "") -> Pattern:
        """The pattern of one example, or of the part of it in a field."""
        options = tuple(_expressions(value, bindings))
        own = next((one for one in options if _is_own(one, field)), None)
        if isinstance(value, dict):
            return cls(options, own, fields={name: cls.of(part, bindings, name) for name, part in value.items()})
        if isinstance(value, list):
            return cls(options, own, items=tuple(cls.of(part, bindings) for part in value))
        return cls(options, own)

    def unified(self, other: Pattern) -> Pattern | None:
        """The pattern of the examples of both; None if there is none."""
        shared = tuple(option for option in self.options if option in set(other.options))
        fields = self._unified_fields(other)
        items = self._unified_items(other)
        if not shared and fields is None and items is None:
            return None
        own = self.own if self.own in shared and self.own == other.own else None
        return Pattern(shared, own, fields, items)

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
        """The value for a call. Raises NoPatternValue, also if expressions that fit all examples differ."""
        best = self._best()
        if best:
            values = [option.evaluate(bindings) for option in best]
            if not all(same(values[0], value) for value in values):
                raise NoPatternValue("the examples do not tell which of several values it is")
            return values[0]
        if self.fields is not None:
            return {name: part.evaluate(bindings) for name, part in self.fields.items()}
        if self.items is not None:
            return [part.evaluate(bindings) for part in self.items]
        raise NoPatternValue("no expression is left")

    def _best(self) -> tuple[Expression, ...]:
        """The expressions that are used: that of the same name, else all that are no constant, else the constant."""
        if self.own is not None:
            return (self.own,)
        slots = [option for option in self.options if isinstance(option, Slot | Offset)]
        of_world = [option for option in slots if option.name[0] in WORLDS]  # it alone knows what is there now
        words = [option for option in self.options if isinstance(option, Words)]
        most = max((option.count for option in words), default=0)
        longest = [option for option in words if option.count == most]
        constants = self.options if self.fields is None and self.items is None else ()
        of_two = [option for option in self.options if isinstance(option, Largest)]
        return tuple(of_world or slots or longest or of_two or constants)

    def chosen(self) -> Iterator[Expression]:
        """The expressions that `evaluate` uses."""
        best = self._best()
        if best:
            yield from best
            return
        parts = self.items if self.fields is None else self.fields.values()
        for part in parts or ():
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
    def is_guess(self) -> bool:
        """It says more than a single example shows: a constant of it holds a number, or reads like content.

        One answer does not tell which of its words are the same in every call. A sentence that confirms a call is; of
        several lines, or of a field with several words, one cannot know.
        """
        between = " " if self.fields is not None or self.items is not None else "\n"
        return any(
            between in text or len(text) > MOST_SAID or _DIGIT.search(text)
            for option in self.chosen()
            for text in _constants(option)
        )


def _constants(option: Expression) -> Iterator[str]:
    if isinstance(option, Words):
        yield "".join(part for part in option.parts if isinstance(part, str))
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


def leaves_of(root: str, value: JsonValue, path: ValueName = ()) -> Iterator[tuple[ValueName, JsonValue]]:
    """The bindings of a value: itself and every part, each with the path that leads to it."""
    if path:
        yield (root, *path), value
    if isinstance(value, dict):
        for name, part in value.items():
            yield from leaves_of(root, part, (*path, name))
    elif isinstance(value, list):
        for position, part in enumerate(value[:32]):
            yield from leaves_of(root, part, (*path, str(position)))


def is_int(value: object) -> bool:
    """True if a value is a whole number; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def as_word(value: JsonValue) -> str | None:
    """A text or number as it stands in a text; None for other values."""
    if isinstance(value, bool) or value is None or isinstance(value, dict | list):
        return None
    return value if isinstance(value, str) else repr(value)


def _is_own(option: Expression, field: str) -> bool:
    """A field is named after the argument that it shows, or counts."""
    if isinstance(option, Slot):
        return bool(field) and option.name[0] != "known" and option.name[1:] == (field,)
    return isinstance(option, Offset) and option.name == ("known", "calls") and field.lower().endswith(COUNTS)


def _expressions(value: JsonValue, bindings: Bindings) -> Iterator[Expression]:
    """Every expression that gives a value, the best first."""
    is_empty = value in ("", None, [], {})
    yield from (
        Slot(name) for name, bound in bindings.items() if same(bound, value) and (not is_empty or name[0] in LISTS)
    )
    if isinstance(value, int) and not isinstance(value, bool):
        yield from (
            Offset(name, value - bound)
            for name, bound in bindings.items()
            if isinstance(bound, int) and not isinstance(bound, bool) and abs(value - bound) <= 1 and name[0] == "known"
        )
        yield from _largest(value, bindings)
    if isinstance(value, str) and value:
        yield from _texts(value, bindings)
    yield FixedValue(repr(value), value)


def _largest(value: int, bindings: Bindings) -> Iterator[Largest]:
    numbers = [
        (name, bound)
        for name, bound in islice(bindings.items(), MOST_NUMBERS)
        if name[0] == "call" and isinstance(bound, int) and not isinstance(bound, bool)
    ]
    yield from (Largest(one, two) for (one, a), (two, b) in combinations(numbers, 2) if max(a, b) == value)


def _texts(text: str, bindings: Bindings) -> Iterator[Words]:
    """Every way to read a text as words of names, those with most names first."""
    names: dict[str, list[ValueName | Offset]] = {}
    for name, bound in bindings.items():
        word = as_word(bound)
        if word is not None and (len(word) > 1 or word.isdigit()) and len(word) < len(text) and word in text:
            names.setdefault(word, []).append(name)
        if name[0] == "known" and isinstance(bound, int) and not isinstance(bound, bool):
            names.setdefault(str(bound + 1), []).append(Offset(name, 1))
    if not names:
        return
    words = sorted(names, key=len, reverse=True)
    pattern = re.compile("|".join(rf"(?<!\w)(?<!\d\.){re.escape(word)}(?!\w)(?!\.\d)" for word in words[:16]))
    pieces: list[str] = []
    found: list[str] = []
    last = 0
    for match in pattern.finditer(text):
        pieces.append(text[last : match.start()])
        found.append(match[0])
        last = match.end()
    pieces.append(text[last:])
    if not found:
        return
    kinds = list(dict.fromkeys(found))[:6]
    choices = [[*names[word][:4], word] for word in kinds]
    variants = islice(product(*choices), VARIANTS)
    for variant in sorted(variants, key=lambda chosen: sum(isinstance(one, str) for one in chosen)):
        if all(isinstance(one, str) for one in variant):
            continue
        as_chosen = dict(zip(kinds, variant, strict=True))
        parts: list[str | ValueName | Offset] = []
        for piece, word in zip(pieces, [*found, ""], strict=True):
            for part in (piece, as_chosen.get(word, word)):
                if isinstance(part, str) and parts and isinstance(parts[-1], str):
                    parts[-1] += part
                elif part:
                    parts.append(part)
        yield Words(tuple(parts))
