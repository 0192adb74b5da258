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
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache

from dreamgym.state import StateSchema
from dreamgym.types import JsonObject

STATE, WORD = "$state", "$word"
"""Kind of the entity that is the state itself, and of those that are words of the task."""
REFUSED, NAMED, SHARED = "!refused", "!named", "!shared"
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class MappedEntity:
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
        self._schema, self._marks = schema, marks

    def entities(self, state: JsonObject, instruction: str, *, refused: bool) -> list[MappedEntity]:
        """The state, the words of the task, and every entity that is not somewhere else.

        An entity is somewhere else if it refers to entities of other collections, and no value of the state points at
        one of them or at the entity itself.

        Args:
            state: the state that is known.
            instruction: instruction of the task.
            refused: True if the last call was refused.
        """
        return _Mapping(self._schema, state, words_of(instruction), self._marks).entities(refused)


class _Mapping:
    """One state that is being mapped."""

    def __init__(self, schema: StateSchema, state: JsonObject, task: Sequence[str], marks: bool) -> None:
        self._values: JsonObject = {name: state.get(name) for name in schema.values}
        self._task, self._marked = task, f" {' '.join(task)} " if marks else ""
        self._of: dict[str, str] = {}
        """The collection of each id."""
        self._entities: dict[str, JsonObject] = {}
        for name, collection in schema.collections.items():
            part = state.get(name)
            for identity, entity in part.items() if isinstance(part, dict) else ():
                if isinstance(entity, dict) and identity not in self._of:
                    self._of[identity] = name
                    self._entities[identity] = {f: v for f, v in entity.items() if f != collection.key}
        self._pointed: Mapping[str, list[str]] = defaultdict(list)
        for name, value in self._values.items():
            if isinstance(value, str) and value in self._of:
                self._pointed[value].append(name)
        self._own: dict[str, list[str]] = {}
        """For each id, the words of the entity's own texts and flags, and its mark."""
        self._named: dict[str, set[tuple[str, str]]] = {}
        """For each id, the fields that refer to other entities, with their ids."""
        unknown = {
            name: {field for field, of in collection.fields.items() if of.endswith("?")}
            for name, collection in schema.collections.items()
        }
        for identity, entity in self._entities.items():
            self._own[identity], self._named[identity] = self._read(entity, unknown[self._of[identity]])
        self._by: dict[str, list[tuple[str, str]]] = defaultdict(list)
        """For each id, the entities of other collections that refer to it, each with the field."""
        for identity, targets in self._named.items():
            for field, target in sorted(targets):
                if self._of[target] != self._of[identity]:
                    self._by[target].append((field, identity))

    def entities(self, refused: bool) -> list[MappedEntity]:
        found = [MappedEntity(STATE, "", tuple(self._state_words(refused)))]
        found += [MappedEntity(WORD, word, (word,)) for word in self._task]
        found += [
            MappedEntity(self._of[identity], identity, tuple(self._words(identity)))
            for identity in self._entities
            if not self._is_elsewhere(identity)
        ]
        return found

    def _state_words(self, refused: bool) -> Iterator[str]:
        if refused:
            yield REFUSED
        for name, value in self._values.items():
            if isinstance(value, bool):
                yield f"{name}={'yes' if value else 'no'}"
            elif value is None:
                yield nothing_of(name)

    def _words(self, identity: str) -> list[str]:
        words = [*self._own[identity], *(f"@{value}" for value in self._pointed.get(identity, ()))]
        for field, target in sorted(one for one in self._named[identity] if one[1] in self._pointed):
            words += (f"{field}.@{value}" for value in self._pointed[target])
        if by := self._by.get(identity):
            words += sorted({f"has.{field}={word}" for field, other in by for word in self._texts(other)})
        return words

    def _texts(self, identity: str) -> list[str]:
        """The words of an entity's texts and its mark, without its flags."""
        return [word for word in self._own[identity] if "=" not in word]

    def _read(self, entity: JsonObject, unknown: Set[str]) -> tuple[list[str], set[tuple[str, str]]]:
        """The words of an entity's texts, its flags and its mark, and the fields that refer to other entities.

        Args:
            entity: the entity without its id.
            unknown: the fields that may be null.
        """
        words: list[str] = []
        named: set[tuple[str, str]] = set()
        has_text = False
        for field, value in entity.items():
            if isinstance(value, str) and value in self._of:
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
                named |= {(field, one) for one in value if isinstance(one, str) and one in self._of}
        return words, named

    def _is_elsewhere(self, identity: str) -> bool:
        others = [target for _, target in self._named[identity] if self._of[target] != self._of[identity]]
        is_near = identity in self._pointed or any(target in self._pointed for target in others)
        return bool(others) and not is_near


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
