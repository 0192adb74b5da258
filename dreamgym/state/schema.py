"""The schema of explicit states: collections, their fields, single values, and the type of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue, model_validator

from dreamgym.state.json_values import short
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


def _of_known_types(named: dict[str, str]) -> dict[str, str]:
    for name, kind in named.items():
        if kind.removesuffix("?") not in TYPES:
            raise ValueError(f"{name}: expected one of {', '.join(TYPES)}, got {kind!r}")
    return named


Types = Annotated[dict[str, str], AfterValidator(_of_known_types)]
"""Names, each with its type."""


class Collection(Frozen):
    """Entities of one kind, by their id."""

    key: str
    """The field that holds the id."""
    fields: Types = Field(default_factory=dict)
    """The type of each other field: one of TYPES, with a question mark behind it if the field may be null."""
    complete: bool = True
    """True if an id that is not in it does not exist. False if only what answers have shown is known."""


class StateSchema(Frozen):
    """Schema of explicit states, the table `[state]` of env.toml: tables for collections, types for single values."""

    collections: dict[str, Collection] = Field(default_factory=dict)
    values: Types = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _as_written(cls, value: object) -> object:
        if not isinstance(value, dict) or _is_dumped(value):
            return value
        tables = {name: part for name, part in value.items() if isinstance(part, dict)}
        return {"collections": tables, "values": {n: part for n, part in value.items() if n not in tables}}

    def fault_of(self, state: JsonObject) -> str | None:
        """The first fault of a state under this schema; None if it is valid. Any field but the key may be missing."""
        for name, part in state.items():
            collection = self.collections.get(name)
            if collection is None:
                if name not in self.values:
                    known = ", ".join(sorted({*self.collections, *self.values}))
                    return f"/{name}: there is no such collection or value; there are {known}"
                if not _is_of(self.values[name], part):
                    return f"/{name}: expected {self.values[name]}, got {short(part)}"
            elif not isinstance(part, dict):
                return f"/{name}: expected entities by their id, got {short(part)}"
            else:
                for identity, entity in part.items():
                    if fault := _entity_fault(collection, identity, entity):
                        return f"/{name}/{identity}{fault}"
        return None


def entities(value: JsonValue, schema: StateSchema) -> Iterator[tuple[str, str, JsonObject]]:
    """(collection, id, entity) of every object in an answer that shows an entity.

    If an object fits several collections, the one with the most fields of the object is taken.
    """
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
    """The id in a key field: a text, or a whole number as a text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value) or None


def _is_dumped(value: JsonObject) -> bool:
    """True for a dumped schema, False for a hand-written one with a collection called `values` or `collections`."""
    parts = [value[name] for name in ("collections", "values") if name in value]
    return bool(parts) and not any(
        isinstance(part, dict) and part.keys() & {"fields", "complete"} and isinstance(part.get("key"), str)
        for part in parts
    )


def _is_of(kind: str, value: JsonValue) -> bool:
    if value is None:
        return kind.endswith("?") or kind == "any"
    if isinstance(value, bool):
        return kind.removesuffix("?") in {"boolean", "any"}
    return isinstance(value, TYPES[kind.removesuffix("?")])


def _entity_fault(collection: Collection, identity: str, entity: JsonValue) -> str | None:
    if not isinstance(entity, dict):
        return f": expected an object, got {short(entity)}"
    if identity_of(entity.get(collection.key)) != identity:
        return f": {collection.key!r} must be {identity!r}, got {short(entity.get(collection.key))}"
    for field, value in entity.items():
        if field == collection.key:
            continue
        if field not in collection.fields:
            return f"/{field}: unknown field; known fields: {', '.join(sorted(collection.fields))}"
        if not _is_of(collection.fields[field], value):
            return f"/{field}: expected {collection.fields[field]}, got {short(value)}"
    return None
