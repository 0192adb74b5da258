"""Derived fields: values of a state that follow from the rest of it, no matter which tool was called.

For example, whether a ticket is overdue follows from its due hour and the current hour. Such a field is recomputed
after every call, so that no program needs an effect for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from dreamgym.state import StateSchema, same
from dreamgym.synthesis.expressions import Entities, Expression
from dreamgym.synthesis.paths import IndexedState, bind
from dreamgym.types import JsonObject


@dataclass(frozen=True)
class DerivedField:
    """A field that follows from the rest of the state."""

    collection: str
    """Empty for a single value of the state."""
    field: str
    """Name of the field, or of the single value."""
    value: Expression | Entities
    """The value of the field, as an expression in which the entity is the item. With `Entities`, the field is true for
    these entities and false for the others of their collection."""

    @property
    def place(self) -> tuple[str, str]:
        """Collection and field."""
        return self.collection, self.field

    def values(self, state: IndexedState) -> dict[str, JsonValue]:
        """The value for each entity id; a single value has the empty text as its id. Raises NoValue."""
        call = bind(state, {})
        if isinstance(self.value, Entities):
            passing = self.value.unordered(call)
            return {identity: identity in passing for identity in state.collections[self.collection]}
        if not self.collection:
            return {"": self.value.value(call)}
        entities = state.collections[self.collection]
        return {identity: self.value.value(call.of_entity(self.collection, identity)) for identity in entities}

    def __str__(self) -> str:
        if not self.collection:
            return f"state.{self.field} = {self.value}"
        return f"{self.collection}[].{self.field} = {'in ' if isinstance(self.value, Entities) else ''}{self.value}"


def settled(state: JsonObject, derived: Sequence[DerivedField], schema: StateSchema) -> JsonObject:
    """The state with its derived fields recomputed; the same object if they were right. Raises NoValue.

    Args:
        state: the state, which is not changed.
        derived: the derived fields, each after those that it follows from.
        schema: schema of the state.
    """
    for one in derived:
        values = one.values(IndexedState(state, schema))
        if not one.collection:
            if one.field not in state or not same(state[one.field], values[""]):
                state = {**state, one.field: values[""]}
            continue
        collection = state.get(one.collection)
        if not isinstance(collection, dict):
            continue
        changed: JsonObject = {}
        for identity, value in values.items():
            entity = collection[identity]
            assert isinstance(entity, dict)
            if one.field not in entity or not same(entity[one.field], value):
                changed[identity] = {**entity, one.field: value}
        if changed:
            state = {**state, one.collection: {**collection, **changed}}
    return state
