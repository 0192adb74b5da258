"""Checks around the model that only an explicit state makes possible: before it is asked, and of what it answers.

What must hold is learned from recordings of the called tool, which a query brings as its demonstrations; dreamed ones
teach nothing. More recordings can only loosen a check, so what holds under few of them need not be asked again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from pydantic import JsonValue

from dreamgym.dream.model import Part, Prediction, Query, Reach
from dreamgym.dream.nearest import BYTES, Substitution
from dreamgym.dream.reconcile import only_reads, shown_value
from dreamgym.replay.buffer import GROUNDED, Demonstration
from dreamgym.state import StateSchema, changed_fields, entities, parsed, unescaped
from dreamgym.types import JsonObject, Provenance, Tier, ToolCall, Transition

Place = tuple[str, ...]
"""Where an argument stands, without positions in lists."""
Reference = tuple[Place, str]
"""An argument that names entities, and their collection."""


LEAST_CALLS = 5
"""Recorded calls of a tool that tell what it changes. After fewer, a right call often changes something new."""


def precondition(query: Query) -> Prediction | None:
    """The recorded refusal of a call that names what does not exist; None where the recordings show no such refusal.

    An argument names entities of a collection where it did in every recorded call of the tool that was not refused.
    Only a complete collection says that something does not exist. A recorded refusal tells nothing of this call where
    it may have been for something else that was missing.
    """
    schema, state = _explicit(query)
    if schema is None or state is None:
        return None
    recorded = _recordings(query)
    references = _references(recorded, query.action, schema)
    missing = _missing(query.action, state, references)
    refusals = [(one, known) for one in _unchanging(recorded) if (known := _missing_then(one, references)) <= missing]
    alike = [(one, known) for one, known in refusals if known]
    if not alike:
        return None
    refusal, _ = min(alike, key=lambda found: found[1] != missing)
    return _substituted(query, refusal, state, references)


def changeable(query: Query) -> dict[str, Reach] | None:
    """The kinds of changes that recorded calls of the tool made, and how far from the call; None where too few tell.

    What an agent writes into an argument may talk a model into any change, and a task's own check believes the state.
    So a call may change the fields that recorded calls of its tool changed, of entities as near to it, and a tool that
    only reads may change nothing.
    """
    schema, _ = _explicit(query)
    if schema is None:
        return None
    done = [one.transition for one in _recordings(query) if not one.transition.result.is_error]
    known = [(step, parsed(step.state), parsed(step.next_state)) for step in done]
    bound: dict[str, Reach] = {}
    for step, before, after in known:
        if before is not None and after is not None:
            for kind, reach in _changes(before, after, step.action, schema):
                bound[kind] = max(reach, bound.get(kind, reach))
    explicit = sum(before is not None and after is not None for _, before, after in known)
    return bound if explicit >= LEAST_CALLS or only_reads(query.spec, query.action.name, ()) else None


def _changes(
    before: JsonObject, after: JsonObject, action: ToolCall, schema: StateSchema
) -> Iterator[tuple[str, Reach]]:
    """Each kind of change between two states: a field of entities that came, went or stayed."""
    named = {value for _, value in _texts(action.arguments)}
    near = {
        value
        for name in schema.collections
        for identity in named
        for state in (before, after)
        for _, value in _texts(_entities(state, name).get(identity))
    }
    for path in changed_fields(before, after):
        name, *rest = unescaped(path)
        if name not in schema.collections or not rest:
            yield name, Reach.ANY
            continue
        identity, *field = rest
        was, then = _entities(before, name).get(identity), _entities(after, name).get(identity)
        if was is None:
            yield "/".join([name, "+", *field[:1]]), Reach.NAMED
            continue
        names = {value for one in (was, then) for _, value in _texts(one)}
        reach = Reach.NAMED if identity in named else Reach.LINKED if identity in near or names & named else Reach.ANY
        yield "/".join([name, "*" if then is not None else "-", *field[:1]]), reach


def disagreement(query: Query, prediction: Prediction) -> str | None:
    """Where the answer and the state after it contradict each other, in one clause; None where they do not.

    A change of what the tool may not change is one too. Fields in which this tool's own recordings differ from the
    state after them are not compared.
    """
    schema, before = _explicit(query)
    after = parsed(prediction.next_state)
    if schema is None or before is None or after is None:
        return None
    recorded = _recordings(query)
    if prediction.is_error:
        if after == before or any(one.transition.next_state != one.transition.state for one in _refused(recorded)):
            return None
        return f"the action is refused, and yet {', '.join(sorted(changed_fields(before, after)))} changed"
    if query.changeable is not None:
        changes, bound = _changes(before, after, query.action, schema), query.changeable
        if beyond := sorted({kind for kind, reach in changes if reach > bound.get(kind, -1)}):
            return f"{', '.join(beyond)} changed, which no recorded call of {query.action.name!r} changed"
    excused = {
        (name, field)
        for one in recorded
        if not one.transition.result.is_error
        for name, field, _ in _faults_of_recording(one.transition, schema)
    }
    shown = shown_value(prediction.structured, prediction.observation)
    faults = _faults(shown, before, after, schema)
    return next((fault for name, field, fault in faults if (name, field) not in excused), None)


def _explicit(query: Query) -> tuple[StateSchema | None, JsonObject | None]:
    """The schema and the state before, where both are there and checks are wanted."""
    if query.without & {Part.CHECKS, Part.STATE}:
        return None, None
    return query.spec.state, parsed(query.state)


def _recordings(query: Query) -> list[Demonstration]:
    """What was really seen of the called tool."""
    return [
        shown
        for shown in query.demonstrations
        if shown.source in GROUNDED and shown.transition.action.name == query.action.name
    ]


def _refused(recorded: Sequence[Demonstration]) -> Iterator[Demonstration]:
    return (one for one in recorded if one.transition.result.is_error)


def _references(recorded: Sequence[Demonstration], action: ToolCall, schema: StateSchema) -> frozenset[Reference]:
    """Which arguments of the call name entities of which complete collections."""
    places = {place for place, _ in _texts(action.arguments)}
    complete = [name for name, collection in schema.collections.items() if collection.complete]
    return frozenset((place, name) for place in places for name in complete if _always_names(recorded, place, name))


def _always_names(recorded: Sequence[Demonstration], place: Place, name: str) -> bool:
    named = [
        value in _ids(state, name)
        for one in recorded
        if not one.transition.result.is_error and (state := parsed(one.transition.state)) is not None
        for where, value in _texts(one.transition.action.arguments)
        if where == place
    ]
    return bool(named) and all(named)


def _missing(action: ToolCall, state: JsonObject, references: frozenset[Reference]) -> frozenset[Reference]:
    """The references of a call that name nothing in a state."""
    return frozenset(
        (place, name)
        for place, value in _texts(action.arguments)
        for where, name in references
        if where == place and value not in _ids(state, name)
    )


def _missing_then(one: Demonstration, references: frozenset[Reference]) -> frozenset[Reference]:
    """The same of a recorded call in its recorded state."""
    state = parsed(one.transition.state)
    return frozenset() if state is None else _missing(one.transition.action, state, references)


def _unchanging(recorded: Sequence[Demonstration]) -> Iterator[Demonstration]:
    """Refusals that changed and ended nothing."""
    for one in _refused(recorded):
        if one.transition.next_state == one.transition.state and not one.transition.result.done:
            yield one


def _substituted(
    query: Query, refusal: Demonstration, state: JsonObject, references: frozenset[Reference]
) -> Prediction:
    step, then = refusal.transition, parsed(refusal.transition.state) or {}
    substitution = Substitution(_telling(step.action, then, references), _telling(query.action, state, references))
    content = step.result.content if "content" in step.result.info else None
    return Prediction(
        observation=substitution(step.result.observation),
        structured=None if step.result.structured is None else substitution.within(step.result.structured),
        content=None if content is None else tuple(substitution.within(block, BYTES) for block in content),
        next_state=query.state,
        is_error=True,
        provenance=Provenance(tier=Tier.CHECK, retrieved=(refusal.id,), seed=query.seed),
    )


def _telling(action: ToolCall, state: JsonObject, references: frozenset[Reference]) -> ToolCall:
    """The call with one value for each place: of those in a list, the first that names nothing."""
    told: dict[Place, JsonValue] = {}
    for place, value in sorted(_leaves(action.arguments), key=lambda leaf: not _is_missing(leaf, state, references)):
        told.setdefault(place, value)
    return ToolCall(name=action.name, arguments={json.dumps(place): value for place, value in told.items()})


def _is_missing(leaf: tuple[Place, JsonValue], state: JsonObject, references: frozenset[Reference]) -> bool:
    return any(place == leaf[0] and leaf[1] not in _ids(state, name) for place, name in references)


def _faults_of_recording(step: Transition, schema: StateSchema) -> Iterator[tuple[str, str, str]]:
    before, after = parsed(step.state), parsed(step.next_state)
    if before is None or after is None:
        return iter(())
    return _faults(shown_value(step.result.structured, step.result.observation), before, after, schema)


def _faults(
    shown: JsonValue, before: JsonObject, after: JsonObject, schema: StateSchema
) -> Iterator[tuple[str, str, str]]:
    """(collection, field, what is wrong); the field is empty for an entity that does not exist.

    An entity that the step removed is shown as it was.
    """
    for name, identity, entity in entities(shown, schema):
        known = _entities(after, name).get(identity) or _entities(before, name).get(identity)
        if not isinstance(known, dict):
            if schema.collections[name].complete:
                yield name, "", f"the answer shows {identity!r} of {name!r}, which the state does not have"
            continue
        for field, value in entity.items():
            if field in known and not _equal(known[field], value):
                yield (
                    name,
                    field,
                    f"the answer shows {field!r} of {identity!r} in {name!r} as {_short(value)}, the state after it "
                    f"as {_short(known[field])}",
                )


def _entities(state: JsonObject, name: str) -> JsonObject:
    part = state.get(name)
    return part if isinstance(part, dict) else {}


def _ids(state: JsonObject, name: str) -> frozenset[str]:
    return frozenset(_entities(state, name))


def _texts(arguments: JsonValue) -> Iterator[tuple[Place, str]]:
    """Every text in some arguments or an entity, and its place."""
    return ((place, value) for place, value in _leaves(arguments) if isinstance(value, str))


def _leaves(value: JsonValue, place: Place = ()) -> Iterator[tuple[Place, JsonValue]]:
    """Every value that holds no others, and its place."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, (*place, key))
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item, (*place, "[]"))
    else:
        yield place, value


def _equal(one: JsonValue, other: JsonValue) -> bool:
    """Equal as values: 1.0 is 1, and True is not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(part, other[key]) for key, part in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return one == other


def _short(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
