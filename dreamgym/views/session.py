"""The calls of a session, and the values that their answers may be made of."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from pydantic import JsonValue

from dreamgym.state import same
from dreamgym.types import ToolCall, Transition
from dreamgym.views.answers import LinesStyle, View, view_of
from dreamgym.views.edits import has_word
from dreamgym.views.expressions import Bindings, ValueName, as_word, leaves_of

Relation = frozenset[tuple[ValueName, ValueName]]
"""Pairs of arguments of two calls that have equal values, by their paths."""

_NUMBER = re.compile(r"(?<![\w.])\d{1,15}(?![\w.])")


@dataclass(frozen=True)
class Call:
    """One call and its answer."""

    action: ToolCall
    view: View | None
    is_write: bool

    @cached_property
    def canonical(self) -> str:
        """The call as one text."""
        return self.action.canonical()

    @cached_property
    def changes(self) -> bool:
        """True if the call may have changed the world."""
        return self.is_write and (self.view is None or not self.view.is_refusal)


def calls_of(session: Iterable[Transition], reads: frozenset[str]) -> list[Call]:
    """The steps of a session as calls. A step that ended its episode has no view: its answer is true of one task."""
    return [
        Call(one.action, None if one.result.done else view_of(one.result), one.action.name not in reads)
        for one in session
    ]


def bindings_of(write: Call, read: ToolCall) -> Bindings:
    """The values that a view after a write may be made of: those of the read, of the write and of its answer."""
    bindings: dict[ValueName, JsonValue] = dict(arguments_of("call", read))
    bindings.update(arguments_of("write", write.action))
    for name, value in write.action.arguments.items():
        if isinstance(value, list) and value and all(isinstance(row, list) for row in value):
            bindings["flat", name] = [cell for row in value if isinstance(row, list) for cell in row]
    if write.view is not None:
        if isinstance(write.view.style, LinesStyle):
            numbers = _NUMBER.findall(write.view.observation)[:8]
            bindings.update({("said", str(i)): int(number) for i, number in enumerate(numbers)})
        else:
            bindings.update(leaves_of("said", write.view.value))
    return bindings


def arguments_of(root: str, action: ToolCall) -> Iterator[tuple[ValueName, JsonValue]]:
    """The bindings of a call's arguments and their parts; for a path, its last part too."""
    for name, value in leaves_of(root, action.arguments):
        yield name, value
        if isinstance(value, str) and "/" in value.strip("/"):
            yield (*name, "last part"), value.rstrip("/").rpartition("/")[2]


def relation_of(write: ToolCall, read: ToolCall) -> Relation:
    """The pairs of arguments with equal values, or in which the read's value is a folder above the write's."""
    one, two = dict(leaves_of("write", write.arguments)), dict(leaves_of("read", read.arguments))
    found: set[tuple[ValueName, ValueName]] = set()
    for path, value in one.items():
        for other, asked in two.items():
            if isinstance(value, bool) or value in (None, "", [], {}) or isinstance(value, dict | list):
                continue
            if same(value, asked):
                found.add((path, other))
            elif isinstance(value, str) and isinstance(asked, str) and value.startswith(f"{asked.rstrip('/')}/"):
                found.add(((*path, "in"), other))
    return frozenset(found)


def blamed_in(refused: Call) -> dict[ValueName, JsonValue]:
    """The arguments of a refused call that its refusal names; all single values if it names none."""
    assert refused.view is not None
    text = refused.view.observation
    arguments = dict(leaves_of("call", refused.action.arguments))
    named: dict[ValueName, JsonValue] = {
        name: value
        for name, value in arguments.items()
        if isinstance(value, str | int) and not isinstance(value, bool) and len(str(value)) > 1 and _says(text, value)
    }
    return named or {name: value for name, value in arguments.items() if not isinstance(value, dict | list)}


def mentions(call: Call, values: Collection[JsonValue]) -> bool:
    """True if one of these values is an argument of the call, or a part of an argument or of its answer."""
    said = [value for _, value in leaves_of("write", call.action.arguments)]
    text = ""
    if call.view is not None:
        said += [value for _, value in leaves_of("said", call.view.value)]
        text = call.view.observation if isinstance(call.view.style, LinesStyle) else ""
    return any(_says(text, two) or any(same(one, two) for one in said) for two in values)


def _says(text: str, value: JsonValue) -> bool:
    word = as_word(value)
    return bool(word) and has_word(text, str(word))
