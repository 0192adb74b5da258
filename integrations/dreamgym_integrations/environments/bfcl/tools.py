"""The benchmark's descriptions of functions as MCP tools with typed schemas, and the tool for the next request."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence

from pydantic import JsonValue

from dreamgym.types import JsonObject

NEXT = "next_request"
NEXT_REQUEST: JsonObject = {
    "name": NEXT,
    "description": (
        "Call this when everything that the user has asked for so far is done. It answers with the user's next "
        "message; after the last one the conversation is over."
    ),
    "inputSchema": {"type": "object", "properties": {}, "additionalProperties": False},
}
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}
_ENUM = re.compile(r"\[Enum\]:?\s*(\[.*?\])")
WIDER: JsonObject = {"close_ticket.ticket_id": ["integer", "string"], "send_message.message_id": "object"}
"""Right types of values for which the package's docs disagree with its ground truth and its answers."""
LARGEST: dict[str, float] = {
    **dict.fromkeys(("a", "b", "base", "number", "numbers[]", "part", "value", "whole"), sys.float_info.max),
    **dict.fromkeys(("precision", "exponent", "decimal_places"), 1000),
}
"""Largest absolute values: larger ones let a single call of the calculator block the server, some for minutes."""


def tools_of(docs: Sequence[JsonObject]) -> list[JsonObject]:
    """The tools of these functions, after the tool for the next request."""
    return [NEXT_REQUEST, *(tool_of(doc) for doc in docs)]


def tool_of(doc: JsonObject) -> JsonObject:
    """One function as a tool. Its answers may lack fields of their schema: the docs do not list the required ones."""
    name = str(doc["name"])
    arguments = schema_of(doc["parameters"], name)
    tool: JsonObject = {
        "name": name,
        "description": doc.get("description", ""),
        "inputSchema": {**arguments, "additionalProperties": False},
    }
    if "response" in doc:
        tool["outputSchema"] = {**schema_of(doc["response"], name), "type": "object"}
    return tool


def schema_of(described: JsonValue, place: str) -> JsonObject:
    """JSON Schema of a value that the benchmark describes in its own dialect; `place` is the path of the value."""
    if not isinstance(described, dict):
        return {}
    kept = ("description", "default", "enum", "required")
    schema: JsonObject = {key: described[key] for key in kept if key in described}
    kind = str(described.get("type", "any"))
    if (known := WIDER.get(place, _TYPES.get(kind, kind))) is not None:
        schema["type"] = known
    properties, items = described.get("properties"), described.get("items")
    if isinstance(properties, dict):
        schema["properties"] = {name: schema_of(part, f"{place}.{name}") for name, part in properties.items()}
    if isinstance(items, dict):
        schema["items"] = schema_of(items, f"{place}[]")
    if (largest := LARGEST.get(place.rpartition(".")[2])) is not None and known in {"integer", "number"}:
        schema |= {"minimum": -largest, "maximum": largest}
    return _with_enum(schema)


def _with_enum(schema: JsonObject) -> JsonObject:
    """The schema with the values that its description lists as an enum; for a list, an enum of the items."""
    listed = _ENUM.search(str(schema.get("description", "")))
    if listed is None:
        return schema
    try:
        values: JsonValue = json.loads(listed[1])
    except ValueError:
        return schema
    items = schema.get("items")
    if schema.get("type") != "array":
        return {**schema, "enum": values}
    return {**schema, "items": {**(items if isinstance(items, dict) else {}), "enum": values}}
