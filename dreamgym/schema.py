"""Untrusted JSON Schemas: nothing is fetched, and the check of a value takes bounded time.

Schemas come with recorded servers and with tasks; the values come from agents. So a `$ref` to another document is a
fault of the schema, a pattern has a time limit, and unique items are found without comparing each with each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from time import monotonic
from typing import Any

import jsonschema
import referencing
import referencing.exceptions
import regex
from pydantic import JsonValue
from referencing.jsonschema import DRAFT202012, specification_with

from dreamgym.errors import InvalidInput

PATTERNS_S = 0.05
"""Seconds that all patterns of a schema may take for one value."""
SHOWN_CHARACTERS = 500

_patterns_until: ContextVar[float] = ContextVar("patterns_until")


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
