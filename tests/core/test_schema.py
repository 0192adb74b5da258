"""Untrusted schemas are checked as jsonschema checks them, in bounded time, and without fetching anything."""

from __future__ import annotations

import json
import math
import re
import socket
from pathlib import Path
from time import process_time

import jsonschema
import pytest
from growth import grows_linearly
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import JsonValue

from dreamgym.errors import InvalidInput
from dreamgym.schema import PATTERNS_S, fault_under, schema_of
from dreamgym.types import JsonObject

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, 1.0]) | st.text("ab1", max_size=3),
    lambda part: st.lists(part, max_size=4) | st.dictionaries(st.text("ab", max_size=2), part, max_size=4),
    max_leaves=10,
)


@example(schema={"uniqueItems": True}, value=[{"a": 1}, {"a": 1.0}])
@given(
    value=JSON,
    schema=st.sampled_from(
        [
            {"uniqueItems": True},
            {"pattern": "^a+1?$"},
            {"patternProperties": {"^a": {"type": "string"}}},
            {"items": {"uniqueItems": True, "maxItems": 2}},
            {"additionalProperties": {"pattern": "b"}},
            {"additionalProperties": False, "properties": {"a": {}}, "patternProperties": {"^b": {}, "aa": {}}},
            {"patternProperties": {"^b": {}}, "additionalProperties": {"type": "null"}},
            {"anyOf": [{"type": "integer"}, {"pattern": "^$"}, {"uniqueItems": True}]},
        ]
    ),
)
def test_a_value_is_judged_as_jsonschema_judges_it(schema: dict[str, JsonValue], value: JsonValue) -> None:
    assert (fault_under(schema, value) is None) is jsonschema.Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize("reference", ["http://127.0.0.1:{port}/admin", "https://127.0.0.1:{port}/x#/a"])
def test_a_reference_to_another_document_is_refused_and_not_fetched(reference: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        address = reference.format(port=listener.getsockname()[1])
        referring: tuple[JsonObject, ...] = (
            {"$ref": address},
            {"properties": {"a": {"$ref": address}}},
            {"$dynamicRef": address},
        )
        for schema in referring:
            with pytest.raises(InvalidInput, match="is not in the schema itself"):
                fault_under(schema, {"a": 1})
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_reference_to_a_file_is_refused_and_not_read(tmp_path: Path) -> None:
    (tmp_path / "yes.json").write_text("true", encoding="utf-8")
    with pytest.raises(InvalidInput, match="is not in the schema itself"):
        fault_under({"$ref": (tmp_path / "yes.json").as_uri()}, {})


@pytest.mark.parametrize(
    "schema", [{"$ref": "#"}, {"type": 7}, {"$ref": "#/nowhere"}, {"pattern": "("}, 7, "x", None, []]
)
def test_an_unusable_schema_is_reported_as_invalid_input(schema: JsonValue) -> None:
    with pytest.raises(InvalidInput, match="JSON Schema"):
        fault_under(schema, "x")


def test_a_pattern_that_backtracks_without_an_end_is_given_up_in_time() -> None:
    many: JsonValue = ["a" * 40 + "b"] * 1000
    begun = process_time()
    fault = fault_under({"items": {"pattern": "^(a|aa)+$"}}, many)
    assert fault == f"the patterns of the schema could not be checked within {PATTERNS_S:g} s"
    assert process_time() - begun < 100 * PATTERNS_S


SLOW: JsonObject = {"patternProperties": {"^([a-z0-9]|[a-z])+$": {}}}


def test_a_name_on_which_a_pattern_backtracks_without_an_end_is_given_up_in_time() -> None:
    begun = process_time()
    assert fault_under({"additionalProperties": False, **SLOW}, {"a" * 40 + "!": 1}) is not None
    assert process_time() - begun < 100 * PATTERNS_S


def test_a_part_of_a_schema_that_names_its_dialect_is_checked_in_bounded_time_too() -> None:
    part: JsonObject = {"$schema": "https://json-schema.org/draft/2020-12/schema", "pattern": "^([a-z0-9]|[a-z])+$"}
    fault = fault_under({"items": part}, ["a" * 40 + "!"])
    assert fault == f"the patterns of the schema could not be checked within {PATTERNS_S:g} s"


def test_unevaluated_names_are_not_looked_for_by_patterns_that_no_limit_stops() -> None:
    schema: JsonObject = {"unevaluatedProperties": False, "allOf": [SLOW]}
    assert fault_under(schema, {}) is None
    with pytest.raises(InvalidInput, match="cannot be checked in time"):
        fault_under(schema, {"a" * 40 + "!": 1})


def test_references_that_double_the_work_again_and_again_are_refused() -> None:
    parts: JsonObject = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)}
    with pytest.raises(InvalidInput, match="takes too many steps"):
        fault_under({"$ref": "#/$defs/a0", "$defs": {**parts, "a40": {"type": "object"}}}, {})


def test_a_small_value_is_given_up_after_few_steps_and_a_large_one_is_checked_whole() -> None:
    either: JsonObject = {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)}
    schema: JsonObject = {"properties": {"v": {"$ref": "#/$defs/a0"}}, "$defs": {**either, "a40": {"type": "integer"}}}
    begun = process_time()
    with pytest.raises(InvalidInput, match="takes too many steps"):
        fault_under(schema, {"v": "s"})
    assert process_time() - begun < 2.5
    many: JsonObject = {"items": {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}]}}
    assert fault_under(many, [1] * 32_000) is None
    assert fault_under(many, [*([1] * 32_000), -1]) is not None


def test_look_ahead_and_escapes_of_javascript_are_understood() -> None:
    assert fault_under({"pattern": r"^\p{L}+$"}, "Ünal") is None
    assert fault_under({"pattern": r"^(?<year>\d{4})$"}, "in 2024") is not None
    assert fault_under({"pattern": r"^(?!\.)[^\x00\/]+@[\w.-]+$"}, "ada@example.org") is None
    assert fault_under({"pattern": r"^(?!\.)[^\x00\/]+@[\w.-]+$"}, ".ada@example.org") is not None


@pytest.mark.parametrize(
    ("schema", "item"),
    [
        ({"items": {"uniqueItems": True}, "uniqueItems": True}, '{{"k": {n}}}'),
        ({"uniqueItems": True}, "[{n}]"),
        ({"items": {"pattern": "^(a+)+$"}}, '"aaaaaaaaaaaaaaaaaaaaaaaaaaaaab{n}"'),
        ({"items": {"type": "string"}}, "{n}"),
        ({"items": {"anyOf": [{"type": "string"}, {"type": "null"}, {"enum": [1, 2, 3]}]}}, '[{n}, "x"]'),
        ({"items": {"additionalProperties": False}}, '{{"k{n}": {n}}}'),
        ({"contains": {"const": "never"}}, '"{n}"'),
        ({"patternProperties": {"^(x+x+)+y": {}}}, '{{"xxxxxxxxxxxxxxxxxxxxxxxxx{n}": 1}}'),
        ({"items": {"additionalProperties": False, "patternProperties": {"^(a+)+$": {}}}}, '{{"aaaaaaaaaaaab{n}": 1}}'),
    ],
)
def test_a_value_is_checked_in_linear_time(schema: dict[str, JsonValue], item: str) -> None:
    def value(size: int) -> str:
        return f"[{','.join(item.format(n=n) for n in range(size // 16))}]"

    assert re.match(r"\[.+\]", value(64))
    assert grows_linearly(lambda text: fault_under(schema, json.loads(text)), value)


@pytest.mark.parametrize(
    ("factor", "number", "is_one"),
    [
        (0.01, 19.99, True),
        (0.1, 0.3, True),
        (0.01, 10**400, True),
        (0.01, 1e22, True),
        (1e-320, 5, True),
        (2.5, -7.5, True),
        (3, 9.0, True),
        (0.01, 19.995, False),
        (7, 10**400, False),
        (0.01, math.nan, False),
        (0.01, -math.inf, False),
    ],
)
def test_a_number_is_a_multiple_of_another_as_both_are_written(factor: float, number: float, is_one: bool) -> None:
    assert fault_under({"multipleOf": factor}, number) == (
        None if is_one else f"{number!r} is not a multiple of {factor}"
    )


def test_a_number_that_is_too_large_to_divide_is_a_fault_of_the_value() -> None:
    draft_3: JsonObject = {
        "$schema": "http://json-schema.org/draft-03/schema#",
        "properties": {"n": {"divisibleBy": 0.01}},
    }
    assert fault_under(draft_3, {"n": 10**400}) == "a number is too large to be checked"
    assert schema_of(draft_3).field_faults({"n": 10**400}) == ()


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"$schema": 5}, r"\$schema: expected a text, got 5"),
        ({"$schema": ["x"]}, r"\$schema: expected a text, got \['x'\]"),
        ({"properties": {"a": {"pattern": "(" * 3000 + ")" * 3000}}}, r"the pattern '\(+ cannot be read"),
    ],
)
def test_a_schema_that_cannot_be_read_is_refused_with_the_reason(schema: JsonObject, reason: str) -> None:
    with pytest.raises(InvalidInput, match=f"not a usable JSON Schema: {reason}"):
        schema_of(schema).require_usable()


def test_a_fault_in_an_alternative_is_told_with_its_field() -> None:
    status: JsonObject = {"anyOf": [{"type": "string", "enum": ["open", "done"]}, {"type": "null"}]}
    fault = fault_under({"properties": {"status": status}}, {"status": "lost"})
    assert fault == "status: 'lost' is not one of ['open', 'done']"
