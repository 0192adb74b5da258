"""Changes of an explicit state: the operations that may change it, and the difference between two states."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Literal

from pydantic import Field, JsonValue

from dreamgym.state.json_values import fields, pointer, same, short, unescaped
from dreamgym.state.schema import StateSchema
from dreamgym.types import Frozen, JsonObject


class ImpossibleChange(ValueError):
    """An operation that the state or its schema does not allow; nothing was changed."""


class Operation(Frozen):
    """One change. `increase` adds a number (a negative one takes away), so that no model has to calculate."""

    op: Literal["set", "delete", "append", "increase"]
    path: str = Field(pattern=r"^(/[^/]*)+$")
    value: JsonValue = None


def apply(state: JsonObject, operations: Sequence[Operation], schema: StateSchema | None = None) -> JsonObject:
    """A new state with the changes made in their order; `state` itself is not changed.

    Without a schema, `set` needs a path that exists.

    Raises:
        ImpossibleChange: an operation does not fit, or the outcome is off the schema.
    """
    changed: JsonObject = json.loads(json.dumps(state))
    for operation in operations:
        try:
            _change(changed, operation, schema)
        except ImpossibleChange as error:
            raise ImpossibleChange(f"{operation.op} {operation.path}: {error}") from None
    if schema is not None and (fault := schema.fault_of(changed)):
        raise ImpossibleChange(fault)
    return changed


def difference(before: JsonObject, after: JsonObject) -> tuple[Operation, ...]:
    """The changes from one state to the other. Applied to the first, they give the second."""
    return tuple(_differences(before, after, ()))


def changed_fields(before: JsonObject, after: JsonObject) -> frozenset[str]:
    """Paths of all single fields that were added, removed or changed; a list counts as one field.

    An empty object that gets fields is not a changed field itself; its new fields are.
    """
    ours, theirs = dict(fields(before)), dict(fields(after))
    paths = ours.keys() | theirs.keys()
    both = ours.keys() & theirs.keys()
    changed = {path for path in paths if path not in both or not same(ours[path], theirs[path])}
    above = {path[:end] for path in changed for end, letter in enumerate(path) if letter == "/"}
    return frozenset(changed - above)


def _change(state: JsonObject, operation: Operation, schema: StateSchema | None) -> None:
    *above, last = unescaped(operation.path)
    parent: JsonValue = state
    for depth, step in enumerate(above):
        if isinstance(parent, dict) and step not in parent and depth == 0 and schema and step in schema.collections:
            parent[step] = {}
        parent = _child(parent, step)
    exists = _has(parent, last)
    if operation.op == "set":
        if not exists and (schema is None or not isinstance(parent, dict)):
            raise ImpossibleChange("there is nothing at this path")
        _put(parent, last, json.loads(json.dumps(operation.value)))
        return
    if not exists:
        raise ImpossibleChange("there is nothing at this path")
    there = _child(parent, last)
    if operation.op == "delete":
        if isinstance(parent, list):
            del parent[int(last)]
        elif isinstance(parent, dict):
            del parent[last]
    elif operation.op == "append":
        if not isinstance(there, list):
            raise ImpossibleChange(f"expected a list, there is {short(there)}")
        there.append(json.loads(json.dumps(operation.value)))
    else:
        _put(parent, last, _sum(there, operation.value))


def _child(parent: JsonValue, step: str) -> JsonValue:
    if not _has(parent, step):
        raise ImpossibleChange(f"there is no {step!r}")
    if isinstance(parent, list):
        return parent[int(step)]
    assert isinstance(parent, dict)
    return parent[step]


def _has(parent: JsonValue, step: str) -> bool:
    if isinstance(parent, list):
        is_index = step.isascii() and step.isdecimal() and len(step) <= len(str(len(parent)))
        return is_index and str(int(step)) == step and int(step) < len(parent)
    return isinstance(parent, dict) and step in parent


def _put(parent: JsonValue, step: str, value: JsonValue) -> None:
    if isinstance(parent, list):
        parent[int(step)] = value
    elif isinstance(parent, dict):
        parent[step] = value
    else:
        raise ImpossibleChange(f"expected an object above {step!r}, there is {short(parent)}")


def _sum(old: JsonValue, change: JsonValue) -> int | float:
    if isinstance(old, bool) or isinstance(change, bool):
        raise ImpossibleChange("a truth value is no number")
    if not isinstance(old, int | float) or not isinstance(change, int | float):
        raise ImpossibleChange(f"expected numbers, got {short(old)} and {short(change)}")
    if isinstance(old, int) and isinstance(change, int):
        return old + change
    try:
        total = float(Decimal(str(old)) + Decimal(str(change)))
    except ArithmeticError:
        total = math.nan
    if not math.isfinite(total):
        raise ImpossibleChange(f"the sum of {short(old)} and {short(change)} is no number that JSON has")
    return total


def _differences(before: JsonObject, after: JsonObject, path: tuple[str, ...]) -> Iterator[Operation]:
    for name in sorted(before.keys() | after.keys()):
        here = (*path, name)
        if name not in after:
            yield Operation(op="delete", path=pointer(*here))
            continue
        new = after[name]
        old = before.get(name)
        if name not in before:
            yield Operation(op="set", path=pointer(*here), value=new)
        elif isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, here)
        elif isinstance(old, list) and isinstance(new, list) and len(old) < len(new) and same(new[: len(old)], old):
            for item in new[len(old) :]:
                yield Operation(op="append", path=pointer(*here), value=item)
        elif not same(old, new):
            yield Operation(op="set", path=pointer(*here), value=new)
