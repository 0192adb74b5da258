"""Untrusted JSON Schemas: nothing is fetched, and the check of a value takes bounded time.

Schemas come with recorded servers and with tasks; the values come from agents. So a `$ref` to another document is a
fault of the schema, a pattern has a time limit, and unique items are found without comparing each with each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from itertools import islice
from time import monotonic
from typing import Any, NamedTuple

import jsonschema
import referencing
import referencing.exceptions
import regex
from pydantic import JsonValue
from referencing.jsonschema import DRAFT202012, specification_with

from dreamgym.errors import InvalidInput
from dreamgym.types import JsonObject

PATTERNS_S = 0.05
"""Seconds that all patterns of a schema may take for one value."""
SHOWN_CHARACTERS = 500
FIELD_FAULTS = 20
"""More faults than these are not told one by one."""

_patterns_until: ContextVar[float] = ContextVar("patterns_until")


class FieldFault(NamedTuple):
    """What is wrong with one field of an object."""

    field: str
    keyword: str
    """The JSON Schema keyword that it breaks."""
    limit: JsonValue
    """The value of the keyword in the schema."""
    types: str
    """The JSON types that the schema allows for the field, in order and separated by bars; `any` if it names none."""
    value: JsonValue
    """The field's value; None if the field is missing."""
    text: str
    """The fault in the words of the schema library."""


class Schema:
    """A compiled JSON Schema. Raises InvalidInput if the schema cannot be used."""

    def __init__(self, schema: JsonValue) -> None:
        if not isinstance(schema, dict | bool):
            raise InvalidInput(f"expected a JSON Schema, which is an object or a boolean, got {schema!r:.200}")
        try:
            kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
            kind.check_schema(schema)
        except jsonschema.SchemaError as error:
            raise InvalidInput(f"not a usable JSON Schema: {error.message:.500}") from error
        except RecursionError as error:
            raise InvalidInput("not a usable JSON Schema: nested too deeply") from error
        bounded: Any = jsonschema.validators.extend(
            kind, {"pattern": _pattern, "patternProperties": _pattern_properties, "uniqueItems": _unique_items}
        )
        self._validator: jsonschema.protocols.Validator = bounded(schema, registry=referencing.Registry())
        self.fault({})

    @property
    def properties(self) -> Mapping[str, Any]:
        """The schema's properties by name."""
        contents = self._validator.schema
        found = contents.get("properties") if isinstance(contents, Mapping) else None
        return found if isinstance(found, Mapping) else {}

    def require_references(self) -> None:
        """Raises InvalidInput if a reference leads out of the schema. Otherwise only values that reach it show it."""
        contents = self._validator.schema
        dialect = contents.get("$schema") if isinstance(contents, Mapping) else None
        resource = specification_with(str(dialect), default=DRAFT202012).create_resource(contents)
        found = [(referencing.Registry().resolver_with_root(resource), resource)]
        while found:
            resolver, inner = found.pop()
            reference = inner.contents.get("$ref") if isinstance(inner.contents, dict) else None
            try:
                if isinstance(reference, str):
                    resolver.lookup(reference)
            except referencing.exceptions.Unresolvable as error:
                raise InvalidInput(f"not a usable JSON Schema: {reference!r} is not in the schema itself") from error
            found += [(resolver.in_subresource(one), one) for one in inner.subresources()]

    def fault(self, value: JsonValue) -> str | None:
        """The first fault of a value under this schema; None if it is valid.

        Raises:
            InvalidInput: the schema cannot be followed to its end for this value.
        """
        _patterns_until.set(monotonic() + PATTERNS_S)
        try:
            fault = jsonschema.exceptions.best_match(self._validator.iter_errors(value))
        except referencing.exceptions.Unresolvable as error:
            raise InvalidInput(f"not a usable JSON Schema: {error.ref!r} is not in the schema itself") from error
        except RecursionError as error:
            raise InvalidInput("not a usable JSON Schema: it refers to itself without an end") from error
        except TimeoutError:
            return f"the patterns of the schema could not be checked within {PATTERNS_S:g} s"
        if fault is None:
            return None
        where = f"{fault.json_path.removeprefix('$.')}: " if fault.path else ""
        return f"{where}{fault.message[:SHOWN_CHARACTERS]}"

    def field_faults(self, value: JsonObject) -> tuple[FieldFault, ...]:
        """The faults of an object, in the order of the schema's properties; unknown fields come last.

        Empty if the object is valid, if a fault is not that of one field, and if there are too many.
        """
        _patterns_until.set(monotonic() + PATTERNS_S)
        try:
            errors = list(islice(self._validator.iter_errors(value), FIELD_FAULTS + 1))
        except (referencing.exceptions.Unresolvable, RecursionError, TimeoutError, InvalidInput):
            return ()
        found = [fault for error in errors for fault in _faults_of_fields(error, self.properties)]
        if any(fault is None for fault in found) or len(found) > FIELD_FAULTS:
            return ()
        order = {name: number for number, name in enumerate(self.properties)}
        faults = [fault for fault in found if fault is not None]
        return tuple(sorted(faults, key=lambda fault: order.get(fault.field, len(order))))


def _faults_of_fields(error: jsonschema.ValidationError, properties: Mapping[str, Any]) -> Iterator[FieldFault | None]:
    """The faults that one error of the library stands for; None for one that is not of a single field."""
    keyword, limit, path = error.validator, error.validator_value, list(error.path)
    if len(path) == 1 and isinstance(path[0], str) and path[0] in properties and error.parent is None:
        yield FieldFault(path[0], keyword, limit, _types(properties[path[0]]), error.instance, error.message)
    elif path or keyword not in {"required", "additionalProperties"}:
        yield None
    elif keyword == "additionalProperties":
        if "patternProperties" in error.schema or limit is not False:
            yield None
        for name in list(error.instance)[: 2 * FIELD_FAULTS + len(properties)]:
            if name not in properties:
                yield FieldFault(name, keyword, limit, "any", error.instance[name], error.message)
    else:
        name = next((name for name in limit if error.message == f"{name!r} is a required property"), None)
        yield name and FieldFault(name, keyword, limit, _types(properties.get(name, {})), None, error.message)


def _types(schema: object) -> str:
    """The JSON types that a property may have, by its own keyword or those of its alternatives."""
    if not isinstance(schema, Mapping):
        return "any"
    parts = [schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())]
    named = [part["type"] for part in parts if isinstance(part, Mapping) and "type" in part]
    types = {name for one in named for name in ([one] if isinstance(one, str) else one)}
    return "|".join(sorted(types)) or "any"


def schema_of(schema: JsonValue) -> Schema:
    """The compiled schema, cached. Raises InvalidInput if it cannot be used."""
    return _compiled(json.dumps(schema))


def fault_under(schema: JsonValue, value: JsonValue) -> str | None:
    """The first fault of a value under a schema; None if it is valid. Raises InvalidInput for an unusable schema."""
    return schema_of(schema).fault(value)


@lru_cache(maxsize=1024)
def _compiled(text: str) -> Schema:
    return Schema(json.loads(text))


def _found(pattern: str, text: str) -> bool:
    """True if the pattern matches. Raises TimeoutError, and SchemaError if the pattern is not valid."""
    try:
        return regex.search(pattern, text, timeout=max(1e-3, _patterns_until.get() - monotonic())) is not None
    except regex.error as error:
        raise InvalidInput(f"not a usable JSON Schema: the pattern {pattern!r:.200} cannot be read: {error}") from error


def _pattern(validator: Any, pattern: str, value: object, schema: object) -> Iterator[jsonschema.ValidationError]:
    if validator.is_type(value, "string") and not _found(pattern, str(value)):
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, properties: dict[str, Any], value: Any, schema: object
) -> Iterator[jsonschema.ValidationError]:
    if validator.is_type(value, "object"):
        for pattern, below in properties.items():
            for name, inner in value.items():
                if _found(pattern, name):
                    yield from validator.descend(inner, below, path=name, schema_path=pattern)


def _unique_items(validator: Any, wanted: bool, value: Any, schema: object) -> Iterator[jsonschema.ValidationError]:
    if not wanted or not validator.is_type(value, "array"):
        return
    if len({json.dumps(item, sort_keys=True) for item in value}) < len(value):
        yield jsonschema.ValidationError(f"{value!r} has non-unique elements")
