"""Forms: how the answers of a tool follow from the call alone, and from what is known to exist."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import JsonValue

from dreamgym.state import same
from dreamgym.views.answers import View
from dreamgym.views.expressions import WORLDS, Bindings, NoPatternValue, ValueName
from dreamgym.views.patterns import Pattern, pattern_of
from dreamgym.views.reads import acts_by_name
from dreamgym.views.sql import UNKNOWN

ABSENT = "absent"
"""The kind of a call that replaces a text that occurs nowhere."""
FormKey = tuple[str, frozenset[str] | None, str]
"""A tool, the names of a call's arguments (None: any), and the kind of the call: that of its SQL, or `ABSENT`."""
THERE: ValueName = ("there",)
"""The binding that lists the arguments of a call that name an existing item."""


class Answered(NamedTuple):
    """A recorded answer."""

    view: View
    bindings: Bindings
    """The values that it may be made of."""
    call: str
    """The canonical text of its call."""
    world: str
    """The world of its session."""


@dataclass(frozen=True)
class CallForm:
    """A rule for the answers of a tool."""

    pattern: Pattern
    like: View
    """One of the answers."""
    conditions: Mapping[ValueName, JsonValue] = field(default_factory=dict)
    """Values that all looked-up items had in common. For an item with others, the rest of the answer may differ."""

    there: frozenset[str] = frozenset()
    """Arguments that named an existing item, for each recorded call. If all calls agree, a call with others may be
    refused, so its answer is not known."""
    worlds: frozenset[str] = frozenset()
    """The worlds of the recordings that show it."""

    def view(self, bindings: Bindings) -> View:
        """The answer of a call. Raises ValueError if it is not known."""
        if THERE in bindings and len(self.there) == 1 and repr(bindings[THERE]) not in self.there:
            raise NoPatternValue("no recorded call names what is there, or not there, as this one")
        for name, value in self.conditions.items():
            if name in bindings and not same(bindings[name], value):
                raise NoPatternValue(f"no recording shows an item with another {name}")
        return self.like.saying(self.pattern.evaluate(bindings))


def forms_of(examples: Mapping[FormKey, Sequence[Answered]], reads: frozenset[str]) -> dict[FormKey, CallForm]:
    """The forms that recorded answers show: for all calls of a tool, and for calls with the same arguments."""
    found: dict[FormKey, CallForm] = {}
    of_any: dict[FormKey, list[Answered]] = defaultdict(list)
    for (tool, _, kind), known in examples.items():
        of_any[tool, None, kind] += known
    for key, shown in [*of_any.items(), *examples.items()]:
        form = _form(key, [one for one in shown if not one.view.is_refusal] or shown, reads)
        if form is not None:
            found[key] = form
            continue
        kinds: dict[str, list[Answered]] = defaultdict(list)
        for one in shown:
            kinds[repr(one.bindings.get(THERE))].append(one)
        for there, some in kinds.items() if len(kinds) > 1 else ():
            form = _form(key, some, reads)
            if form is not None:
                found[(*key[:2], key[2] + there)] = form
    return found


def _form(key: FormKey, known: Sequence[Answered], reads: frozenset[str]) -> CallForm | None:
    like = known[0].view
    if any(type(one.view.style) is not type(like.style) or one.view.is_error != like.is_error for one in known):
        return None
    pattern = pattern_of([(one.view.said, one.bindings) for one in known])
    is_one_call = key[1] == frozenset() and key[0] not in reads  # all calls without arguments are the same
    distinct = len(known if is_one_call else {one.call for one in known})
    if pattern is None or not _is_shown(key, pattern, distinct, reads):
        return None
    common = _common([one.bindings for one in known]) if distinct > 1 and pattern.constants > 0 else {}
    there = frozenset(repr(one.bindings[THERE]) for one in known if THERE in one.bindings)
    return CallForm(pattern, like, common, there, frozenset(one.world for one in known))


def _common(examples: Sequence[Bindings]) -> dict[ValueName, JsonValue]:
    return {
        name: value
        for name, value in examples[0].items()
        if name[0] == "of" and all(name in other and same(other[name], value) for other in examples)
    }


def _is_shown(key: FormKey, pattern: Pattern, distinct: int, reads: frozenset[str]) -> bool:
    """True if the recordings show that the answers of other calls have this form too.

    Two different calls show it, or one without arguments that is recorded twice, and so do values from a copy of the
    server's world. It takes three calls if a number does not depend on them, because two may be equal by chance. One
    call whose pattern is not a guess shows it if the tool's name says that it does something, or if a listing or the
    kind of the call explains the answer.
    """
    tool, _, kind = key
    if tool in reads and pattern.is_empty:
        return False  # an empty result says nothing about other calls
    if distinct > (2 if pattern.has_number else 1) or any(name[0] in WORLDS for name in pattern.names):
        return True
    if pattern.is_guess:
        return False
    if any(name[0] in {"of", "found", "count", "next"} for name in pattern.names):
        return True
    return (bool(kind) and not kind.endswith(UNKNOWN)) or (tool not in reads and acts_by_name(tool))
