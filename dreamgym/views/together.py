"""Finds which of several writes between two recorded answers changed what."""

from __future__ import annotations

from collections.abc import Sequence

from dreamgym.types import ToolCall
from dreamgym.views.answers import View
from dreamgym.views.edits import Edit, Item, edits_between
from dreamgym.views.expressions import NoPatternValue
from dreamgym.views.reads import makes_by_name
from dreamgym.views.session import Call, bindings_of

MOST_WRITES = 4
"""Most writes that are told apart."""
OF_WRITE = frozenset({"write", "said", "flat"})
"""Sources of values that come from a write."""


def told_apart(writes: Sequence[Call], read: ToolCall, base: View, new: View) -> list[tuple[Call, View, View]]:
    """The writes that changed something, each with the view before and after it; empty if the recording is ambiguous.

    A change belongs to the write whose values it shows. Nothing is concluded about a write without a change.

    Args:
        writes: the writes between two answers to a read.
        read: the call of that read.
        base: the answer before.
        new: the answer after.
    """
    if len(writes) > MOST_WRITES or type(base.style) is not type(new.style):
        return []
    bindings = [bindings_of(write, read) for write in writes]
    found = [edits_between(base.value, new.value, one) for one in bindings]
    edits = [one for one in found if one is not None]
    if len(edits) < len(writes) or len({*map(len, edits)}) != 1:
        return []
    owners: list[int] = []
    for ways in zip(*edits, strict=True):
        meant = [number for number, edit in enumerate(ways) if _is_of_write(edit)]
        if len(meant) > 1:  # writes with the same value: one that makes something adds items, another does the rest
            makes = ways[0].kind == "add"
            meant = [number for number in meant if makes_by_name(writes[number].action.name) == makes]
        if len(meant) != 1:
            return []
        owners += meant
    if owners != sorted(owners):
        return []
    views: list[tuple[Call, View, View]] = []
    value = base.value
    for number, one in enumerate(bindings):
        if number not in owners:
            continue
        before = value
        for owner, edit in zip(owners, edits[number], strict=True):
            if owner == number:
                try:
                    value = edit.apply(value, one)
                except NoPatternValue:
                    return []
        views.append((writes[number], base.with_value(before), base.with_value(value)))
    return views if views and views[-1][2].key() == new.key() else []


def _is_of_write(edit: Edit) -> bool:
    names = {name for pattern in edit.patterns for name in pattern.names}
    ways = [*edit.items, *(way for step in edit.path if not isinstance(step, str) for way in step)]
    names |= {way.name for way in ways if isinstance(way, Item)}
    return any(name[0] in OF_WRITE for name in names)
