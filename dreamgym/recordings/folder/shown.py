"""What answers show of a world, fact by fact."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from pydantic import JsonValue

from dreamgym.state import StateSchema, entities, shown_in
from dreamgym.types import JsonObject, StepResult, Trajectory

Place = tuple[str, str, str]
"""A fact: collection, id, field."""


class Shown(NamedTuple):
    """One fact in one answer."""

    step: int
    value: JsonValue


def answered(result: StepResult) -> JsonValue:
    """What an answer shows of the state, as JSON; an error shows nothing of it."""
    return None if result.is_error else shown_in(result)


def facts_in(trajectory: Trajectory, schema: StateSchema) -> dict[Place, list[Shown]]:
    """Every fact that an answer shows, in the order of the answers; what the schema does not allow is no fact."""
    found: dict[Place, list[Shown]] = defaultdict(list)
    for step, transition in enumerate(trajectory.transitions):
        for name, identity, entity in entities(answered(transition.result), schema):
            for field, value in entity.items():
                alone: JsonObject = {schema.collections[name].key: entity[schema.collections[name].key], field: value}
                if schema.fault_of({name: {identity: alone}}) is None:
                    found[name, identity, field].append(Shown(step, value))
    return found
