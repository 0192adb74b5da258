"""What a listing shows of the items that a call names, or searches for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pydantic import JsonValue

from dreamgym.state import same
from dreamgym.types import JsonObject, ToolCall
from dreamgym.views.expressions import ValueName, is_int

MOST_KINDS = 8
"""Most different values of a field whose items are counted apart."""


def items_of(value: JsonValue) -> list[JsonObject]:
    """The objects of a list, alone or in the only list with objects of an object; empty if there is none."""
    if isinstance(value, dict):
        lists = [part for part in value.values() if isinstance(part, list) and any(isinstance(x, dict) for x in part)]
        value = lists[0] if len(lists) == 1 else []
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def is_of(listing: ToolCall, action: ToolCall) -> bool:
    """False if an argument says that the call is about something else than the listing."""
    shared = listing.arguments.keys() & action.arguments.keys()
    return listing.name != action.name and all(same(listing.arguments[one], action.arguments[one]) for one in shared)


def bindings_from(listing: ToolCall, value: JsonValue, action: ToolCall) -> Iterator[tuple[ValueName, JsonValue]]:
    """What an answer may be made of: the item that a call names, those that contain what it asks for, and their number.

    Args:
        listing: the call that lists.
        value: what it shows now.
        action: the call that is answered.
    """
    items = items_of(value)
    asked = {name: one for name, one in action.arguments.items() if isinstance(one, str | int) and one != ""}
    named = [item for item in items if any(_names(name, one, item) for name, one in asked.items())]
    if len(named) == 1:
        yield from ((("of", listing.name, name), part) for name, part in named[0].items())
    yield from _counts(listing, items)
    for name, text in asked.items():
        if isinstance(text, str) and name not in listing.arguments:
            found = _containing(items, text)
            if found is not None:
                yield ("found", listing.name, name), found
                yield ("found", listing.name, name, "count"), len(found)


def _names(name: str, value: JsonValue, item: JsonObject) -> bool:
    """An argument names an item: by a text of it, or by a number in the field that the argument is named after."""
    if isinstance(value, str):
        return any(same(part, value) for part in item.values())
    return any(same(part, value) and name.lower().endswith(field.lower()) for field, part in item.items())


def _containing(items: list[JsonObject], text: str) -> list[JsonValue] | None:
    """The items with a text in one of their fields, each with the position of it there.

    None if that depends on what no recording shows: on upper and lower case, or on whether a text is found twice.
    """
    found: list[JsonValue] = []
    for item in items:
        held = [part for part in item.values() if isinstance(part, str) and text.lower() in part.lower()]
        if held and (len(held) > 1 or held[0].count(text) != 1 or held[0].lower().count(text.lower()) != 1):
            return None
        if held:
            found.append({"position": held[0].index(text), **item})
    return found


def _counts(listing: ToolCall, items: list[JsonObject]) -> Iterator[tuple[ValueName, JsonValue]]:
    """How many items there are, how many have each of the few values of a field, and the next number of a field."""
    yield ("count", listing.name), len(items)
    fields: dict[str, list[JsonValue]] = {}
    for item in items:
        for name, value in item.items():
            fields.setdefault(name, []).append(value)
    for name, values in fields.items():
        numbers = [value for value in values if is_int(value)]
        if len(numbers) == len(values) == len(items):
            yield ("next", listing.name, name), max(value for value in numbers if isinstance(value, int)) + 1
        kinds = Counter(value for value in values if isinstance(value, str))
        if len(kinds) <= MOST_KINDS and len(kinds) < len(values):
            yield from ((("count", listing.name, name, kind), count) for kind, count in kinds.items())
