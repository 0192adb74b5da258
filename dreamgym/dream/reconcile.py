"""Corrects the part of an answer that shows entities of an explicit state.

A read shows what the state holds, so a slip of the model in copying it is no news of the world. Of a write only those
fields are put right that the model itself changed: it said by how much, and code calculates. Anything else that an
answer shows otherwise than the state is left for the check to find, since there the changes may be what is wrong.
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
        value: what the answer shows.
        state: after the step.
        schema: of the state.
        paths: of the fields that may be put right; None: all.
        excused: fields of which the tool shows something else than the state.
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
        return whole  # the entity is a part of the value, or its id is a number
    known = state.entity(name, identity) or {}
    for field in fields.keys() & known.keys():
        if (name, field) not in excused and (paths is None or pointer(name, identity, field) in paths):
            whole[field] = known[field]
    return whole


def shown_otherwise(recorded: Sequence[Transition], schema: StateSchema) -> frozenset[Field]:
    """The fields that recorded answers show otherwise than the state after them."""
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
    """The tool says that it changes nothing, or no recording of it changes anything."""
    hints = next((one.get("annotations") for one in spec.tools if one["name"] == tool), None)
    if isinstance(hints, dict) and hints.get("readOnlyHint") is True:
        return True
    done = [step for step in recorded if not step.result.is_error]
    return bool(done) and all(step.state == step.next_state for step in done)
