"""Untrusted JSON Schemas: nothing is fetched, and the check of a value takes bounded time.

Schemas come with recorded servers and with tasks; the values come from agents. So a `$ref` to another document is a
fault of the schema, patterns have a time limit, evaluated keywords are counted, and unique items are found without
comparing all pairs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from time import monotonic
from typing import Any, NamedTuple

import attrs
import jsonschema
import referencing
import referencing.exceptions
import regex
from pydantic import JsonValue
from referencing.jsonschema import DRAFT202012, specification_with

from dreamgym.errors import InvalidInput
from dreamgym.redaction.placeholder import MARK
from dreamgym.types import JsonObject

PATTERNS_S = 0.05
"""Seconds that all patterns of a schema may take for one value."""
STEPS = 200_000
"""Most keywords that are evaluated for one value. References that share their parts take exponentially many."""
LEAST_STEPS, STEPS_PER_PART = 20_000, 20
"""Keywords that are evaluated for a small value, and for each part of a larger one: 200,000 may take seconds."""
SHOWN_CHARACTERS = 500
FIELD_FAULTS = 20
"""If an object has more faults than this, they are not listed one by one."""

_patterns_until: ContextVar[float] = ContextVar("patterns_until")
_steps_left: ContextVar[Iterator[int]] = ContextVar("steps_left")


class FieldFault(NamedTuple):
    """A fault of one field of an object."""

    field: str
    keyword: str
    """The JSON Schema keyword that the field violates."""
    limit: JsonValue
    """The value of the keyword in the schema."""
    types: str
    """The JSON types that the schema allows for the field, in order and separated by bars; `any` if it names none."""
    value: JsonValue
    """The field's value; None if the field is missing."""
    text: str
    """The fault in the words of the schema library."""


class Schema:
    """A compiled JSON Schema. Raises InvalidInput if the schema cannot be used.

    Args:
        schema: the schema.
        redacted: a redacted text may have another form than the schema demands, since the original had another one.
    """

    def __init__(self, schema: JsonValue, *, redacted: bool = False) -> None:
        if not isinstance(schema, dict | bool):
            raise InvalidInput(f"expected a JSON Schema, which is an object or a boolean, got {schema!r:.200}")
        if isinstance(schema, dict) and not isinstance(dialect := schema.get("$schema", ""), str):
            raise InvalidInput(f"not a usable JSON Schema: $schema: expected a text, got {dialect!r:.200}")
        try:
            kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
            # a pattern is read when it is used: `regex` reads patterns of JavaScript that `re` refuses, as \p{L}
            kind.check_schema(schema, format_checker=jsonschema.FormatChecker(()))
        except jsonschema.SchemaError as error:
            raise InvalidInput(f"not a usable JSON Schema: {error.message:.500}") from error
        except RecursionError as error:
            raise InvalidInput("not a usable JSON Schema: nested too deeply") from error
        keywords = {**kind.VALIDATORS, **_BOUNDED}
        if "unevaluatedProperties" in keywords and '"patternProperties"' in json.dumps(schema):
            keywords["unevaluatedProperties"] = _unevaluated_properties
        lenient = _OF_FORM if redacted else frozenset()
        counted = {name: _counted(one, is_lenient=name in lenient) for name, one in keywords.items()}
        bounded: Any = jsonschema.validators.extend(kind, counted)
        bounded.evolve = attrs.evolve  # the library's own leaves our keywords for those of a `$schema` in a part
        self._validator: jsonschema.protocols.Validator = bounded(schema, registry=referencing.Registry())
        self._test = _tested(schema)
        self.fault({})

    def allows(self, value: JsonValue) -> bool:
        """True if a value is valid: `fault` without a reason. A check of common keywords takes microseconds.

        Raises:
            InvalidInput: the schema cannot be evaluated for this value.
        """
        return self.fault(value) is None if self._test is None else self._test(value)

    @property
    def properties(self) -> Mapping[str, Any]:
        """The schema's properties by name."""
        contents = self._validator.schema
        found = contents.get("properties") if isinstance(contents, Mapping) else None
        return found if isinstance(found, Mapping) else {}

    @property
    def title(self) -> str:
        """The schema's title; empty if it has none."""
        contents = self._validator.schema
        return str(contents.get("title") or "") if isinstance(contents, Mapping) else ""

    def require_usable(self) -> None:
        """Raises InvalidInput if a reference leads out of the schema, or if a pattern cannot be read.

        `fault` raises only if the value leads to it.
        """
        contents = self._validator.schema
        dialect = contents.get("$schema") if isinstance(contents, Mapping) else None
        resource = specification_with(str(dialect), default=DRAFT202012).create_resource(contents)
        found = [(referencing.Registry().resolver_with_root(resource), resource)]
        while found:
            resolver, inner = found.pop()
            keywords = inner.contents if isinstance(inner.contents, dict) else {}
            for pattern in (keywords.get("pattern", ""), *keywords.get("patternProperties", {})):
                _readable(pattern)
            reference = keywords.get("$ref")
            try:
                if isinstance(reference, str):
                    resolver.lookup(reference)
            except referencing.exceptions.Unresolvable as error:
                raise InvalidInput(f"not a usable JSON Schema: {reference!r} is not in the schema itself") from error
            found += [(resolver.in_subresource(one), one) for one in inner.subresources()]

    def fault(self, value: JsonValue, *, is_named: bool = True) -> str | None:
        """The first fault of a value under this schema; None if it is valid.

        Args:
            value: the value.
            is_named: begin with the field in which the fault is.

        Raises:
            InvalidInput: the schema cannot be evaluated for this value.
        """
        _patterns_until.set(monotonic() + PATTERNS_S)
        try:
            _steps_left.set(iter(range(_most_steps(value))))
            fault = jsonschema.exceptions.best_match(self._validator.iter_errors(value))
        except referencing.exceptions.Unresolvable as error:
            raise InvalidInput(f"not a usable JSON Schema: {error.ref!r} is not in the schema itself") from error
        except RecursionError as error:
            raise InvalidInput("not a usable JSON Schema: it refers to itself without end") from error
        except OverflowError:  # `divisibleBy` of draft 3 divides as floats
            return "a number is too large to be checked"
        except TimeoutError:
            return f"the patterns of the schema could not be checked within {PATTERNS_S:g} s"
        if fault is None:
            return None
        where = f"{fault.json_path.removeprefix('$.')}: " if is_named and fault.absolute_path else ""
        return f"{where}{fault.message[:SHOWN_CHARACTERS]}"

    def field_faults(self, value: JsonObject) -> tuple[FieldFault, ...]:
        """The faults of an object, in the order of the schema's properties; unknown fields come last.

        Empty if the object is valid, if a fault does not belong to one field of the object, or if there are too many.
        """
        _patterns_until.set(monotonic() + PATTERNS_S)
        try:
            _steps_left.set(iter(range(_most_steps(value))))
            errors = list(islice(self._validator.iter_errors(value), FIELD_FAULTS + 1))
        except (referencing.exceptions.Unresolvable, RecursionError, OverflowError, TimeoutError, InvalidInput):
            return ()
        found = [fault for error in errors for fault in _faults_of_fields(error, self.properties)]
        if any(fault is None for fault in found) or len(found) > FIELD_FAULTS:
            return ()
        order = {name: number for number, name in enumerate(self.properties)}
        faults = [fault for fault in found if fault is not None]
        return tuple(sorted(faults, key=lambda fault: order.get(fault.field, len(order))))


def _faults_of_fields(error: jsonschema.ValidationError, properties: Mapping[str, Any]) -> Iterator[FieldFault | None]:
    """The faults that one error of the library means; None for a fault that does not belong to a single field."""
    keyword, limit, path = error.validator, error.validator_value, list(error.path)
    alternatives = error.context or ()
    if any(inner.path or inner.validator in {"required", "additionalProperties"} for inner in alternatives):
        yield None
        return
    of_type = [inner for inner in alternatives if inner.validator != "type"]
    if len(of_type) == 1:  # only one alternative takes a value of this type
        keyword, limit = of_type[0].validator, of_type[0].validator_value
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
        if name is None:
            yield None
        else:
            yield FieldFault(name, keyword, limit, _types(properties.get(name, {})), None, error.message)


def _types(schema: object) -> str:
    """The JSON types that a property may have, by its own keyword or those of its alternatives."""
    if not isinstance(schema, Mapping):
        return "any"
    parts = [schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())]
    named = [part["type"] for part in parts if isinstance(part, Mapping) and "type" in part]
    types = {name for one in named for name in ([one] if isinstance(one, str) else one)}
    return "|".join(sorted(types)) or "any"


def schema_of(schema: JsonValue, *, redacted: bool = False) -> Schema:
    """The compiled schema, cached. Raises InvalidInput if it cannot be used. For `redacted` see Schema."""
    return _compiled(json.dumps(schema), redacted=redacted)


def fault_under(schema: JsonValue, value: JsonValue, *, redacted: bool = False) -> str | None:
    """The first fault of a value under a schema; None if it is valid. Raises InvalidInput for an unusable schema."""
    return schema_of(schema, redacted=redacted).fault(value)


@lru_cache(maxsize=1024)
def _compiled(text: str, *, redacted: bool) -> Schema:
    return Schema(json.loads(text), redacted=redacted)


Test = Callable[[JsonValue], bool]
Keyword = Callable[[Any, Any, Any, Any], "Iterable[jsonschema.ValidationError] | None"]
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
    "boolean": (bool,),
}
_WITHOUT_MEANING = {"title", "description", "default", "examples"}


def _tested(schema: JsonValue) -> Test | None:
    """A function that checks if a value is valid; None for a schema with any but the commonest keywords."""
    if isinstance(schema, bool):
        return lambda value: schema
    tests: list[Test] = []
    for keyword, given in schema.items() if isinstance(schema, dict) else ():
        if keyword in _WITHOUT_MEANING:
            continue
        test = _keyword_test(keyword, given, schema if isinstance(schema, dict) else {})
        if test is None:
            return None
        tests.append(test)
    return lambda value: all(test(value) for test in tests)


def _keyword_test(keyword: str, given: JsonValue, schema: Mapping[str, JsonValue]) -> Test | None:
    """The test of one keyword; None for one that is left to the validator."""
    match keyword, given:
        case "const", str() | bool() | None:
            return lambda value: type(value) is type(given) and value == given
        case "enum", list() if all(isinstance(one, str | bool | None) for one in given):
            return lambda value: any(type(value) is type(one) and value == one for one in given)
        case "type", str() if given in _TYPES:
            return lambda value: isinstance(value, _TYPES[given])
        case "required", list():
            names = [str(name) for name in given]
            return lambda value: not isinstance(value, dict) or all(name in value for name in names)
        case "not", _:
            inner = _tested(given)
            return inner and (lambda value: not inner(value))
        case "contains", _ if not schema.keys() & {"minContains", "maxContains"}:
            item = _tested(given)
            return item and (lambda value: not isinstance(value, list) or any(map(item, value)))
        case (("anyOf" | "allOf"), list()):
            parts = [part for one in given if (part := _tested(one)) is not None]
            several = any if keyword == "anyOf" else all
            return (lambda value: several(part(value) for part in parts)) if len(parts) == len(given) else None
        case "properties", dict():
            fields = {name: _tested(one) for name, one in given.items()}
            return None if None in fields.values() else lambda value: _have(fields, value)  # type: ignore[arg-type]
        case "additionalProperties", _ if "patternProperties" not in schema:
            known, other = schema.get("properties", {}), _tested(given)
            others = known if isinstance(known, dict) else {}
            return other and (
                lambda value: (
                    not isinstance(value, dict) or all(name in others or other(one) for name, one in value.items())
                )
            )
    return None


def _have(fields: Mapping[str, Test], value: JsonValue) -> bool:
    return not isinstance(value, dict) or all(name not in value or test(value[name]) for name, test in fields.items())


def _found(pattern: str, text: str) -> bool:
    """True if the pattern matches. Raises TimeoutError, and InvalidInput if the pattern is not valid."""
    return _readable(pattern).search(text, timeout=max(1e-3, _patterns_until.get() - monotonic())) is not None


def _readable(pattern: str) -> Any:
    """The compiled pattern, which `regex` caches. Raises InvalidInput if it is not valid."""
    try:
        return regex.compile(pattern)
    except (regex.error, RecursionError) as error:
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


def _additional_properties(
    validator: Any, below: Any, value: Any, schema: Mapping[str, Any]
) -> Iterator[jsonschema.ValidationError]:
    if not validator.is_type(value, "object"):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    others = [name for name in value if name not in known and not any(_found(pattern, name) for pattern in patterns)]
    if validator.is_type(below, "object"):
        for name in others:
            yield from validator.descend(value[name], below, path=name)
    elif not below and others:
        names = ", ".join(map(repr, sorted(others)))
        if patterns:
            does = "does" if len(others) == 1 else "do"
            patterns_shown = ", ".join(map(repr, sorted(patterns)))
            yield jsonschema.ValidationError(f"{names} {does} not match any of the regexes: {patterns_shown}")
        else:
            was = "was" if len(others) == 1 else "were"
            yield jsonschema.ValidationError(f"Additional properties are not allowed ({names} {was} unexpected)")


def _unevaluated_properties(
    validator: Any, below: object, value: Any, schema: object
) -> Iterator[jsonschema.ValidationError]:
    if validator.is_type(value, "object") and value:
        raise InvalidInput("a JSON Schema with unevaluatedProperties and patternProperties cannot be checked in time")
    yield from ()


def _unique_items(validator: Any, wanted: bool, value: Any, schema: object) -> Iterator[jsonschema.ValidationError]:
    if not wanted or not validator.is_type(value, "array"):
        return
    if len({json.dumps(with_whole_numbers(item), sort_keys=True) for item in value}) < len(value):
        yield jsonschema.ValidationError(f"{value!r} has non-unique elements")


def with_whole_numbers(value: JsonValue) -> JsonValue:
    """The value with 1.0 as 1: in JSON they are one number."""
    if isinstance(value, dict):
        return {name: with_whole_numbers(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [with_whole_numbers(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _multiple_of(validator: Any, factor: float, value: Any, schema: object) -> Iterator[jsonschema.ValidationError]:
    if validator.is_type(value, "number") and not _is_multiple(value, factor):
        yield jsonschema.ValidationError(f"{value!r} is not a multiple of {factor}")


def _is_multiple(value: float, factor: float) -> bool:
    """True if a number is a multiple of another, as both are written: 19.99 is one of 0.01."""
    try:
        return Fraction(str(value)) % Fraction(str(factor)) == 0
    except ValueError:  # NaN or infinite
        return False


_BOUNDED: Mapping[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
    "multipleOf": _multiple_of,
}


def _most_steps(value: JsonValue) -> int:
    """How many keywords may be evaluated for a value. Raises RecursionError if it is nested too deeply."""
    return min(STEPS, LEAST_STEPS + STEPS_PER_PART * _parts(value))


def _parts(value: JsonValue) -> int:
    """Number of values in a value, itself included."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_parts, inner))


_OF_FORM = frozenset({"pattern", "minLength", "maxLength"})
"""Keywords on the form of a text."""


def _counted(keyword: Keyword, *, is_lenient: bool) -> Keyword:
    """A keyword that raises InvalidInput if too many keywords were evaluated for one value.

    If it is lenient, it allows every text with a placeholder.
    """

    def evaluate(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterable[jsonschema.ValidationError]:
        if next(_steps_left.get(), None) is None:
            raise InvalidInput("not a usable JSON Schema: it takes too many steps to check one value")
        if is_lenient and isinstance(value, str) and MARK.search(value):
            return ()
        return keyword(validator, wanted, value, schema) or ()

    return evaluate
