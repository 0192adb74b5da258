"""Merges all recordings of one world: its state at the start, and each recorded step retold from that start.

An agent discovers its world bit by bit. A fact that it found late was true from the start, unless its own calls made
it; and what one episode found, the others could have found too. So the start of a world is merged from all its
episodes, and every episode is retold from there: its states then describe the world, not what the agent knew by then.

A reader knows the facts, but not why they became known. A step found a fact, and did not make it, in three cases:

- the call does not name the entity;
- the entity was known, but the field was null, and no call of this tool is recorded to set the field to this value;
- the field is a list that no recorded step ever takes anything from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from dreamgym.dream.usual import UsualValues
from dreamgym.reading import Reader
from dreamgym.state import as_object, leaves, natural
from dreamgym.synthesis.objects import ObjectCall
from dreamgym.types import JsonObject, StepResult, ToolCall, Trajectory

Field = tuple[str, str]
"""Collection and name of a field."""
Made = tuple[str, str, str, str]
"""A tool, the collection and the name of a field that it sets, and the value as JSON."""


@dataclass(frozen=True)
class KnownWorld:
    """A recorded world."""

    told: JsonObject
    """The state that the first observation shows; the same in every episode."""
    start: JsonObject
    """The state at the start, with all facts that any episode found."""
    steps: tuple[ObjectCall, ...]
    """The calls of all its episodes, retold from that start."""
    ends: tuple[JsonObject, ...]
    """The state in which each episode ended, retold from that start."""
    fault: str | None = None
    """How its recordings contradict each other, so that it must not be played; None if they do not."""


@dataclass
class _Episode:
    """A recorded episode as it is read, step by step."""

    id: str
    start: JsonObject
    steps: list[tuple[ToolCall, StepResult]] = field(default_factory=list)
    changes: list[_Change] = field(default_factory=list)


@dataclass(frozen=True)
class _Change:
    """A change of what is known of a field of an entity, made by one step."""

    tool: str
    collection: str
    entity: str
    name: str
    old: JsonValue
    new: JsonValue
    is_named: bool
    """The call names the entity."""
    is_new: bool
    """Nothing was known of the entity before."""

    @property
    def made(self) -> Made:
        """What the step made if it did not find it."""
        return self.tool, self.collection, self.name, json.dumps(self.new)


def known_worlds(trajectories: Iterable[Trajectory], reader: Reader) -> dict[str, KnownWorld]:
    """The recorded worlds by their id."""
    episodes: dict[str, list[_Episode]] = {}
    for trajectory in trajectories:
        episodes.setdefault(trajectory.world_id, []).append(_read(trajectory, reader))
    shrinking = {
        (one.collection, one.name)
        for world in episodes.values()
        for episode in world
        for one in episode.changes
        if isinstance(one.old, list) and isinstance(one.new, list) and any(part not in one.new for part in one.old)
    }
    made = {
        one.made
        for world in episodes.values()
        for episode in world
        for one in episode.changes
        if one.is_named and one.old is not None
    }
    merged = {world: _merged(found, shrinking, made, reader) for world, found in episodes.items()}
    usual = UsualValues([start for start, _ in merged.values()], reader.schema)
    worlds: dict[str, KnownWorld] = {}
    for world, (start, conflict) in merged.items():
        told, filled = episodes[world][0].start, usual.filled(start)
        retold = [] if conflict else [_retold(world, episode, filled, reader) for episode in episodes[world]]
        fault = next((fault for _, fault in retold if fault), conflict)
        steps = () if fault else tuple(step for cases, _ in retold for step in cases)
        ends = () if fault else tuple(cases[-1].after for cases, _ in retold if cases)
        worlds[world] = KnownWorld(told, filled, steps, ends, fault)
    return worlds


def _read(trajectory: Trajectory, reader: Reader) -> _Episode:
    task = trajectory.task
    state = reader.start(task, StepResult(observation=task.initial_state or ""))
    episode = _Episode(trajectory.id, state)
    for step in trajectory.transitions:
        call = reader.call(step.action)
        result = reader.result(call, step.result)
        known = reader.after(state, call, result)
        episode.steps.append((call, result))
        episode.changes += _changes(state, known, call, reader)
        state = known
    return episode


def _changes(before: JsonObject, after: JsonObject, call: ToolCall, reader: Reader) -> Iterator[_Change]:
    """Yield the fields of entities in which two states differ."""
    if before is after:
        return
    named = {str(value) for _, value in leaves(call.arguments)}
    for collection in reader.schema.collections:
        ours, theirs = as_object(before.get(collection)), as_object(after.get(collection))
        for name, entity in theirs.items():
            old = ours.get(name)
            if old is entity or not isinstance(entity, dict):
                continue
            known = as_object(old)
            for part, value in entity.items():
                if part not in known or known[part] != value:
                    yield _Change(call.name, collection, name, part, known.get(part), value, name in named, old is None)


def _merged(
    episodes: Sequence[_Episode], shrinking: set[Field], made: set[Made], reader: Reader
) -> tuple[JsonObject, str | None]:
    """The start merged from all episodes, and how they contradict each other; None if they do not."""
    start = episodes[0].start
    if any(episode.start != start for episode in episodes):
        return start, "its recordings start in different states"
    collections = {
        name: {i: dict(as_object(e)) for i, e in as_object(start.get(name)).items()}
        for name in reader.schema.collections
    }
    conflict: str | None = None
    for episode in episodes:
        for one in episode.changes:
            is_made = one.is_named and (one.is_new or one.old is not None or one.made in made)
            only_grows = isinstance(one.new, list) and (one.collection, one.name) not in shrinking
            if is_made and not only_grows:
                continue
            entity = collections[one.collection].setdefault(one.entity, {})
            known = entity.get(one.name)
            if isinstance(one.new, list):
                items = [*_list(known)]
                items += [part for part in one.new if part not in items and part not in _list(one.old)]
                entity[one.name] = sorted(items, key=lambda part: natural(str(part)))
            elif known is None:
                entity[one.name] = one.new
            elif conflict is None and known != one.new and one.old is None:
                conflict = f"{one.name} of {one.entity} is {known!r} in one recording, {one.new!r} in another"
    merged: JsonObject = {**start, **{name: {**part} for name, part in collections.items()}}
    return merged, conflict


def _retold(world: str, episode: _Episode, start: JsonObject, reader: Reader) -> tuple[list[ObjectCall], str | None]:
    """The episode retold from a fully known start, and how it contradicts that start; None if it does not.

    From such a start a step finds nothing new, and changes only entities that its call names.
    """
    state, cases = start, list[ObjectCall]()
    for call, result in episode.steps:
        known = reader.after(state, call, result)
        for one in _changes(state, known, call, reader):
            if not one.is_named:
                return [], (
                    f"its recordings contradict each other: in episode {episode.id!r} the call {call.canonical()} "
                    f"showed {one.name} of {one.entity!r} as {one.new!r}, others as {one.old!r}"
                )
        answer = None if result.is_error else result.structured
        cases.append(
            ObjectCall(world, call.name, call.arguments, state, known, answer, result.is_error, result.observation)
        )
        state = known
    return cases, None


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []
