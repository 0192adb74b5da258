"""A state schema out of what answers show again and again: entities with ids, where no server tells its state."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from pydantic import JsonValue

from dreamgym.recordings.folder.read_only_tools import reads_in
from dreamgym.recordings.folder.shown import answered, facts_in
from dreamgym.recordings.folder.state import kind_of
from dreamgym.state import Collection, StateSchema, identity_of, mentioned
from dreamgym.types import JsonObject, Trajectory, Transition

MIN_ENTITIES = 2
MIN_CALLS = 2
"""A collection is worth having where so many of its entities are shown by so many calls each."""

_ID = re.compile(r"id|ID|.+_id|.*[a-z]I[dD]|.+_ID")


class _Object(NamedTuple):
    call: tuple[int, int]
    noun: str
    value: JsonObject


def derive_facts(trajectories: Sequence[Trajectory], tools: Mapping[str, JsonObject]) -> StateSchema | None:
    """The entities that answers show again and again; None where there are none.

    The key of objects of one shape is the field of theirs that is called like an id, else one whose values the agent
    uses as arguments, and that no two different objects of an answer share; of several the one with the most values,
    then the first. Objects in an entity that are entities themselves are no field of it, nor is what a read is asked.
    """
    shapes: dict[frozenset[str], list[_Object]] = defaultdict(list)
    for number, trajectory in enumerate(trajectories):
        for step, transition in enumerate(trajectory.transitions):
            for noun, value in _objects(answered(transition.result), _noun(transition.action.name)):
                shapes[frozenset(value)].append(_Object((number, step), noun, value))
    used = frozenset(text for one in trajectories for step in one.transitions for text in _texts(step.action.arguments))
    keys = {shape: key for shape, found in shapes.items() if (key := _key(found, used)) is not None}
    members: dict[tuple[str, str], list[_Object]] = defaultdict(list)
    for shape, key in keys.items():
        noun = Counter(one.noun for one in shapes[shape]).most_common(1)[0][0]
        members[_plural(_stem(key) or noun), key] += shapes[shape]
    collections: dict[str, Collection] = {}
    for (name, key), found in sorted(members.items(), key=lambda item: -len(item[1])):
        if name not in collections and _is_worth_it(key, found):
            collections[name] = Collection(key=key, fields=_fields(key, found, keys), complete=False)
    schema = StateSchema(collections=collections)
    doubtful = _contradicted(schema, trajectories) | _asked(schema, trajectories, reads_in(trajectories, schema, tools))
    return _without(doubtful, schema)


def _objects(value: JsonValue, noun: str) -> Iterator[tuple[str, JsonObject]]:
    """Every object in an answer, with the name that it stands under."""
    if isinstance(value, list):
        for item in value:
            yield from _objects(item, noun)
    elif isinstance(value, dict):
        if value:
            yield noun, value
        for name, part in value.items():
            by_id = isinstance(part, dict) and name in map(identity_of, part.values())
            yield from _objects(part, noun if by_id else name)


def _key(found: Sequence[_Object], used: frozenset[str]) -> str | None:
    values = {field: [identity_of(one.value[field]) for one in found] for field in found[0].value}
    candidates = {field: ids for field, ids in values.items() if None not in ids and _is_key(field, found)}
    named = [field for field in candidates if _ID.fullmatch(field)]
    others = [field for field in candidates if len(used & {str(one.value[field]) for one in found}) >= MIN_ENTITIES]
    return max(named or others, key=lambda field: len(set(candidates[field])), default=None)


def _texts(arguments: JsonObject) -> Iterator[str]:
    """Arguments that are a text, or a list of some; texts in objects are contents and name nothing."""
    for value in arguments.values():
        yield from (text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str))


def _is_key(field: str, found: Sequence[_Object]) -> bool:
    """No two different objects of one answer have the same value."""
    seen: dict[tuple[tuple[int, int], str], JsonObject] = {}
    return all(seen.setdefault((one.call, str(one.value[field])), one.value) == one.value for one in found)


def _is_worth_it(key: str, found: Sequence[_Object]) -> bool:
    calls: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for one in found:
        calls[str(one.value[key])].add(one.call)
    return sum(len(places) >= MIN_CALLS for places in calls.values()) >= MIN_ENTITIES


def _fields(key: str, found: Sequence[_Object], keys: Mapping[frozenset[str], str]) -> dict[str, str]:
    shown: dict[str, list[JsonValue]] = defaultdict(list)
    for one in found:
        for field, value in one.value.items():
            shown[field].append(value)
    whole = {
        field: values
        for field, values in shown.items()
        if field != key and not any(frozenset(part) in keys for value in values for _, part in _objects(value, ""))
    }
    return {field: kind_of(values) for field, values in whole.items()}


def _contradicted(schema: StateSchema, trajectories: Sequence[Trajectory]) -> set[tuple[str, str]]:
    """Fields that are no facts about their entity: two answers differ, and no call that may change it is between."""
    doubtful: set[tuple[str, str]] = set()
    for trajectory in trajectories:
        for (name, identity, field), shown in facts_in(trajectory, schema).items():
            for one, other in pairwise(shown):
                between = trajectory.transitions[one.step + 1 : other.step + 1]
                if one.value != other.value and not _may_change(between, identity):
                    doubtful.add((name, field))
    return doubtful


def _asked(schema: StateSchema, trajectories: Sequence[Trajectory], reads: frozenset[str]) -> set[tuple[str, str]]:
    """Fields that only repeat what a read was asked, now this and now that of one entity, and what only it is told."""
    varied: set[tuple[str, str, str]] = set()
    places: dict[tuple[str, str], set[str]] = defaultdict(set)
    for trajectory in trajectories:
        for (name, _, field), shown in facts_in(trajectory, schema).items():
            steps = [trajectory.transitions[one.step] for one in shown]
            places[name, field].update(step.action.name for step in steps)
            echoes = [
                step.action.name
                for step, one in zip(steps, shown, strict=True)
                if step.action.arguments.get(field) == one.value
            ]
            for tool in reads.intersection(echoes):
                values = [one.value for step, one in zip(steps, shown, strict=True) if step.action.name == tool]
                if any(value != values[0] for value in values):
                    varied.add((tool, name, field))
    return {
        (name, field)
        for (name, field), shown_by in places.items()
        if shown_by <= {tool for tool, of, _ in varied if of == name} and field != schema.collections[name].key
    }


def _without(doubtful: set[tuple[str, str]], schema: StateSchema) -> StateSchema | None:
    collections = {}
    for name, collection in schema.collections.items():
        fields = {field: kind for field, kind in collection.fields.items() if (name, field) not in doubtful}
        if fields:
            collections[name] = collection.model_copy(update={"fields": fields})
    return StateSchema(collections=collections) if collections else None


def _may_change(between: Sequence[Transition], identity: str) -> bool:
    """Another tool than the one that shows the last value was called, or this one was called with the entity's id."""
    return any(
        step.action.name != between[-1].action.name or identity in mentioned(step.action.arguments) for step in between
    )


def _noun(tool: str) -> str:
    """`get_order_details` is about details, `getOrder` about an order: the last word."""
    return re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", tool)[-1].lower() if re.search(r"[A-Za-z]", tool) else "entities"


def _stem(key: str) -> str:
    """`order_id` and `orderId` are ids of an order; `id` and `name` say nothing."""
    return re.sub(r"(_id|_ID|I[dD])$", "", key) if _ID.fullmatch(key) and key.lower() != "id" else ""


def _plural(noun: str) -> str:
    return noun if noun.endswith("s") else f"{noun}s"
