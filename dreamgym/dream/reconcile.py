"""Corrects the part of an answer that shows entities of an explicit state.

A read shows what the state contains, so a slip of the model in copying it is corrected. In the answer of a write, only
the fields that the model itself changed are corrected: the model says by how much, and code calculates. Any other
difference between answer and state is left for the check to find, because the changes may be what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from pydantic import JsonValue

from dreamgym.environment import EnvironmentSpec
from dreamgym.state import State, StateSchema, entities, pointer, shown_in
from dreamgym.types import Transition

Field = tuple[str, str]
"""A collection, and a field of its entities."""


def put_right(
    value: JsonValue, state: State, schema: StateSchema, paths: Set[str] | None, excused: Set[Field]
) -> JsonValue:
    """The value with the fields of shown entities as they are in the state.

    Args:
        value: the JSON that the answer shows.
        state: the state after the step.
        schema: the schema of the state.
        paths: paths of the fields that may be corrected; None: all.
        excused: fields in which the tool's answers differ from the state; they are not corrected.
    """
    if isinstance(value, list):
        return [put_right(item, state, schema, paths, excused) for item in value]
    if not isinstance(value, dict):
        return value
    whole = {name: put_right(part, state, schema, paths, excused) for name, part in value.items()}
    shown = next(entities(value, schema), None)
    if shown is None:
        return whole
    name, identity, fields = shown
    if value.get(schema.collections[name].key) != identity:
        return whole  # the entity is only a part of the value, or its id is a number
    known = state.entity(name, identity) or {}
    for field in fields.keys() & known.keys():
        if (name, field) not in excused and (paths is None or pointer(name, identity, field) in paths):
            whole[field] = known[field]
    return whole


def shown_otherwise(recorded: Sequence[Transition], schema: StateSchema) -> frozenset[Field]:
    """The fields in which recorded answers differ from the state after them."""
    found = set()
    for step in recorded:
        if step.result.is_error:
            continue
        after = State.of(step.next_state, schema)
        for name, identity, fields in entities(shown_in(step.result), schema):
            known = after.entity(name, identity) or {}
            found |= {(name, field) for field in fields.keys() & known.keys() if fields[field] != known[field]}
    return frozenset(found)


def only_reads(spec: EnvironmentSpec, tool: str, recorded: Sequence[Transition]) -> bool:
    """True if the tool is annotated as read-only, or if it has recordings and none of them changes the state."""
    hints = next((one.get("annotations") for one in spec.tools if one["name"] == tool), None)
    if isinstance(hints, dict) and hints.get("readOnlyHint") is True:
        return True
    done = [step for step in recorded if not step.result.is_error]
    return bool(done) and all(step.state == step.next_state for step in done)
