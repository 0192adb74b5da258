"""JSON values in states, arguments and answers: their leaves, their equality, pointers into them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TypeGuard

from pydantic import JsonValue

from dreamgym.types import JsonObject

_WORD = re.compile(r"(?<![\w.@:+-])[\w.@:+-]*\w")
_DIGITS = re.compile(r"(\d+)")


def leaves(value: JsonValue, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], JsonValue]]:
    """Every value that is neither an object nor a list, with the keys and the positions that lead to it."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, (*path, key))
    elif isinstance(value, list):
        for position, part in enumerate(value):
            yield from leaves(part, (*path, position))
    else:
        yield path, value


def fields(value: JsonValue, path: str = "") -> Iterator[tuple[str, JsonValue]]:
    """Every single field with its path; objects are entered, lists are not."""
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from fields(part, f"{path}{pointer(name)}")
    elif path:
        yield path, value


def mentioned(value: JsonValue) -> frozenset[str]:
    """Everything in a value that may be an id: all words in its texts and numbers, and each text as a whole."""
    if isinstance(value, dict):
        return frozenset().union(*(mentioned(part) for part in value.values()))
    if isinstance(value, list):
        return frozenset().union(*(mentioned(part) for part in value))
    if value is None or isinstance(value, bool):
        return frozenset()
    text = value if isinstance(value, str) else json.dumps(value)
    return frozenset({text, *_WORD.findall(text)})


def same(one: JsonValue, other: JsonValue) -> bool:
    """True if two values are written alike but for the order of keys. So 1.0 is not 1.

    For states, in which 1.0 and 1 are different texts, and for programs that must reproduce what was recorded.
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, dict | list):
        return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    return repr(one) == repr(other) if isinstance(one, float) else one == other  # -0.0 and NaN are written as they are


def equal(one: JsonValue, other: JsonValue) -> bool:
    """True if two values are equal. 1.0 is 1, as in JSON Schema, and true is not 1.

    For answers, in which a server may write a number in another way than in its state.
    """
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(part, other[key]) for key, part in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


def natural(text: str) -> tuple[tuple[bool, int, str, str], ...]:
    """Sort key in which O-10 comes after O-9, and O-01 before O-1."""
    parts = ((part, part.lstrip("0")) for part in _DIGITS.split(text))
    # numbers by their length, then digit by digit: int() refuses more than 4,300 digits
    return tuple(
        (True, len(number), number, part) if part.isdecimal() else (False, 0, part, part) for part, number in parts
    )


def pointer(*names: str) -> str:
    """The JSON pointer (RFC 6901) that goes through these names."""
    return "".join(f"/{name.replace('~', '~0').replace('/', '~1')}" for name in names)


def unescaped(path: str) -> list[str]:
    """The names that a JSON pointer goes through."""
    return [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]


def value_at(value: JsonValue, path: str) -> JsonValue:
    """The value at a JSON pointer through objects; None if there is none. Lists are not entered."""
    for name in unescaped(path):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def as_object(value: object) -> JsonObject:
    """The value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def short(value: JsonValue) -> str:
    """A value for an error message: JSON of at most 60 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def is_number(value: object) -> TypeGuard[int | float]:
    """True if a value is a number; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def objects(value: object) -> list[JsonObject]:
    """The objects in a list; none if the value is not a list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
