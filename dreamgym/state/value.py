"""A state as a value: words, or typed JSON under a schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from dreamgym.state.changes import Operation, apply, changed_fields
from dreamgym.state.json_values import as_object, mentioned, same
from dreamgym.state.schema import StateSchema
from dreamgym.types import JsonObject

CACHED_CHARACTERS = 20_000
"""Longer texts are parsed anew by each `State`: 256 of them in the cache would fill the memory."""


@dataclass(frozen=True, eq=False)
class State:
    """The state of an environment at one moment. It never changes; a step leads to another one.

    Two states are equal if their texts are, or if both are explicit and hold the same JSON.
    """

    text: str
    """The state as transitions store it; the text of `as_text` for an explicit state."""
    schema: StateSchema | None = None
    """Schema of the environment's explicit states; None if its states are texts."""

    @classmethod
    def of(cls, state: str | JsonObject, schema: StateSchema | None = None) -> State:
        """The state with this text or this content."""
        return cls(state if isinstance(state, str) else as_text(state), schema)

    @cached_property
    def content(self) -> JsonObject | None:
        """The text as a JSON object, parsed once; None if the state is words. It is shared: nobody may change it."""
        # the recordings that ground one step mostly ground the next one too
        return _parsed_before(self.text) if len(self.text) <= CACHED_CHARACTERS else parsed(self.text)

    @property
    def is_explicit(self) -> bool:
        """True if the state is JSON and there is a schema for it."""
        return self.schema is not None and self.content is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, State):
            return NotImplemented
        if self.text == other.text:
            return True
        return self.content is not None and same(self.content, other.content)

    def __hash__(self) -> int:
        return hash(self.text if self.content is None else as_text(self.content))

    def collection(self, name: str) -> JsonObject:
        """Entities by their id; empty if there is no such collection."""
        return as_object((self.content or {}).get(name))

    def entity(self, name: str, identity: str) -> JsonObject | None:
        """One entity of a collection; None if there is none of this id."""
        entity = self.collection(name).get(identity)
        return entity if isinstance(entity, dict) else None

    def changed_fields(self, after: State) -> frozenset[str]:
        """JSON pointers of all single fields that were added, removed or changed; a list counts as one field."""
        return changed_fields(self.content or {}, after.content or {})

    def relevant(self, arguments: JsonObject) -> JsonObject:
        """The part of an explicit state that a call with these arguments is about (see `relevant`)."""
        return {} if self.schema is None else relevant(self.content or {}, arguments, self.schema)

    def after(self, operations: Sequence[Operation]) -> State:
        """The state with the changes made in their order. Raises ImpossibleChange."""
        return State.of(apply(self.content or {}, operations, self.schema), self.schema)


def parsed(text: str) -> JsonObject | None:
    """The JSON object that a state's text is; None if the state is words alone."""
    if not text.startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@lru_cache(maxsize=256)
def _parsed_before(text: str) -> JsonObject | None:
    return parsed(text)


def as_text(state: JsonObject) -> str:
    """The one text of a state: equal states give equal texts."""
    return json.dumps(state, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def relevant(state: JsonObject, arguments: JsonObject, schema: StateSchema) -> JsonObject:
    """The part of a state that a call is about.

    It contains all single values, the entities that the arguments name, the entities that those name, and the entities
    that name those. A call that names none is about the whole state.
    """
    named = _entities_named(state, mentioned(arguments), schema)
    if not named:
        return state
    onward = _entities_named(state, mentioned([as_object(state[name])[identity] for name, identity in named]), schema)
    ids = frozenset(identity for _, identity in named)
    back = {
        (name, identity)
        for name in schema.collections
        for identity, entity in as_object(state.get(name)).items()
        if ids & mentioned(entity)
    }
    about = named | onward | back
    part: JsonObject = {name: value for name, value in state.items() if name not in schema.collections}
    for name in schema.collections:
        if name in state:
            part[name] = {i: entity for i, entity in as_object(state[name]).items() if (name, i) in about}
    return part


def _entities_named(state: JsonObject, words: frozenset[str], schema: StateSchema) -> set[tuple[str, str]]:
    return {(name, i) for name in schema.collections for i in as_object(state.get(name)).keys() & words}
