"""The verbs of a pointer policy: typed tools, each with the argument that is pointed at, learned from recorded calls.

`take(thing, place)` points at a thing, and the place is the one in the thing's field `where`. `move(thing, place)`
points at a place, and the thing is the value `held` of the state. This module contains no rule of an environment: the
accepted calls show which argument is which.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

from pydantic import Field, JsonValue

from dreamgym.environment import EnvironmentSpec
from dreamgym.reading import Reader, with_readings
from dreamgym.state import StateSchema, as_object, parsed
from dreamgym.types import Frozen, JsonObject, ToolCall, Trajectory
from dreamgym_integrations.trainers.policy.pointer.mapped_state import STATE, WORD, MappedEntity, words_of

CONSTANTS = 8
"""Most sets of values of a tool's arguments that are not entities. Each set is a verb; with more, there are none."""
SHARE = 0.9
"""Least share of a tool's accepted calls in which an explanation of an argument must hold."""


NAMED = 0.25
"""Least share of a tool's accepted calls in which an argument must be the id of an entity, for a policy to point there.
The other calls contain free text, which the policy does not imitate."""


class Verb(Frozen):
    """A tool that is applied to an entity."""

    tool: str
    kinds: tuple[str, ...]
    """Kinds of entities that it can point at; the state itself for a tool that needs no entity."""
    points_at: str | None = None
    """The argument that is the entity's id, or the word of the task."""
    values: dict[str, str] = Field(default_factory=dict)
    """Arguments that are a value of the state, with the value's name."""
    fields: dict[str, str] = Field(default_factory=dict)
    """Arguments that are in a field of the entity, with the field's name."""
    constants: JsonObject = Field(default_factory=dict)
    """Arguments that are always the same; null for one that the calls leave out."""

    def call(self, entity: MappedEntity, state: JsonObject) -> ToolCall | None:
        """The call; None if an argument is not known."""
        arguments: JsonObject = {name: value for name, value in self.constants.items() if value is not None}
        if self.points_at is not None:
            arguments[self.points_at] = entity.id
        arguments |= {argument: state.get(value) for argument, value in self.values.items()}
        for argument, field in self.fields.items():
            arguments[argument] = _named(as_object(as_object(state.get(entity.kind)).get(entity.id)).get(field), state)
        return None if None in arguments.values() else ToolCall(name=self.tool, arguments=arguments)

    def pointed_at(self, call: ToolCall, entities: Sequence[MappedEntity]) -> int | None:
        """Index of the entity that a call is about; None if this verb cannot express the call."""
        if call.name != self.tool or any(call.arguments.get(name) != value for name, value in self.constants.items()):
            return None
        target = "" if self.points_at is None else call.arguments.get(self.points_at)
        return next((i for i, one in enumerate(entities) if one.id == target and one.kind in self.kinds), None)


def learn_verbs(spec: EnvironmentSpec, trajectories: Iterable[Trajectory], reader: Reader) -> list[Verb]:
    """The verbs of the calls that were accepted.

    A tool that nobody used has no verb. Nor has a tool whose calls changed the known state in at most a tenth of the
    cases, if any call did: a policy that sees only the known state has no reason to call it.
    """
    used: dict[str, list[_Used]] = defaultdict(list)
    for trajectory in trajectories:
        read = with_readings(trajectory, reader, spec)
        words = set(words_of(read.task.instruction))
        for step in read.transitions:
            if not step.result.is_error:
                changed = step.next_state != step.state or step.result.terminated
                used[step.action.name].append(_Used(step.action, parsed(step.state) or {}, words, changed))
    if any(one.changed for calls in used.values() for one in calls):
        used = {tool: calls for tool, calls in used.items() if fmean(one.changed for one in calls) > 1 - SHARE}
    offered = {str(tool["name"]) for tool in reader.tools}
    return [verb for tool in sorted(used.keys() & offered) for verb in _verbs_of(tool, used[tool], reader.schema)]


class _Used:
    """One accepted call, with the state that was known before it."""

    def __init__(self, call: ToolCall, state: JsonObject, words: set[str], changed: bool) -> None:
        self.call, self.state, self.words = call, state, words
        self.changed = changed
        """True if the call changed the known state or ended the episode."""

    def kind(self, argument: str, schema: StateSchema) -> str | None:
        """The collection that has the argument as an id; WORD for a word of the task; None for neither."""
        value = self.call.arguments.get(argument)
        if not isinstance(value, str):
            return None
        for name in schema.collections:
            if value in as_object(self.state.get(name)):
                return name
        return WORD if value.casefold() in self.words else None

    def is_value(self, argument: str, value: str) -> bool:
        """True if the argument is this value of the state."""
        return self.state.get(value) == self.call.arguments.get(argument)

    def is_named(self, argument: str, field: str, pointed: str, schema: StateSchema) -> bool:
        """True if the argument is in this field of the entity that another argument points at."""
        kind, target = self.kind(pointed, schema), self.call.arguments.get(pointed)
        named = as_object(as_object(self.state.get(kind or "")).get(str(target))).get(field)
        return self.call.arguments.get(argument) in (named if isinstance(named, list) else [named])


def _verbs_of(tool: str, used: Sequence[_Used], schema: StateSchema) -> Iterator[Verb]:
    """Yield the verbs of one tool; none if the state leaves two of its arguments unexplained."""
    arguments = sorted({name for one in used for name in one.call.arguments})
    kinds = {name: Counter(one.kind(name, schema) for one in used) for name in arguments}
    entities = [name for name in arguments if kinds[name][None] <= (1 - SHARE) * len(used)]
    for name in arguments:
        named = [one for one in used if one.kind(name, schema) in schema.collections]
        if name not in entities and len(named) >= NAMED * len(used):
            entities, used = [*entities, name], named
            kinds = {other: Counter(one.kind(other, schema) for one in used) for other in arguments}
    rest = [name for name in arguments if name not in entities]

    def by_value(argument: str) -> tuple[float, str]:
        """The share of calls in which the argument is one value of the state, with the value that fits most calls."""
        shares = ((fmean(one.is_value(argument, value) for one in used), value) for value in schema.values)
        return max(shares, default=(0.0, ""))

    def by_field(argument: str, pointed: str) -> tuple[float, str]:
        """The share of calls in which the argument is in one field of the entity, with the field that fits most."""
        fields = {field for kind in kinds[pointed] if kind in schema.collections for field in _fields(schema, kind)}
        shares = (
            (fmean(one.is_named(argument, field, pointed, schema) for one in used), field) for field in sorted(fields)
        )
        return max(shares, default=(0.0, ""))

    pointed = min(entities, key=lambda name: by_value(name)[0], default=None)  # the one least explained by the state
    values, fields = {}, {}
    for name in entities:
        if pointed is not None and name != pointed:
            (of_value, value), (of_field, field) = by_value(name), by_field(name, pointed)
            if max(of_value, of_field) < SHARE:
                return
            if of_field > of_value:
                fields[name] = field
            else:
                values[name] = value
    constants = {json.dumps({name: one.call.arguments.get(name) for name in rest}, sort_keys=True) for one in used}
    if len(constants) > CONSTANTS:
        return
    for constant in sorted(constants):
        yield Verb(
            tool=tool,
            kinds=(STATE,) if pointed is None else tuple(sorted(kind for kind in kinds[pointed] if kind is not None)),
            points_at=pointed,
            values=values,
            fields=fields,
            constants=json.loads(constant),
        )


def _fields(schema: StateSchema, kind: str) -> Iterator[str]:
    """The fields of a collection that may refer to other entities."""
    collection = schema.collections[kind]
    return (name for name, of in collection.fields.items() if of.removesuffix("?") in ("string", "array", "any"))


def _named(named: JsonValue, state: JsonObject) -> JsonValue:
    """The id in a field; if it has several, one that a value of the state points at, else the first."""
    if not isinstance(named, list):
        return named
    pointed = [one for one in named if isinstance(one, str) and one in state.values()]
    return next(iter([*pointed, *named]), None)
