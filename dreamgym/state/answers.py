"""Reads answers as JSON, and adds the facts that they show to a partly known state."""

from __future__ import annotations

import json
from typing import Protocol

from pydantic import JsonValue

from dreamgym.state.schema import StateSchema, entities
from dreamgym.state.value import as_text, parsed
from dreamgym.types import JsonObject


class HasAnswer(Protocol):
    """A recorded result, or a prediction."""

    @property
    def observation(self) -> str:
        """The text."""

    @property
    def structured(self) -> JsonObject | None:
        """The structured content."""


def shown_in(answer: HasAnswer) -> JsonValue:
    """The structured content, or the text if that is a JSON object or list; None if the answer is words.

    White space around the JSON does not matter. A number or a word such as `true` alone is words: it names nothing.
    """
    if answer.structured is not None:
        return answer.structured
    if not answer.observation.lstrip().startswith(("{", "[")):
        return None
    try:
        value: JsonValue = json.loads(answer.observation)
    except (ValueError, RecursionError):
        return None
    return value


def with_facts(state: str, shown: JsonValue, schema: StateSchema) -> str:
    """The state with unknown fields of incomplete collections filled in from an answer.

    Known values stay. A value that the schema does not allow is not a fact.
    """
    world = parsed(state)
    if world is None or shown is None:
        return state
    for name, identity, entity in entities(shown, schema):
        if not schema.collections[name].complete:
            world = _with_entity(world, name, identity, entity, schema)
    return as_text(world)


def _with_entity(world: JsonObject, name: str, identity: str, entity: JsonObject, schema: StateSchema) -> JsonObject:
    known = world.get(name, {})
    if not isinstance(known, dict):
        return world
    old = known.get(identity, {})
    wider = {**world, name: {**known, identity: {**entity, **(old if isinstance(old, dict) else {})}}}
    return world if schema.fault_of(wider) else wider
