"""How the answers of a tool follow from the call alone, and from what is known to be there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from dreamgym.state import same
from dreamgym.views.answers import View
from dreamgym.views.expressions import WORLDS, Bindings, NoPatternValue, ValueName
from dreamgym.views.patterns import Pattern, pattern_of
from dreamgym.views.sql import UNKNOWN

ABSENT = "absent"
"""The kind of a call that replaces a text which is nowhere."""
FormKey = tuple[str, frozenset[str] | None, str]
"""A tool, the names of the arguments of a call (None: any), and its kind: of its SQL, or `ABSENT`."""
Answered = tuple[View, Bindings, str]
"""A recorded answer, what it may be made of, and the canonical text of its call."""


@dataclass(frozen=True)
class Form:
    """How the answers of a tool are made."""

    pattern: Pattern
    like: View
    """One of them."""
    conditions: Mapping[ValueName, JsonValue] = field(default_factory=dict)
    """What all items that were looked up had in common: of others one does not know that the rest is the same."""

    def view(self, bindings: Bindings) -> View:
        """The answer of a call. Raises ValueError if it is not known."""
        for name, value in self.conditions.items():
            if name in bindings and not same(bindings[name], value):
                raise NoPatternValue(f"no recording shows an item with another {name}")
        return self.like.saying(self.pattern.evaluate(bindings))


def forms_of(examples: Mapping[FormKey, Sequence[Answered]], reads: frozenset[str]) -> dict[FormKey, Form]:
    """The forms that recorded answers show, also those of all calls of a tool."""
    found: dict[FormKey, Form] = {}
    of_any: dict[FormKey, list[Answered]] = defaultdict(list)
    for (tool, _, kind), known in examples.items():
        of_any[tool, None, kind] += known
    for key, shown in [*of_any.items(), *examples.items()]:
        known = [one for one in shown if not one[0].is_refusal] or shown
        like = known[0][0]
        if any(type(view.style) is not type(like.style) or view.is_error != like.is_error for view, _, _ in known):
            continue
        pattern = pattern_of([(view.said, bindings) for view, bindings, _ in known])
        distinct = len({canonical for _, _, canonical in known})
        if pattern is not None and _is_shown(key, pattern, distinct, reads):
            has_more = distinct > 1 and pattern.constants > 0
            found[key] = Form(pattern, like, _common([bindings for _, bindings, _ in known]) if has_more else {})
    return found


def _common(examples: Sequence[Bindings]) -> dict[ValueName, JsonValue]:
    return {
        name: value
        for name, value in examples[0].items()
        if name[0] == "of" and all(name in other and same(other[name], value) for other in examples)
    }


def _is_shown(key: FormKey, pattern: Pattern, distinct: int, reads: frozenset[str]) -> bool:
    """The recordings show that the answers of other calls have this form too.

    Two different calls do; one does if the answer is made of the call's values and of no number besides, and the tool
    is no read, or if what is known to be there explains it.
    """
    tool, _, kind = key
    if distinct > 1 or any(name[0] in WORLDS for name in pattern.names):
        return True
    if pattern.is_guess:
        return False
    if any(name[0] in {"of", "found", "count", "next"} for name in pattern.names):
        return True
    return (bool(kind) and not kind.endswith(UNKNOWN)) or tool not in reads
