"""The explicit world state: what an environment knows, as typed JSON, and the only ways in which it may change.

A state is an object of collections and single values: `{"orders": {"O-1": {"order_id": "O-1", "status": "paid"}},
"clock": 3}`. A collection holds entities by their id. In transitions a state is the text that `as_text` makes of it,
so that equal states are equal texts. Paths are JSON pointers (RFC 6901): `/orders/O-1/status`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from dreamgym.types import Frozen, JsonObject

TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "any": (object,),
}
_WORD = re.compile(r"[\w.@:+-]*\w")


class ImpossibleChange(ValueError):
    """An operation that the state or its schema does not allow; nothing was changed."""


class Operation(Frozen):
    """One change. `increase` adds a number (a negative one takes away), so that no model has to calculate."""

    op: Literal["set", "delete", "append", "increase"]
    path: str = Field(pattern=r"^(/[^/]*)+$")
    value: JsonValue = None


class Collection(Frozen):
    """Entities of one kind, by their id."""

    key: str
    """The field that holds the id."""
    fields: dict[str, str] = Field(default_factory=dict)
    """Each other field's type, one of TYPES; with a question mark behind it where it may be null."""
    complete: bool = True
    """An id that is not in it does not exist. False where only what answers have shown is known."""

    @field_validator("fields")
    @classmethod
    def _known_types(cls, value: dict[str, str]) -> dict[str, str]:
        for name, kind in value.items():
            _check_type(name, kind)
        return value


class StateSchema(Frozen):
    """What a state may look like: `[state]` in env.toml, tables for collections, types for single values."""

    collections: dict[str, Collection] = Field(default_factory=dict)
    values: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _as_written(cls, value: object) -> object:
        if not isinstance(value, dict) or _is_dumped(value):
            return value
        tables = {name: part for name, part in value.items() if isinstance(part, dict)}
        return {"collections": tables, "values": {n: part for n, part in value.items() if n not in tables}}

    @field_validator("values")
    @classmethod
    def _known_types(cls, value: dict[str, str]) -> dict[str, str]:
        for name, kind in value.items():
            _check_type(name, kind)
        return value

    def fault_of(self, state: JsonObject) -> str | None:
        """What is wrong with a state under this schema, or None. Fields may be missing, but for the key."""
        for name, part in state.items():
            collection = self.collections.get(name)
            if collection is None:
                if name not in self.values:
                    return f"/{name}: there is no such collection or value; there are {', '.join(self._names())}"
                if not _is_of(self.values[name], part):
                    return f"/{name}: expected {self.values[name]}, got {_short(part)}"
            elif not isinstance(part, dict):
                return f"/{name}: expected entities by their id, got {_short(part)}"
            else:
                for identity, entity in part.items():
                    if fault := _entity_fault(collection, identity, entity):
                        return f"/{name}/{identity}{fault}"
        return None

    def _names(self) -> list[str]:
        return sorted({*self.collections, *self.values})


def parsed(text: str) -> JsonObject | None:
    """The state that a text is, or None: a state of words alone."""
    if not text.startswith("{"):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def as_text(state: JsonObject) -> str:
    """The one text of a state: equal states give equal texts."""
    return json.dumps(state, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def apply(state: JsonObject, operations: Sequence[Operation], schema: StateSchema | None = None) -> JsonObject:
    """A new state with the changes made in their order; `state` itself stays.

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
    """What changed from one state to the other: applied to the first, it gives the second."""
    return tuple(_differences(before, after, ""))


def changed_fields(before: JsonObject, after: JsonObject) -> frozenset[str]:
    """Paths of all single fields that came, went or have another value; a list counts as one field.

    An object that was empty is none where something came into it.
    """
    ours, theirs = dict(fields(before)), dict(fields(after))
    paths = ours.keys() | theirs.keys()
    both = ours.keys() & theirs.keys()
    changed = {path for path in paths if path not in both or not _same(ours[path], theirs[path])}
    above = {path[:end] for path in changed for end, letter in enumerate(path) if letter == "/"}
    return frozenset(changed - above)


def fields(value: JsonValue, path: str = "") -> Iterator[tuple[str, JsonValue]]:
    """Every single field with its path; objects are entered, lists are not."""
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from fields(part, f"{path}/{_escaped(name)}")
    elif path:
        yield path, value


def entities(value: JsonValue, schema: StateSchema) -> Iterator[tuple[str, str, JsonObject]]:
    """(collection, id, entity) of every object in an answer that shows an entity; of several kinds, the likeliest."""
    if isinstance(value, list):
        for item in value:
            yield from entities(item, schema)
    elif isinstance(value, dict):
        kinds = [(name, kind) for name, kind in schema.collections.items() if identity_of(value.get(kind.key))]
        if kinds:
            name, kind = max(kinds, key=lambda named: len(value.keys() & named[1].fields.keys()))
            shown = {field: part for field, part in value.items() if field in kind.fields or field == kind.key}
            yield name, str(identity_of(value[kind.key])), shown
        for part in value.values():
            yield from entities(part, schema)


def identity_of(value: JsonValue) -> str | None:
    """The id that a key field holds: a text, or a whole number as one; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value) or None


def mentioned(value: JsonValue) -> frozenset[str]:
    """All words in the texts and numbers of a value, and each text as a whole: what may be an id."""
    if isinstance(value, dict):
        return frozenset().union(*(mentioned(part) for part in value.values()))
    if isinstance(value, list):
        return frozenset().union(*(mentioned(part) for part in value))
    if value is None or isinstance(value, bool):
        return frozenset()
    text = value if isinstance(value, str) else json.dumps(value)
    return frozenset({text, *_WORD.findall(text)})


def relevant(state: JsonObject, arguments: JsonObject, schema: StateSchema) -> JsonObject:
    """The part of a state that a call is about.

    That is all single values, the entities that the arguments name, those that these name, and those that name these.
    A call that names none is about the whole state.
    """
    named = _entities_named(state, mentioned(arguments), schema)
    if not named:
        return state
    onward = _entities_named(state, mentioned([_at(state, place) for place in named]), schema)
    ids = frozenset(identity for _, identity in named)
    back = {
        (name, identity)
        for name in schema.collections
        for identity, entity in _collection(state, name).items()
        if ids & mentioned(entity)
    }
    about = named | onward | back
    part: JsonObject = {name: value for name, value in state.items() if name not in schema.collections}
    for name in schema.collections:
        if name in state:
            part[name] = {i: entity for i, entity in _collection(state, name).items() if (name, i) in about}
    return part


def _entities_named(state: JsonObject, words: frozenset[str], schema: StateSchema) -> set[tuple[str, str]]:
    return {(name, identity) for name in schema.collections for identity in _collection(state, name).keys() & words}


def _collection(state: JsonObject, name: str) -> JsonObject:
    part = state.get(name)
    return part if isinstance(part, dict) else {}


def _at(state: JsonObject, place: tuple[str, str]) -> JsonValue:
    return _collection(state, place[0])[place[1]]


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
            raise ImpossibleChange(f"expected a list, there is {_short(there)}")
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
        return step.isascii() and step.isdecimal() and str(int(step)) == step and int(step) < len(parent)
    return isinstance(parent, dict) and step in parent


def _put(parent: JsonValue, step: str, value: JsonValue) -> None:
    if isinstance(parent, list):
        parent[int(step)] = value
    elif isinstance(parent, dict):
        parent[step] = value
    else:
        raise ImpossibleChange(f"expected an object above {step!r}, there is {_short(parent)}")


def _sum(old: JsonValue, change: JsonValue) -> int | float:
    if isinstance(old, bool) or isinstance(change, bool):
        raise ImpossibleChange("a truth value is no number")
    if not isinstance(old, int | float) or not isinstance(change, int | float):
        raise ImpossibleChange(f"expected numbers, got {_short(old)} and {_short(change)}")
    if isinstance(old, int) and isinstance(change, int):
        return old + change
    try:
        total = float(Decimal(str(old)) + Decimal(str(change)))
    except ArithmeticError:
        total = math.nan
    if not math.isfinite(total):
        raise ImpossibleChange(f"the sum of {_short(old)} and {_short(change)} is no number that JSON has")
    return total


def _differences(before: JsonObject, after: JsonObject, path: str) -> Iterator[Operation]:
    for name in sorted(before.keys() | after.keys()):
        here = f"{path}/{_escaped(name)}"
        if name not in after:
            yield Operation(op="delete", path=here)
            continue
        new = after[name]
        old = before.get(name)
        if name not in before:
            yield Operation(op="set", path=here, value=new)
        elif isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, here)
        elif isinstance(old, list) and isinstance(new, list) and len(old) < len(new) and _same(new[: len(old)], old):
            for item in new[len(old) :]:
                yield Operation(op="append", path=here, value=item)
        elif not _same(old, new):
            yield Operation(op="set", path=here, value=new)


def _same(one: JsonValue, other: JsonValue) -> bool:
    """Equal as JSON: True is not 1, and 1.0 is not 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _is_dumped(value: JsonObject) -> bool:
    """Our own form, not a person's in which a collection is called `values` or `collections`."""
    parts = [value[name] for name in ("collections", "values") if name in value]
    return bool(parts) and not any(
        isinstance(part, dict) and part.keys() & {"fields", "complete"} and isinstance(part.get("key"), str)
        for part in parts
    )


def _check_type(name: str, kind: str) -> None:
    if kind.removesuffix("?") not in TYPES:
        raise ValueError(f"{name}: expected one of {', '.join(TYPES)}, got {kind!r}")


def _is_of(kind: str, value: JsonValue) -> bool:
    if value is None:
        return kind.endswith("?") or kind == "any"
    if isinstance(value, bool):
        return kind.removesuffix("?") in {"boolean", "any"}
    return isinstance(value, TYPES[kind.removesuffix("?")])


def _entity_fault(collection: Collection, identity: str, entity: JsonValue) -> str | None:
    if not isinstance(entity, dict):
        return f": expected an object, got {_short(entity)}"
    if identity_of(entity.get(collection.key)) != identity:
        return f": {collection.key!r} must be {identity!r}, got {_short(entity.get(collection.key))}"
    for field, value in entity.items():
        if field == collection.key:
            continue
        if field not in collection.fields:
            return f"/{field}: there is no such field; there are {', '.join(sorted(collection.fields))}"
        if not _is_of(collection.fields[field], value):
            return f"/{field}: expected {collection.fields[field]}, got {_short(value)}"
    return None


def _short(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def unescaped(path: str) -> list[str]:
    """The names that a path goes through."""
    return [_unescaped(part) for part in path[1:].split("/")]


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _unescaped(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")
