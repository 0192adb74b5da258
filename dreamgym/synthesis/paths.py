"""Paths: names for the values that a call can refer to, and the values that they have in one call.

A path is a tuple of steps that begins at a root. `("arg", "order_id", ">orders", "status")` is the status of the order
whose id is the argument `order_id`. A step `>orders` goes from an id to the entity with that id; a step `>orders@name`
goes from a text to the only entity whose field `name` is that text. A path means the same in every call of a tool,
which is what makes recorded calls comparable.

| root | value |
|---|---|
| `arg` | an argument of the call |
| `value` | a single value of the state, one that is in no collection |
| `new` | the next id of a collection; after the call, the id that the call made |
| `before` | followed by any path: its value before the call |
| `item` | one item of a list, or one entity of a collection, inside of a loop over them |
| `first` | the first item of a list argument that has a certain fault (`ItemFault`) |
| `chosen` | an entity that the tool chooses, such as the one with the smallest number |
| `changed` | after the call: the ids of the entities in which it changed a certain field, `tickets.status` |
"""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Container, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from dreamgym.state import StateSchema, is_number
from dreamgym.types import JsonObject

Path = tuple[str, ...]
HOPS = 2
"""Most entities that a path goes through."""


class IndexedState:
    """An explicit state in which entities are found by id and by unique text."""

    def __init__(self, state: JsonObject, schema: StateSchema) -> None:
        self.state = state
        self.schema = schema
        self.collections: dict[str, dict[str, JsonObject]] = {}
        """Entities by their id, for every collection of the schema."""
        for name in sorted(schema.collections):
            part = state.get(name)
            entities = part.items() if isinstance(part, dict) else ()
            self.collections[name] = {identity: one for identity, one in entities if isinstance(one, dict)}
        self.passing: dict[object, frozenset[str]] = {}
        """Ids of the entities that pass a filter on a constant, cached by collection and filter."""
        self._having: dict[tuple[str, str], dict[str, frozenset[str]]] = {}

    def having(self, collection: str, field: str, value: JsonValue) -> frozenset[str]:
        """Ids of the entities in which a field has this value."""
        place = collection, field
        if place not in self._having:
            found: dict[str, set[str]] = {}
            for identity, entity in self.collections[collection].items():
                found.setdefault(json.dumps(entity.get(field), sort_keys=True), set()).add(identity)
            self._having[place] = {text: frozenset(ids) for text, ids in found.items()}
        return self._having[place].get(json.dumps(value, sort_keys=True), frozenset())

    def with_unique_text(self, texts: Container[str]) -> Iterator[tuple[str, str, str, str]]:
        """(text, collection, field, id) of each entity that is the only one with one of these texts in a field."""
        for name, entities in self.collections.items():
            key = self.schema.collections[name].key
            ids: dict[tuple[str, str], list[str]] = {}
            for identity, entity in entities.items():
                for field, value in entity.items():
                    if isinstance(value, str) and value in texts and field != key and value not in entities:
                        ids.setdefault((value, field), []).append(identity)
            yield from ((text, name, field, found[0]) for (text, field), found in ids.items() if len(found) == 1)


class Bindings:
    """The value of every path that can be reached from some roots.

    Args:
        state: the state in which ids are looked up.
        roots: the values to start from.
        outer: bindings whose paths are visible too, for an item of a loop. They are shared, not copied: a call may have
            thousands of items and thousands of paths.
    """

    def __init__(self, state: IndexedState, roots: Mapping[Path, JsonValue], outer: Bindings | None = None) -> None:
        self.state = state
        self.passing: dict[object, frozenset[str]] = {}
        """Ids of the entities that pass a filter, cached by collection and filter."""
        self._items: dict[object, list[Bindings]] = {}
        own: dict[Path, JsonValue] = {}
        for path, value in roots.items():
            own.update(self._reached(path, value, HOPS, frozenset()))
        own.update(self._with_unique_texts({path: value for path, value in roots.items() if path[0] == "arg"}))
        self.values: MutableMapping[Path, JsonValue] = own if outer is None else ChainMap(own, outer.values)
        self.own = own if outer is None else {path: own[path] for path in own if path not in outer.values}
        """The values whose paths `outer` does not have."""

    def add(self, path: Path, value: JsonValue) -> None:
        """Bind one more root."""
        self.values.update(self._reached(path, value, HOPS, frozenset()))

    def items(self, path: Path) -> list[Bindings]:
        """The bindings of each item of the list at a path; empty if there is no list."""
        if path not in self._items:
            value = self.values.get(path)
            parts = value if isinstance(value, list) else []
            self._items[path] = [Bindings(self.state, {("item",): part}, self) for part in parts]
        return self._items[path]

    def of_entity(self, collection: str, identity: str) -> Bindings:
        """Bindings in which one entity is the item."""
        place = (">", collection, identity)
        if place not in self._items:
            entity = self.state.collections[collection][identity]
            self._items[place] = [Bindings(self.state, {("item",): entity}, self)]
        return self._items[place][0]

    def _reached(
        self, path: Path, value: JsonValue, hops: int, seen: frozenset[tuple[str, str]]
    ) -> Iterator[tuple[Path, JsonValue]]:
        yield path, value
        if isinstance(value, dict):
            for name, part in value.items():
                yield from self._reached((*path, name), part, hops, seen)
        elif hops and isinstance(value, str | int) and not isinstance(value, bool):
            for name, entities in self.state.collections.items():
                identity = str(value)
                if identity in entities and (name, identity) not in seen:
                    yield from self._entity((*path, f">{name}"), name, identity, hops, seen)

    def _entity(
        self, path: Path, name: str, identity: str, hops: int, seen: frozenset[tuple[str, str]]
    ) -> Iterator[tuple[Path, JsonValue]]:
        entity = self.state.collections[name][identity]
        yield path, entity
        key = self.state.schema.collections[name].key
        for field, part in entity.items():
            if field != key:
                yield from self._reached((*path, field), part, hops - 1, seen | {(name, identity)})

    def _with_unique_texts(self, arguments: Mapping[Path, JsonValue]) -> Iterator[tuple[Path, JsonValue]]:
        """The paths from the texts in some arguments to the entities that alone have such a text."""
        places: dict[str, list[Path]] = {}
        for path, value in arguments.items():
            for place, text in _texts(path, value):
                places.setdefault(text, []).append(place)
        for text, name, field, identity in self.state.with_unique_text(places) if places else ():
            key = self.state.schema.collections[name].key
            for place in places[text]:
                entity = (*place, f">{name}@{field}")
                yield (*entity, key), identity
                yield from self._entity(entity, name, identity, 1, frozenset())


def _texts(path: Path, value: JsonValue) -> Iterator[tuple[Path, str]]:
    """The texts in an argument, with their paths; none that are so short that they agree with others by chance."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _texts((*path, name), part)
    elif isinstance(value, str) and len(value) > 2:
        yield path, value


@dataclass(frozen=True, order=True)
class ItemFault:
    """A reason why a server may refuse one item of a list argument."""

    over: Path
    """The list."""
    kind: str
    """`missing`: `one` is bound to nothing. `twice`: an earlier item has the same `one`. `above`: the number `one` is
    larger than the number `other`. `below`: `one` is smaller than the whole number in `other`, which is not a path
    then."""
    one: Path
    other: Path = ()

    def first(self, call: Bindings) -> Bindings | None:
        """The first item of the call with the fault; None if no item has it."""
        if self.kind != "twice":
            return next((item for item in call.items(self.over) if self._holds(item)), None)
        earlier: set[str] = set()
        for item in call.items(self.over):
            one = json.dumps(item.own.get(self.one), sort_keys=True)
            if one in earlier:
                return item
            earlier.add(one)
        return None

    def _holds(self, item: Bindings) -> bool:
        one = item.own.get(self.one)
        if self.kind == "missing":
            return one is None
        limit = int(self.other[0]) if self.kind == "below" else item.own.get(self.other)
        if not is_number(one) or not is_number(limit):
            return False
        return one < limit if self.kind == "below" else one > limit

    def __str__(self) -> str:
        return " ".join([*self.over, self.kind, *self.one, *self.other])


def item_faults(calls: Sequence[Bindings]) -> tuple[ItemFault, ...]:
    """Every fault that items of these calls' list arguments could have."""
    found: set[ItemFault] = set()
    for call in calls:
        for over, value in call.values.items():
            if not is_argument(over) or not isinstance(value, list):
                continue
            for item in call.items(over):
                numbers = [path for path, part in item.own.items() if is_number(part)]
                for path in item.own:
                    if path[-1].startswith(">") and entities_on(path) == 1:
                        found |= {ItemFault(over, "missing", path), ItemFault(over, "twice", path[:-1])}
                for path in numbers:
                    if not entities_on(path):
                        found |= {ItemFault(over, "below", path, ("1",)), ItemFault(over, "below", path, ("0",))}
                        found |= {ItemFault(over, "above", path, other) for other in numbers if other != path}
    return tuple(sorted(found))


def bind(
    state: IndexedState,
    arguments: JsonObject,
    new_ids: Mapping[str, str] | None = None,
    *,
    before: Bindings | None = None,
    faults: Sequence[ItemFault] = (),
    changed: Mapping[str, Sequence[str]] | None = None,
) -> Bindings:
    """The bindings of one call.

    Args:
        state: the state before the call, or after it.
        arguments: arguments of the call.
        new_ids: values of the root `new`: an id for each collection that the tool adds to.
        before: values of the root `before`: the bindings before the call. The root `chosen` is bound as it was there.
        faults: for each of these, the root `first` is bound to the first item with the fault.
        changed: values of the root `changed`: the ids for each field.
    """
    roots: dict[Path, JsonValue] = {("arg", name): value for name, value in arguments.items()}
    roots.update({("value", name): state.state[name] for name in state.schema.values if name in state.state})
    roots.update({("new", name): identity for name, identity in (new_ids or {}).items()})
    roots.update({("changed", name): list(ids) for name, ids in (changed or {}).items()})
    if before is not None:
        roots.update({path: part for path, part in before.values.items() if path[0] == "chosen" and len(path) == 2})
    call = Bindings(state, roots)
    if before is not None:
        call.values.update({("before", *path): value for path, value in before.values.items()})
    first: dict[Path, JsonValue] = {}
    for fault in faults:
        faulty = fault.first(call)
        if faulty is not None:
            first.update({("first", str(fault), *path[1:]): value for path, value in faulty.own.items()})
    call.values = {**call.values, **first}  # not an update: items of lists share the old values, without `first`
    return call


def entities_on(path: Path) -> int:
    """How many entities a path goes through."""
    return sum(step.startswith(">") for step in path)


def is_argument(path: Path) -> bool:
    """True if a path leads to an argument or a part of one, and not into an entity."""
    return path[0] == "arg" and not entities_on(path)


def is_entity(path: Path) -> bool:
    """True if a path leads to a whole entity."""
    return path[-1].startswith(">")


def rank(path: Path) -> tuple[bool, bool, int, bool, Path]:
    """Sort key: first paths without `before`, then those that follow ids, then short ones, then those of the call."""
    by_text = any("@" in step for step in path)
    return path[0] == "before", by_text, len(path), path[0] not in {"arg", "new", "item"}, path
