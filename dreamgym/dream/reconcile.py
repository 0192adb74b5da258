"""What an answer shows of an explicit state, put right by the state.

A read shows what the state holds, so a slip of the model in copying it is no news of the world. Of a write only those
fields are put right that the model itself changed: it said by how much, and code calculates. Anything else that an
answer shows otherwise than the state is left for the check to find, since there the changes may be what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Sequence, Set

from pydantic import JsonValue

from dreamgym.environment import EnvironmentSpec
from dreamgym.state import StateSchema, entities, parsed
from dreamgym.types import JsonObject, Transition

Field = tuple[str, str]
"""A collection, and a field of its entities."""


def put_right(
    value: JsonValue, state: JsonObject, schema: StateSchema, paths: Set[str] | None, excused: Set[Field]
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
    if shown is None or not _is_itself(shown[1], value, schema.collections[shown[0]].key):
        return whole
    name, identity, fields = shown
    known = _entity(state, name, identity)
    for field in fields.keys() & known.keys():
        if (name, field) not in excused and (paths is None or f"/{name}/{identity}/{field}" in paths):
            whole[field] = known[field]
    return whole


def shown_otherwise(recorded: Sequence[Transition], schema: StateSchema) -> frozenset[Field]:
    """The fields that recorded answers show otherwise than the state after them."""
    found = set()
    for step in recorded:
        after = parsed(step.next_state)
        if after is None or step.result.is_error:
            continue
        for name, identity, fields in entities(shown_value(step.result.structured, step.result.observation), schema):
            known = _entity(after, name, identity)
            found |= {(name, field) for field in fields.keys() & known.keys() if fields[field] != known[field]}
    return frozenset(found)


def shown_value(structured: JsonObject | None, observation: str) -> JsonValue:
    """What an answer shows, as JSON: its structured content, or its text where that is an object or a list."""
    if structured is not None:
        return structured
    if not observation.startswith(("{", "[")):
        return None
    try:
        value: JsonValue = json.loads(observation)
    except ValueError:
        return None
    return value


def only_reads(spec: EnvironmentSpec, tool: str, recorded: Sequence[Transition]) -> bool:
    """The tool says that it changes nothing, or no recording of it changes anything."""
    hints = next((one.get("annotations") for one in spec.tools if one["name"] == tool), None)
    if isinstance(hints, dict) and hints.get("readOnlyHint") is True:
        return True
    done = [step for step in recorded if not step.result.is_error]
    return bool(done) and all(step.state == step.next_state for step in done)


def _is_itself(identity: str, value: JsonObject, key: str) -> bool:
    """The first entity of a value is the value and none of its parts."""
    return value.get(key) == identity


def _entity(state: JsonObject, name: str, identity: str) -> JsonObject:
    part = state.get(name)
    entity = part.get(identity) if isinstance(part, dict) else None
    return entity if isinstance(entity, dict) else {}
