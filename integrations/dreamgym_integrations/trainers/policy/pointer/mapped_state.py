"""The mapped state: what a reader knows, as entities of a few words each.

The mapping is a pure function, so it is the same in a dream.

    $state !refused at=none                       the state itself: its single values, and if the last call was refused
    $word put, $word a, $word mug                    the words of the task
    places cabinet !named openable=yes open=no seen=yes @at has.where=plate has.where=!named

Ids are left out, so all cabinets look alike. The words of an entity are its texts and flags (if it has several texts,
the later ones with their field), the values of the state that point at it (`@at`) or at an entity that it refers to
(`where.@at`), and the texts of the entities that refer to it (`has.where=mug`: a mug lies there). `!named` marks an
entity with a text that the task contains, `!shared` one with a word that the task contains. The marks can be switched
off; a policy from scratch does not learn them by itself.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from pydantic import JsonValue

from dreamgym.state import StateSchema, as_object
from dreamgym.types import JsonObject

STATE, WORD = "$state", "$word"
"""Kind of the entity that is the state itself, and of those that are words of the task."""
REFUSED, NAMED, SHARED = "!refused", "!named", "!shared"
_WORD = re.compile(r"\w+")


class MappedEntity(NamedTuple):
    """Something that a policy can point at."""

    kind: str
    """The name of its collection, or STATE or WORD."""
    id: str
    """Its id in the state; for a word of the task, the word; empty for the state itself."""
    words: tuple[str, ...]
    """The words that describe it, without its kind."""


def nothing_of(value: str) -> str:
    """The word for a value of the state that is null."""
    return f"{value}=none"


def words_of(text: str) -> list[str]:
    """The words of a text as a policy knows them."""
    return _WORD.findall(text.casefold())


class StateMap:
    """Maps the states of one environment.

    Args:
        schema: schema of the states that its reader makes.
        marks: mark the entities that the task mentions.
    """

    def __init__(self, schema: StateSchema, *, marks: bool) -> None:
        self.schema, self.marks = schema, marks
        self.unknown = {
            name: {field for field, of in collection.fields.items() if of.endswith("?")}
            for name, collection in schema.collections.items()
        }
        """For each collection, the fields that may be null."""

    def episode(self, instruction: str) -> EpisodeMap:
        """Begin to map the states of an episode.

        Args:
            instruction: instruction of the task.
        """
        return EpisodeMap(self, words_of(instruction))


class _Read(NamedTuple):
    """An entity as it was read, without what points at it or refers to it."""

    entity: JsonValue
    own: Sequence[str]
    """The words of its texts and flags, and its mark."""
    texts: Sequence[str]
    """`own` without the flags."""
    named: Sequence[tuple[str, str]]
    """The fields that refer to other entities, with their ids, in order."""
    others: Sequence[tuple[str, str]]
    """Those of `named` that refer to entities of other collections."""


class EpisodeMap:
    """Maps the states of one episode. An entity that is the same object as in the last state is not read again.

    Args:
        of: the map of the environment.
        task: the words of the task.
    """

    def __init__(self, of: StateMap, task: Sequence[str]) -> None:
        self._map, self._marked = of, f" {' '.join(task)} " if of.marks else ""
        self._task = [MappedEntity(WORD, word, (word,)) for word in task]
        self._collections: dict[str, str] = {}
        """The collection of each id."""
        self._read: dict[str, _Read] = {}
        self._alone: dict[str, MappedEntity] = {}
        """For each id, its entity if no value of the state points at it, or at one that it refers to."""
        self._naming: dict[str, dict[str, list[str]]] = defaultdict(dict)
        """For each id, those of the entities that refer to it, with their fields that do."""

    def entities(self, state: JsonObject, *, refused: bool) -> list[MappedEntity]:
        """The state, the words of the task, and every entity that is not somewhere else.

        An entity is somewhere else if it refers to entities of other collections, and no value of the state points at
        one of them or at the entity itself.

        Args:
            state: the state that is known. It must not be changed afterwards.
            refused: True if the last call was refused.
        """
        self._update(state)
        values: JsonObject = {name: state.get(name) for name in self._map.schema.values}
        pointed: dict[str, list[str]] = defaultdict(list)
        for name, value in values.items():
            if isinstance(value, str) and value in self._collections:
                pointed[value].append(name)
        found = [MappedEntity(STATE, "", tuple(_state_words(values, refused))), *self._task]
        near_ones = {*pointed, *(one for target in pointed for one in self._naming[target])}
        for identity, alone in self._alone.items():
            read = self._read[identity]
            if identity not in near_ones:
                if not read.others:
                    found.append(alone)
                continue
            near = [(field, target) for field, target in read.named if target in pointed]
            if identity in pointed or not read.others or any(one in read.others for one in near):
                words = [*read.own, *(f"@{value}" for value in pointed.get(identity, ()))]
                words += (f"{field}.@{value}" for field, target in near for value in pointed[target])
                words += alone.words[len(read.own) :]
                found.append(MappedEntity(alone.kind, identity, tuple(words)))
        return found

    def _update(self, state: JsonObject) -> None:
        """Read the entities that are new or were replaced since the last state."""
        entities: JsonObject = {}
        collections: dict[str, str] = {}
        for name in self._map.schema.collections:
            part = state.get(name)
            for identity, entity in part.items() if isinstance(part, dict) else ():
                if isinstance(entity, dict) and identity not in collections:
                    collections[identity], entities[identity] = name, entity
        if [*collections.items()] != [*self._collections.items()]:  # what is an id decides how the others are read
            self._collections, self._read, self._alone = collections, {}, {}
            self._naming = defaultdict(dict)
        replaced = {
            identity: self._read_of(identity, entity)
            for identity, entity in entities.items()
            if identity not in self._read or self._read[identity].entity is not entity
        }
        if replaced:
            self._relate(replaced)

    def _relate(self, replaced: dict[str, _Read]) -> None:
        """Describe each replaced entity, and each that one of them refers to or no longer refers to."""
        described = [*replaced]  # at first all entities, in the order of the state
        for identity, read in replaced.items():
            for _, target in self._read[identity].named if identity in self._read else ():
                self._naming[target].pop(identity, None)
                described.append(target)
            for field, target in read.named:
                self._naming[target].setdefault(identity, []).append(field)
                described.append(target)
        self._read |= replaced
        for identity in dict.fromkeys(described):
            self._alone[identity] = self._described(identity)

    def _described(self, identity: str) -> MappedEntity:
        """An entity with its own words and those of the entities of other collections that refer to it."""
        of = self._collections[identity]
        by = {
            f"has.{field}={word}"
            for one, fields in self._naming[identity].items()
            if self._collections[one] != of
            for field in fields
            for word in self._read[one].texts
        }
        return MappedEntity(of, identity, (*self._read[identity].own, *sorted(by)))

    def _read_of(self, identity: str, entity: JsonValue) -> _Read:
        words: list[str] = []
        named: set[tuple[str, str]] = set()
        has_text = False
        of = self._collections[identity]
        key, unknown = self._map.schema.collections[of].key, self._map.unknown[of]
        for field, value in as_object(entity).items():
            if field == key:
                continue
            if isinstance(value, str) and value in self._collections:
                named.add((field, value))
            elif isinstance(value, str):
                read = _text_words(value, self._marked)
                words += (f"{field}={word}" for word in read) if has_text else read
                has_text = True
            elif isinstance(value, bool):
                if value or field in unknown:  # if a flag cannot be null, its absence means false
                    words.append(f"{field}={'yes' if value else 'no'}")
            elif value is None:
                words.append(nothing_of(field))
            elif isinstance(value, list):
                named |= {(field, one) for one in value if isinstance(one, str) and one in self._collections}
        ordered = sorted(named)
        return _Read(
            entity,
            own=words,
            texts=[word for word in words if "=" not in word],
            named=ordered,
            others=[(field, target) for field, target in ordered if self._collections[target] != of],
        )


def _state_words(values: JsonObject, refused: bool) -> Iterator[str]:
    if refused:
        yield REFUSED
    for name, value in values.items():
        if isinstance(value, bool):
            yield f"{name}={'yes' if value else 'no'}"
        elif value is None:
            yield nothing_of(name)


@lru_cache(10_000)
def _text_words(text: str, marked: str) -> Sequence[str]:
    """The words of a text, with its mark.

    Args:
        text: a text of the state.
        marked: the words of the task, each between spaces; empty if nothing is marked.
    """
    words = words_of(text)
    if words and f" {' '.join(words)} " in marked:
        return (*words, NAMED)
    return (*words, *(SHARED for word in words if len(words) > 1 and f" {word} " in marked))
