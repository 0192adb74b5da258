"""Derives the state schema of a recorded server from the states that it reports, else from the entities in answers.

`[state]` in env.toml follows the recordings until a person changes it; from then on it stays as it is. observed.json
contains a copy of what we wrote there last, so that a change is noticed.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from pydantic import JsonValue, ValidationError

from dreamgym.environment import StateSetting, first_reason
from dreamgym.errors import InvalidInput
from dreamgym.recordings.folder.infer_states import answered, facts_in, read_only_tools
from dreamgym.recordings.folder.runs import Say
from dreamgym.state import Collection, StateSchema, identity_of, mentioned, parsed
from dreamgym.types import JsonObject, Trajectory, Transition

_KINDS: tuple[tuple[str, type], ...] = (
    ("boolean", bool),
    ("integer", int),
    ("number", float),
    ("string", str),
    ("array", list),
    ("object", dict),
)


def derive(trajectories: Iterable[Trajectory]) -> StateSchema | None:
    """The schema of all reported states; None if no state is reported.

    A collection is an object in every state, and its entries are all objects with a field that contains their own key.
    Every other top-level entry is a value. A reported state is complete: an id that is not in it does not exist.
    """
    states = _states(trajectories)
    names = dict.fromkeys(name for state in states for name in state)
    collections: dict[str, Collection] = {}
    values: dict[str, str] = {}
    for name in names:
        parts = [state[name] for state in states if name in state]
        collection = _collection(parts)
        if collection is None:
            values[name] = kind_of(parts)
        else:
            collections[name] = collection
    return StateSchema(collections=collections, values=values) if names else None


def kind_of(values: Sequence[JsonValue]) -> str:
    """The narrowest type that fits all the values, with a question mark if one is null."""
    kinds = {next(name for name, kind in _KINDS if isinstance(value, kind)) for value in values if value is not None}
    if kinds == {"integer", "number"}:
        kinds = {"number"}
    if len(kinds) != 1:
        return "any"
    return f"{kinds.pop()}{'?' if None in values else ''}"


def fitting(trajectory: Trajectory, schema: StateSchema, name: str, say: Say) -> Trajectory | None:
    """The trajectory without calls whose state is unknown or off the schema; None if no call is left.

    Args:
        trajectory: has explicit states; a state that is not known is an empty text.
        schema: schema that the states must fit.
        name: name of the trajectory in messages.
        say: called with a message if calls are left out.
    """
    faults: dict[int, str] = {}
    for step, transition in enumerate(trajectory.transitions):
        fault = _fault(schema, "before", transition.state) or _fault(schema, "after", transition.next_state)
        if fault is not None:
            faults[step] = fault
    if faults:
        step, fault = next(iter(faults.items()))
        more = f" and {len(faults) - 1} more of its calls are" if len(faults) > 1 else " is"
        say(f"{name}: call {step + 1} ({trajectory.transitions[step].action.name}){more} left out: {fault}")
    kept = tuple(one for step, one in enumerate(trajectory.transitions) if step not in faults)
    start = trajectory.task.initial_state
    task = trajectory.task
    if start is not None and _fault(schema, "before", start) is not None:
        task = task.model_copy(update={"initial_state": None})
    return trajectory.model_copy(update={"transitions": kept, "task": task}) if kept else None


def on_schema(trajectory: Trajectory, schema: StateSchema | None, name: str, say: Say) -> Trajectory | None:
    """The trajectory without calls whose explicit state is off the schema; one with states in words stays as it is.

    Args:
        trajectory: a trajectory from a file.
        schema: schema that explicit states must fit; None if there is none.
        name: name of the trajectory in messages.
        say: called with each message.
    """
    is_explicit = any(parsed(step.next_state) is not None for step in trajectory.transitions)
    return fitting(trajectory, schema, name, say) if schema is not None and is_explicit else trajectory


def written_last(folder: Path) -> StateSchema | None:
    """The schema that we last wrote into env.toml, if any. Raises InvalidInput if observed.json is faulty."""
    file = folder / "observed.json"
    try:
        value = json.loads(file.read_text(encoding="utf-8")).get("state")
        return None if value is None else StateSchema.model_validate(value)
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise InvalidInput(f"{file}: state: {first_reason(error)}; remove the file; it is written again") from error
    except (OSError, ValueError, AttributeError) as error:
        raise InvalidInput(f"{file}: {error}; remove the file; it is written again") from error


def follows(setting: StateSetting, last: StateSchema | None) -> bool:
    """True if nobody has written `[state]` by hand, so that it may be overwritten."""
    return not setting.is_off and (setting.schema is None or setting.schema == last)


def _states(trajectories: Iterable[Trajectory]) -> list[JsonObject]:
    texts = dict.fromkeys(
        text for one in trajectories for step in one.transitions for text in (step.state, step.next_state)
    )
    return [state for state in map(parsed, texts) if state is not None]


def _collection(parts: Sequence[JsonValue]) -> Collection | None:
    objects = [part for part in parts if isinstance(part, dict)]
    entries = [(identity, entry) for part in objects for identity, entry in part.items()]
    entities = [(identity, entry) for identity, entry in entries if isinstance(entry, dict)]
    if not entries or len(objects) < len(parts) or len(entities) < len(entries):
        return None
    keys = [
        field for field in entities[0][1] if all(identity_of(entity.get(field)) == name for name, entity in entities)
    ]
    if not keys:
        return None
    key = next((field for field in keys if field == "id" or field.endswith("_id")), keys[0])
    names = dict.fromkeys(field for _, entity in entities for field in entity if field != key)
    shown = {name: [entity[name] for _, entity in entities if name in entity] for name in names}
    return Collection(key=key, fields={name: kind_of(values) for name, values in shown.items()})


def _fault(schema: StateSchema, when: str, text: str) -> str | None:
    state = parsed(text)
    if state is None:
        return f"the server did not report the state {when} the call"
    fault = schema.fault_of(state)
    return fault and f"the state {when} the call does not fit [state] in env.toml: {fault}"


MIN_ENTITIES = 2
MIN_CALLS = 2
"""A collection is kept if at least MIN_ENTITIES of its entities are each shown by at least MIN_CALLS calls."""

_ID = re.compile(r"id|ID|.+_id|.*[a-z]I[dD]|.+_ID")


class _Object(NamedTuple):
    call: tuple[int, int]
    noun: str
    value: JsonObject


def infer_schema(trajectories: Sequence[Trajectory], tools: Mapping[str, JsonObject]) -> StateSchema | None:
    """The schema of the entities that answers show again and again; None if there are none.

    Objects with the same fields have one shape. The key of a shape is a field that is named like an id, else one whose
    values the agent uses as arguments. Two different objects of an answer may not share its value. Of several such
    fields, the one with the most values is the key, then the first. A field does not belong to an entity if it contains
    entities itself, if answers contradict each other about it, or if it depends on what a read was asked.
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
    doubtful = _contradicted(schema, trajectories) | _asked(
        schema, trajectories, read_only_tools(trajectories, schema, tools)
    )
    return _without(doubtful, schema)


def _objects(value: JsonValue, noun: str) -> Iterator[tuple[str, JsonObject]]:
    """Every object in an answer, with the name of the field that contains it, or `noun` at the top."""
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
    """Texts that are arguments, or items of a list argument; texts in objects are content and name nothing."""
    for value in arguments.values():
        yield from (text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str))


def _is_key(field: str, found: Sequence[_Object]) -> bool:
    """True if no two different objects of one answer have the same value in the field."""
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
    """Fields that are not facts about their entity: two answers differ, and no call between them may change it."""
    doubtful: set[tuple[str, str]] = set()
    for trajectory in trajectories:
        for (name, identity, field), shown in facts_in(trajectory, schema).items():
            for one, other in pairwise(shown):
                between = trajectory.transitions[one.step + 1 : other.step + 1]
                if one.value != other.value and not _may_change(between, identity):
                    doubtful.add((name, field))
    return doubtful


def _asked(schema: StateSchema, trajectories: Sequence[Trajectory], reads: frozenset[str]) -> set[tuple[str, str]]:
    """Fields that depend on what a read was asked: those that only echoing reads show.

    A read echoes if it repeats an argument as a field of the same name, with different values for one entity.
    """
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
    """True if another tool than that of the last call was called, or if a call names the entity in its arguments."""
    return any(
        step.action.name != between[-1].action.name or identity in mentioned(step.action.arguments) for step in between
    )


def _noun(tool: str) -> str:
    """The last word of a tool's name: `details` for `get_order_details`, `order` for `getOrder`."""
    return re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", tool)[-1].lower() if re.search(r"[A-Za-z]", tool) else "entities"


def _stem(key: str) -> str:
    """The entity that a key is named after: `order` for `order_id` and `orderId`; empty for `id` and `name`."""
    return re.sub(r"(_id|_ID|I[dD])$", "", key) if _ID.fullmatch(key) and key.lower() != "id" else ""


def _plural(noun: str) -> str:
    return noun if noun.endswith("s") else f"{noun}s"
