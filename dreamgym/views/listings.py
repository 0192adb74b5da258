"""Listings: which of their items a call names or searches for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator

from pydantic import JsonValue

from dreamgym.state import same
from dreamgym.types import JsonObject, ToolCall
from dreamgym.views.expressions import ValueName, is_int

PAIR = re.compile(r"([\w.-]{1,60}): (.*\S)")
"""A line with a key and its value."""
MOST_KINDS = 8
"""Most different values of a field for which items are counted by value."""


def items_of(value: JsonValue) -> list[JsonObject]:
    """The items that an answer lists; empty if it lists none.

    Items are the objects of a list that is the answer or the only list of objects in it, the lines `key: value` of a
    text, or lines of which one is marked.
    """
    if isinstance(value, dict):
        lists = [part for part in value.values() if isinstance(part, list) and any(isinstance(x, dict) for x in part)]
        if not lists and value.keys() == {"items", "marked"} and isinstance(value["items"], list):
            return [{"item": item, "marked": item == value["marked"]} for item in value["items"]]
        value = lists[0] if len(lists) == 1 else []
    if not isinstance(value, list):
        return []
    pairs = [PAIR.fullmatch(line) for line in value if isinstance(line, str)]
    if len(pairs) == len(value) > 1 and all(pairs):
        return [{"key": pair[1], "value": pair[2]} for pair in pairs if pair is not None]
    return [item for item in value if isinstance(item, dict)]


def identified(listing: ToolCall, value: JsonValue, action: ToolCall) -> Iterator[str]:
    """The arguments of a call that name an item by a field with a different value in each item."""
    items = items_of(value)
    for field in _fields(items):
        held = [repr(item[field]) for item in items]
        if len(set(held)) == len(held):
            for name, one in action.arguments.items():
                is_key = isinstance(one, str) or name.lower().endswith(field.lower())
                if name not in listing.arguments and is_key and repr(one) in held:
                    yield name


def is_of(listing: ToolCall, action: ToolCall) -> bool:
    """True if a call of another tool may be about a listing: the arguments that both have are equal."""
    shared = listing.arguments.keys() & action.arguments.keys()
    return listing.name != action.name and all(same(listing.arguments[one], action.arguments[one]) for one in shared)


def bindings_from(listing: ToolCall, value: JsonValue, action: ToolCall) -> Iterator[tuple[ValueName, JsonValue]]:
    """Bindings for an answer: the item that a call names, the items that contain a text of the call, and their number.

    Args:
        listing: the call that lists.
        value: the value that the listing shows now.
        action: the call that is answered.
    """
    items = items_of(value)
    asked = {name: one for name, one in action.arguments.items() if isinstance(one, str | int) and one != ""}
    keys = {name for name in _fields(items) if len({repr(item[name]) for item in items}) == len(items)}
    named = [item for item in items if any(_names(name, one, item, keys) for name, one in asked.items())]
    named = named or [item for item in items if any(_names(name, one, item, item) for name, one in asked.items())]
    if len(named) == 1:
        yield from ((("of", listing.name, name), part) for name, part in named[0].items())
    yield from _counts(listing, items)
    for name, text in asked.items():
        if isinstance(text, str) and name not in listing.arguments:
            found = _containing(items, text)
            if found is not None:
                yield ("found", listing.name, name), found
                yield ("found", listing.name, name, "count"), len(found)


def _names(name: str, value: JsonValue, item: JsonObject, fields: Container[str]) -> bool:
    """True if an argument names an item: by a text in it, or by a number in the field that it is named after."""
    return any(
        field in fields and same(part, value) and (isinstance(value, str) or name.lower().endswith(field.lower()))
        for field, part in item.items()
    )


def _fields(items: list[JsonObject]) -> list[str]:
    """The fields that all items have."""
    return [name for name in (items[0] if items else ()) if all(name in item for item in items)]


def _containing(items: list[JsonObject], text: str) -> list[JsonValue] | None:
    """The items with a text in one of their fields, each with the position of the text there.

    None if the result depends on upper and lower case, or on whether a text is found twice: no recording shows that.
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
            yield ("next", listing.name, name), max(numbers) + 1
        kinds = Counter(value for value in values if isinstance(value, str))
        if len(kinds) <= MOST_KINDS and len(kinds) < len(values):
            yield from ((("count", listing.name, name, kind), count) for kind, count in kinds.items())
