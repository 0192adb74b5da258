"""The words in which a server refuses faulty arguments: learned from its recorded refusals, and used for new calls.

Words are learned for each kind of fault: the schema's keyword, the types that the field may have, and so on. They have
gaps for the names of the field and of the tool, the title of the tool's schema, the keyword's limit and the field's
value. A text that shows anything else of its call is not used. A kind of fault that was refused in two ways has none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from pydantic import JsonValue

from dreamgym.schema import FieldFault, Schema
from dreamgym.types import ToolCall

_GAP = re.compile(r"\{(field|limit|value|tool|title)\}")
ANY = "any"
"""The kind of all faults of a server that gives the messages of JSON Schema without the field."""
_JOINED = re.compile(r"[a-z\d_][A-Z]")
"""Matches a title such as `bookArguments`, which no text contains by chance."""
_PER_VALUE = {"enum", "const", "anyOf", "oneOf", "allOf", "not", "format", "pattern"}
"""Keywords whose refusals may quote the whole value of the keyword in the schema, or depend on it."""
_OF_SIZE = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
"""Keywords whose refusals may tell the size of the value."""


def reason_in_words(
    schema: Schema, action: ToolCall, words: Mapping[str, str], *, tells_all: bool = False
) -> str | None:
    """Why the server refuses a call, in its own words; None if they are not known.

    Args:
        schema: schema of the tool's arguments.
        action: the call.
        words: the words by kind of fault, from `learned`.
        tells_all: True if the server lists several faults of a call, one in a line.
    """
    if ANY in words:
        return schema.fault(action.arguments, is_named=False)
    faults = schema.field_faults(action.arguments)
    if not faults or (len(faults) > 1 and not tells_all):
        return None
    lines = []
    for fault in faults:
        line = words.get(_kind(fault))
        if line is None:
            return None
        gaps = {
            "field": fault.field,
            "limit": _text(fault.limit),
            "value": _text(fault.value),
            "tool": action.name,
            "title": schema.title,
        }
        lines.append(_GAP.sub(lambda gap, gaps=gaps: gaps[gap[1]], line))  # type: ignore[misc]
    return "\n".join(lines)


def learned(refused: Iterable[tuple[Schema, ToolCall, str]]) -> tuple[dict[str, str], bool]:
    """The words by kind of fault, and True if a refusal listed several faults.

    Args:
        refused: for each recorded refusal, the schema of the arguments, the call, and the reason that was given.
    """
    words: dict[str, str] = {}
    contradicted = set()
    tells_all = False
    for schema, action, reason in refused:
        faults = schema.field_faults(action.arguments)
        lines = [reason] if len(faults) == 1 else reason.split("\n")
        if faults and reason == faults[0].text:
            if reason != schema.fault(action.arguments):
                words[ANY] = "{message}"
            continue
        if not faults or len(lines) != len(faults):
            continue
        found = [
            (_kind(fault), _with_gaps(line, fault, action, schema)) for fault, line in zip(faults, lines, strict=True)
        ]
        if any(line is None for _, line in found):
            continue
        tells_all |= len(lines) > 1
        for kind, line in found:
            if line is not None and words.setdefault(kind, line) != line:
                contradicted.add(kind)
    return {kind: line for kind, line in words.items() if kind not in contradicted}, tells_all


def _kind(fault: FieldFault) -> str:
    """The kind of a fault: all that the words of a refusal depend on."""
    parts = [fault.keyword, fault.types]
    if fault.keyword not in {"required", "additionalProperties"} and _type(fault.value) != fault.types:
        parts.append(_type(fault.value))
    if fault.keyword in _PER_VALUE:
        parts.append(json.dumps(fault.limit, sort_keys=True))
    return " ".join(parts)


def _with_gaps(line: str, fault: FieldFault, action: ToolCall, schema: Schema) -> str | None:
    """The text with gaps for the values that may differ; None if it shows anything else of the call."""
    if _GAP.search(line) or len(_found(fault.field, line)) != 1:
        return None
    gaps = {fault.field: "{field}", action.name: "{tool}"}
    if _JOINED.search(schema.title):
        gaps[schema.title] = "{title}"
    if fault.keyword != "required":
        gaps |= {_text(one): gap for one, gap in ((fault.limit, "{limit}"), (fault.value, "{value}"))}
        if _text(fault.limit) == _text(fault.value) or any(len(_found(text, line)) > 1 for text in gaps if text):
            return None
    others = {*schema.properties, *action.arguments, *map(_text, action.arguments.values())} - set(gaps)
    if fault.keyword in _OF_SIZE and isinstance(fault.value, str | list | dict):
        others.add(str(len(fault.value)))
    whole = {json.dumps(action.arguments), repr(action.arguments)}
    if any(_found(text, line) for text in others if text) or any(text in line for text in whole):
        return None
    pattern = "|".join(_as_token(text) for text in sorted(gaps, key=len, reverse=True) if text)
    return re.sub(pattern, lambda match: gaps[match[0]], line)


def _found(text: str, line: str) -> list[str]:
    return re.findall(_as_token(text), line)


def _as_token(text: str) -> str:
    return rf"(?<![\w.]){re.escape(text)}(?!\w|\.\w)"


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _type(value: JsonValue) -> str:
    """The JSON type of a value."""
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")
