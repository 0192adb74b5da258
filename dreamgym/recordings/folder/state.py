"""The state schema of a recorded server: derived from the states that its answers tell, followed in env.toml.

`[state]` in env.toml follows the recordings until a person changes it, and is that person's from then on. What we wrote
there last stands in observed.json too, which is how a change is noticed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pydantic import JsonValue, ValidationError

from dreamgym.environment import StateSetting, first_reason
from dreamgym.errors import InvalidInput
from dreamgym.state import Collection, StateSchema, identity_of, parsed
from dreamgym.types import JsonObject, Trajectory

Say = Callable[[str], object]

_KINDS: tuple[tuple[str, type], ...] = (
    ("boolean", bool),
    ("integer", int),
    ("number", float),
    ("string", str),
    ("array", list),
    ("object", dict),
)


def derive(trajectories: Iterable[Trajectory]) -> StateSchema | None:
    """What all told states have in common; None where none is told.

    A collection is an object in every state, and all its entries are objects with one field that holds their own key.
    Everything else on top is a value. A told state is a whole one, so that an unknown id does not exist.
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
    """The narrowest type that holds all the values; a question mark where one is null."""
    kinds = {next(name for name, kind in _KINDS if isinstance(value, kind)) for value in values if value is not None}
    if kinds == {"integer", "number"}:
        kinds = {"number"}
    if len(kinds) != 1:
        return "any"
    return f"{kinds.pop()}{'?' if None in values else ''}"


def fitting(trajectory: Trajectory, schema: StateSchema, name: str, say: Say) -> Trajectory | None:
    """The trajectory without the calls whose state is unknown or off the schema, each of them said; None: without any.

    Args:
        trajectory: with explicit states, an empty text where one is not known.
        schema: what they must be like.
        name: of the trajectory, in messages.
        say: takes messages.
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
    """The trajectory without calls whose explicit state is off the schema; one with states of words stays as it is.

    Args:
        trajectory: from a file.
        schema: what explicit states must be like; None: no one knows.
        name: of the trajectory, in messages.
        say: takes messages.
    """
    is_explicit = any(parsed(step.next_state) is not None for step in trajectory.transitions)
    return fitting(trajectory, schema, name, say) if schema is not None and is_explicit else trajectory


def written_last(folder: Path) -> StateSchema | None:
    """The schema that was last written into env.toml by us. Raises InvalidInput where observed.json is none of ours."""
    file = folder / "observed.json"
    try:
        value = json.loads(file.read_text(encoding="utf-8")).get("state")
        return None if value is None else StateSchema.model_validate(value)
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise InvalidInput(f"{file}: state: {first_reason(error)}; remove the file, it is made again") from error
    except (OSError, ValueError, AttributeError) as error:
        raise InvalidInput(f"{file}: {error}; remove the file, it is made again") from error


def follows(setting: StateSetting, last: StateSchema | None) -> bool:
    """Nobody has written `[state]` by hand, so that it may be written anew."""
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
        return f"the server did not tell the state {when} it"
    fault = schema.fault_of(state)
    return fault and f"the state {when} it is off [state] in env.toml: {fault}"
