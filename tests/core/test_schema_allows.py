"""The fast test of a value under a schema agrees with the validator."""

from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from dreamgym.schema import schema_of
from dreamgym.types import JsonObject

NAMES = st.sampled_from(["a", "b", "c"])
PLAIN = st.sampled_from([None, True, False, 0, 1, 1.0, "", "a", "b"])
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)


def keywords(inner: st.SearchStrategy[JsonValue]) -> st.SearchStrategy[JsonObject]:
    some = st.lists(inner, min_size=1, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "const": PLAIN,
            "enum": st.lists(PLAIN, min_size=1, max_size=3),
            "type": st.sampled_from(["string", "object", "array", "null", "boolean", "integer"]),
            "required": st.lists(NAMES, unique=True, max_size=2).map(list),
            "not": inner,
            "contains": inner,
            "minContains": st.integers(0, 2),
            "anyOf": some.map(list),
            "allOf": some.map(list),
            "properties": st.dictionaries(NAMES, inner, max_size=2),
            "additionalProperties": inner,
        },
    ).map(lambda found: {**found})  # type: ignore[dict-item]  # all are JSON


SCHEMAS: st.SearchStrategy[JsonValue] = st.recursive(st.booleans(), keywords, max_leaves=6)


@given(SCHEMAS, VALUES)
def test_a_value_is_allowed_if_and_only_if_no_fault_is_found(schema: JsonValue, value: JsonValue) -> None:
    compiled = schema_of(schema)
    assert compiled.allows(value) == (compiled.fault(value) is None)
