"""The world that a run leaves behind: the check of an accomplished task, and slips that leave another world."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import JsonValue
from shop import KEYS, Shop
from tools import TOOLS, call

from dreamgym.state import changed_fields, fields
from dreamgym.types import JsonObject, ToolCall

Calls = tuple[ToolCall, ...]

GIVES_UP = "gives-up"
READS = {str(tool["name"]) for tool in TOOLS if tool["annotations"] == {"readOnlyHint": True}}
NEVER_TWICE = ("orders", "bookings")


def left_by(calls: Calls, world: int = 0) -> JsonObject:
    """The world after these calls in a new shop."""
    shop = Shop(world=world)
    for action in calls:
        call(shop, action)
    after: JsonObject = json.loads(json.dumps(shop.state()))
    shop.close()
    return after


def check(before: JsonObject, after: JsonObject) -> JsonObject:
    """A JSON Schema for the world of an accomplished task.

    Changed fields have their new values, every order and booking has its status, and there are no further ones.
    """
    changed = changed_fields(before, after)
    wanted = {path: value for path, value in fields(after) if path in changed or path.endswith("/status")}
    schema: JsonObject = {}
    for path, value in wanted.items():
        _require(schema, path[1:].split("/"), value)
    return _counted(schema, after)


def slips(calls: Calls) -> dict[str, Calls]:
    """Ways to make these calls badly; not every one of them fails."""
    writes = [i for i, action in enumerate(calls) if action.name not in READS]
    first, last = writes[0], writes[-1]
    return {
        GIVES_UP: calls[:first],
        "wrong-id": tuple(_of_another(action) for action in calls),
        "leaves-out": (*calls[:last], *calls[last + 1 :]),
        "wrong-order": tuple(reversed(calls)),
        "twice": (*calls[: first + 1], calls[first], *calls[first + 1 :]),
    }


def _of_another(action: ToolCall) -> ToolCall:
    """A call like this one, for the next order, booking, room or customer."""
    arguments = dict(action.arguments)
    name = next(name for name in (*KEYS.values(),) if name in arguments)
    letter, _, count = str(arguments[name]).partition("-")
    return ToolCall(name=action.name, arguments={**arguments, name: f"{letter}-{int(count) + 1}"})


def _require(schema: JsonObject, path: list[str], value: JsonValue) -> None:
    for name in path:
        properties = schema.setdefault("properties", {})
        required = schema.setdefault("required", [])
        assert isinstance(properties, dict)
        assert isinstance(required, list)
        if name not in required:
            required.append(name)
        inner = properties.setdefault(name, {})
        assert isinstance(inner, dict)
        schema = inner
    schema["const"] = value


def _counted(schema: JsonObject, world: Mapping[str, JsonValue]) -> JsonObject:
    for kind in NEVER_TWICE:
        entities, properties = world[kind], schema["properties"]
        assert isinstance(entities, dict)
        assert isinstance(properties, dict)
        part = properties[kind]
        assert isinstance(part, dict)
        part["maxProperties"] = len(entities)
    return schema
