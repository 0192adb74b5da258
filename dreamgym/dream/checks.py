"""Checks of an answer against the explicit state: it must show the state, and change only what such calls change.

What must hold is learned from those demonstrations of the query that are recordings of the called tool; dreamed
transitions are ignored. More recordings can only loosen a check, so an answer that passes with a few need not be
checked again with more.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import JsonValue

from dreamgym.dream.model import Part, Prediction, Query, Reach
from dreamgym.dream.reconcile import only_reads
from dreamgym.replay.buffer import GROUNDED, Demonstration
from dreamgym.state import State, StateSchema, entities, equal, leaves, shown_in, unescaped
from dreamgym.state.json_values import short
from dreamgym.types import ToolCall, Transition

Place = tuple[str, ...]
"""Path to an argument, without positions in lists."""

LEAST_CALLS = 5
"""Fewest recorded calls that show what a tool changes. With fewer, a right call often changes something new."""


def is_checked(query: Query) -> bool:
    """True if answers are checked against the state: it is explicit, and checks are wanted."""
    return query.is_explicit and Part.CHECKS not in query.without


def changeable(query: Query) -> dict[str, Reach] | None:
    """The kinds of changes that recorded calls of the tool made, each with its reach; None if there are too few calls.

    What an agent writes into an argument may talk a model into any change, and a task's own check believes the state.
    So a call may change only the fields that recorded calls of its tool changed, in entities no farther from the call.
    A tool that only reads may change nothing.
    """
    schema = query.spec.state
    if schema is None or query.without & {Part.CHECKS, Part.STATE}:
        return None
    bound: dict[str, Reach] = {}
    explicit = 0
    for one in recordings_of_tool(query):
        before, after = _around(one.transition, schema)
        if not one.transition.result.is_error and before.is_explicit and after.is_explicit:
            explicit += 1
            for kind, reach in _changes(before, after, one.transition.action, schema):
                bound[kind] = max(reach, bound.get(kind, reach))
    return bound if explicit >= LEAST_CALLS or only_reads(query.spec, query.action.name, ()) else None


def contradiction(query: Query, prediction: Prediction) -> str | None:
    """How the answer and the state after it contradict each other, in one clause; None if they do not.

    A change that the tool may not make is a contradiction too. Fields in which this tool's own recordings differ from
    the state after them are not compared.
    """
    schema, before = query.spec.state, query.state
    after = State.of(prediction.next_state, schema)
    if schema is None or not is_checked(query) or not after.is_explicit:
        return None
    recorded = recordings_of_tool(query)
    if prediction.is_error:
        refusals_change = any(
            one.transition.result.is_error and one.transition.next_state != one.transition.state for one in recorded
        )
        if refusals_change or before == after:
            return None
        return f"the action is refused, and yet {', '.join(sorted(before.changed_fields(after)))} changed"
    if query.changeable is not None:
        changes, bound = _changes(before, after, query.action, schema), query.changeable
        if beyond := sorted({kind for kind, reach in changes if reach > bound.get(kind, -1)}):
            return f"{', '.join(beyond)} changed, which no recorded call of {query.action.name!r} changed"
    faults = list(_faults(shown_in(prediction), before, after, schema))
    excused = {
        (name, field)
        for one in (recorded if faults else ())
        if not one.transition.result.is_error
        for name, field, _ in _faults(shown_in(one.transition.result), *_around(one.transition, schema), schema)
    }
    return next((fault for name, field, fault in faults if (name, field) not in excused), None)


def recordings_of_tool(query: Query) -> list[Demonstration]:
    """Recorded calls of the called tool, without dreamed ones."""
    return [
        shown
        for shown in query.demonstrations
        if shown.source in GROUNDED and shown.transition.action.name == query.action.name
    ]


def texts_in(value: JsonValue) -> list[tuple[Place, str]]:
    """Every text in some arguments or an entity, and its place."""
    return [(place_of(path), one) for path, one in leaves(value) if isinstance(one, str)]


def place_of(path: tuple[str | int, ...]) -> Place:
    """The path to a value without positions in lists."""
    return tuple(part if isinstance(part, str) else "[]" for part in path)


def _around(step: Transition, schema: StateSchema) -> tuple[State, State]:
    return State.of(step.state, schema), State.of(step.next_state, schema)


def _changes(before: State, after: State, action: ToolCall, schema: StateSchema) -> Iterator[tuple[str, Reach]]:
    """Yield each kind of change between two states, with its reach: a field of entities that came, went or stayed."""
    changed = before.changed_fields(after)
    if not changed:
        return
    named = {value for _, value in texts_in(action.arguments)}
    near = {
        value
        for name in schema.collections
        for identity in named
        for state in (before, after)
        for _, value in texts_in(state.collection(name).get(identity))
    }
    for path in changed:
        name, *rest = unescaped(path)
        if name not in schema.collections or not rest:
            yield name, Reach.ANY
            continue
        identity, *field = rest
        was, then = before.collection(name).get(identity), after.collection(name).get(identity)
        if was is None:
            yield "/".join([name, "+", *field[:1]]), Reach.NAMED
            continue
        names = {value for one in (was, then) for _, value in texts_in(one)}
        reach = Reach.NAMED if identity in named else Reach.LINKED if identity in near or names & named else Reach.ANY
        yield "/".join([name, "*" if then is not None else "-", *field[:1]]), reach


def _faults(shown: JsonValue, before: State, after: State, schema: StateSchema) -> Iterator[tuple[str, str, str]]:
    """Yield (collection, field, what is wrong); the field is empty for an entity that does not exist.

    An entity that the step removed is compared with the state before it.
    """
    if not before.is_explicit or not after.is_explicit:
        return
    for name, identity, entity in entities(shown, schema):
        known = after.entity(name, identity) or before.entity(name, identity)
        if known is None:
            if schema.collections[name].complete:
                yield name, "", f"the answer shows {identity!r} of {name!r}, which the state does not have"
            continue
        for field, value in entity.items():
            if field in known and not equal(known[field], value):
                yield (
                    name,
                    field,
                    f"the answer shows {field!r} of {identity!r} in {name!r} as {short(value)}, the state after it "
                    f"as {short(known[field])}",
                )
