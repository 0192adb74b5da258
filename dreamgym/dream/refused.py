"""The tier of refusals: refuses a call that names a missing entity, in recorded words, before a model is asked.

What a call must name is learned from those demonstrations of the query that are recordings of the called tool; dreamed
transitions are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic import JsonValue

from dreamgym.dream.checks import Place, is_checked, place_of, recordings_of_tool, texts_in
from dreamgym.dream.model import Prediction, Query
from dreamgym.dream.recorded import content_of
from dreamgym.dream.substitution import BYTES, Substitution
from dreamgym.replay.buffer import Demonstration
from dreamgym.state import State, StateSchema, leaves
from dreamgym.types import Provenance, Tier, ToolCall

Reference = tuple[Place, str]
"""An argument that names entities, and their collection."""


class RefusedTier:
    """Refuses calls in the words of recorded refusals."""

    infers = False

    async def answer(self, query: Query) -> Prediction | None:
        """The refusal; None if no recorded refusal applies to the call."""
        return refusal(query)


def refusal(query: Query) -> Prediction | None:
    """The recorded refusal of a call that names a missing entity; None if the recordings show no such refusal.

    An argument names entities of a collection if it did so in every recorded call of the tool that was not refused.
    Only a complete collection shows that an entity is missing. A recorded refusal does not apply to this call if its
    own call missed something that this one does not miss: that may have been its cause.
    """
    schema = query.spec.state
    if schema is None or not is_checked(query):
        return None
    recorded = recordings_of_tool(query)
    references = _references(recorded, query.action, schema)
    missing = _missing(query.action, query.state, references)
    alike = [
        (one, known)
        for one in recorded
        if one.transition.result.is_error and not one.transition.result.done
        # one that changed the state is more than a refusal
        if one.transition.next_state == one.transition.state
        if (known := _missing(one.transition.action, State.of(one.transition.state, schema), references))
        if known and known <= missing
    ]
    if not alike:
        return None
    chosen, _ = min(alike, key=lambda found: found[1] != missing)
    step = chosen.transition
    substitution = Substitution(
        _by_place(step.action, State.of(step.state, schema), references),
        _by_place(query.action, query.state, references),
    )
    content = content_of(step.result)
    return Prediction(
        observation=substitution(step.result.observation),
        structured=None if step.result.structured is None else substitution.within(step.result.structured),
        content=None if content is None else tuple(substitution.within(block, BYTES) for block in content),
        next_state=query.state.text,
        is_error=True,
        provenance=Provenance(tier=Tier.CHECK, retrieved=(chosen.id,), seed=query.seed),
    )


def _references(recorded: Sequence[Demonstration], action: ToolCall, schema: StateSchema) -> frozenset[Reference]:
    """The arguments of the call that name entities, each with its complete collection."""
    done = [
        (State.of(one.transition.state, schema), texts_in(one.transition.action.arguments))
        for one in recorded
        if not one.transition.result.is_error
    ]
    found = set()
    for place in {place for place, _ in texts_in(action.arguments)}:
        values = [(state, value) for state, texts in done if state.is_explicit for at, value in texts if at == place]
        for name, collection in schema.collections.items():
            if collection.complete and values and all(value in state.collection(name) for state, value in values):
                found.add((place, name))
    return frozenset(found)


def _missing(action: ToolCall, state: State, references: frozenset[Reference]) -> frozenset[Reference]:
    """The references of a call whose entity a state does not have; none if the state is a text.

    A blank names nothing: its refusal is about the blank.
    """
    if not state.is_explicit:
        return frozenset()
    texts = texts_in(action.arguments)
    return frozenset(
        (place, name)
        for place, name in references
        if any(at == place and value.strip() and value not in state.collection(name) for at, value in texts)
    )


def _by_place(action: ToolCall, state: State, references: frozenset[Reference]) -> ToolCall:
    """The call with one value for each place; from a list, the first value that names a missing entity, if any."""

    def names_something(leaf: tuple[Place, JsonValue]) -> bool:
        return not any(place == leaf[0] and leaf[1] not in state.collection(name) for place, name in references)

    values: dict[Place, JsonValue] = {}
    for place, value in sorted(
        ((place_of(path), value) for path, value in leaves(action.arguments)), key=names_something
    ):
        values.setdefault(place, value)
    return ToolCall(name=action.name, arguments={json.dumps(place): value for place, value in values.items()})
