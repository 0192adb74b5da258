"""What a call can speak of in an explicit state: its arguments, the entities that they name, and what those name.

Everything that can be named has a key, the way to it: `("arg", "order_id", ">orders", "status")` is the status of the
order that the argument `order_id` names. A part `>orders` follows an id to its entity, `>orders@name` finds the only
entity with that name. The same key means the same in every call of a tool, which is what makes recordings comparable.

Roots of keys: `arg` an argument, `value` a single value of the state, `new` the next id of a collection (after the
call: the id that it made), `before` a value as it was before the call, `item` one item of a list or one entity of a
collection that something is done for, `first` the first item of a list that something is wrong with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pydantic import JsonValue

from dreamgym.state import StateSchema
from dreamgym.types import JsonObject

Key = tuple[str, ...]
Scalar = str | int | float | bool | None
HOPS = 2
"""So many entities lie on the longest way to a value."""
_NUMBERED = re.compile(r"(.*?)(\d+)")


@dataclass(frozen=True)
class Numbering:
    """How new ids of a collection follow each other."""

    prefix: str
    width: int
    """Digits, filled with zeros; 0: not filled."""
    first: int
    """Where the collection is empty."""

    def after(self, ids: Sequence[str]) -> str:
        """The id that follows those."""
        numbers = [int(found[2]) for one in ids if (found := _NUMBERED.fullmatch(one)) and found[1] == self.prefix]
        return self.of(max(numbers, default=self.first - 1) + 1)

    def of(self, number: int) -> str:
        """The id of one number."""
        return f"{self.prefix}{number:0{self.width}d}" if self.width else f"{self.prefix}{number}"

    def next(self, identity: str) -> str:
        """The id behind one of this numbering."""
        return self.of(int(identity[len(self.prefix) :]) + 1)


def numbering_of(made: Sequence[tuple[Sequence[str], str]]) -> Numbering | None:
    """The numbering that gave each new id beside those that there were; None where none did."""
    parts = [_NUMBERED.fullmatch(new) for _, new in made]
    if not parts or parts[0] is None:
        return None
    width = len(parts[0][2]) if parts[0][2].startswith("0") else 0
    firsts = [int(part[2]) for part, (there, _) in zip(parts, made, strict=True) if part and not there]
    numbering = Numbering(parts[0][1], width, min(firsts, default=1))
    return numbering if all(numbering.after(there) == new for there, new in made) else None


class World:
    """A state to look things up in."""

    def __init__(self, state: JsonObject, schema: StateSchema) -> None:
        self.state = state
        self.schema = schema

    def collection(self, name: str) -> dict[str, JsonObject]:
        """The entities of one kind."""
        part = self.state.get(name)
        return {i: one for i, one in part.items() if isinstance(one, dict)} if isinstance(part, dict) else {}

    @cached_property
    def collections(self) -> dict[str, dict[str, JsonObject]]:
        """All entities."""
        return {name: self.collection(name) for name in sorted(self.schema.collections)}

    @cached_property
    def only(self) -> dict[str, list[tuple[str, str, str]]]:
        """(collection, field, id) of the entities that alone have a text in a field, by that text."""
        found: dict[tuple[str, str, str], list[str]] = {}
        for name, entities in self.collections.items():
            key = self.schema.collections[name].key
            for identity, entity in entities.items():
                for field, value in entity.items():
                    if field != key and isinstance(value, str) and value not in self.collections[name]:
                        found.setdefault((name, field, value), []).append(identity)
        by_text: dict[str, list[tuple[str, str, str]]] = {}
        for (name, field, text), ids in found.items():
            if len(ids) == 1:
                by_text.setdefault(text, []).append((name, field, ids[0]))
        return by_text


class Situation:
    """All that can be named from some roots in a world, by its key."""

    def __init__(self, world: World, roots: Mapping[Key, JsonValue], outer: Situation | None = None) -> None:
        self.world = world
        self.values: dict[Key, JsonValue] = dict(outer.values) if outer else {}
        self.memory: dict[object, frozenset[str]] = {}
        """Which entities pass which filter, as far as somebody asked."""
        self._items: dict[object, list[Situation]] = {}
        for key, value in roots.items():
            for name, part in self._reached(key, value, HOPS, frozenset()):
                self.values[name] = part
            if key[0] in {"arg", "item"}:
                self._find(key, value)
        self.own = {key for key in self.values if outer is None or key not in outer.values}

    def items(self, key: Key) -> list[Situation]:
        """One situation for each item of the list at a key."""
        if key not in self._items:
            there = self.values.get(key)
            parts = there if isinstance(there, list) else []
            self._items[key] = [Situation(self.world, {("item",): part}, self) for part in parts]
        return self._items[key]

    def of_entity(self, collection: str, identity: str) -> Situation:
        """The situation of one entity."""
        place = (">", collection, identity)
        if place not in self._items:
            entity = self.world.collections[collection][identity]
            self._items[place] = [Situation(self.world, {("item",): entity}, self)]
        return self._items[place][0]

    def _reached(
        self, key: Key, value: JsonValue, hops: int, seen: frozenset[tuple[str, str]]
    ) -> Iterator[tuple[Key, JsonValue]]:
        yield key, value
        if isinstance(value, dict):
            for name, part in value.items():
                yield from self._reached((*key, name), part, hops, seen)
        elif hops and isinstance(value, str | int) and not isinstance(value, bool):
            for name, entities in self.world.collections.items():
                identity = str(value)
                if identity in entities and (name, identity) not in seen:
                    yield from self._entity((*key, f">{name}"), name, identity, hops, seen)

    def _entity(
        self, key: Key, name: str, identity: str, hops: int, seen: frozenset[tuple[str, str]]
    ) -> Iterator[tuple[Key, JsonValue]]:
        entity = self.world.collections[name][identity]
        yield key, entity
        own = self.world.schema.collections[name].key
        for field, part in entity.items():
            if field != own:
                yield from self._reached((*key, field), part, hops - 1, seen | {(name, identity)})

    def _find(self, key: Key, value: JsonValue) -> None:
        """Name the entities that alone have a text of the call in one of their fields."""
        if isinstance(value, dict):
            for name, part in value.items():
                self._find((*key, name), part)
        elif isinstance(value, str) and len(value) > 2 and key[0] == "arg":
            for name, field, identity in self.world.only.get(value, ()):
                place = (*key, f">{name}@{field}")
                self.values[(*place, self.world.schema.collections[name].key)] = identity
                self.values.update(self._entity(place, name, identity, 1, frozenset()))


def situation_of(
    world: World,
    arguments: JsonObject,
    made: Mapping[str, str] | None = None,
    before: Situation | None = None,
    firsts: Sequence[Fault] = (),
) -> Situation:
    """What a call can speak of.

    Args:
        world: the state before the call, or after it.
        arguments: of the call.
        made: the next id of each collection that the tool adds to.
        before: what the call could speak of before it.
        firsts: what may be wrong with an item of a list.
    """
    roots: dict[Key, JsonValue] = {("arg", name): value for name, value in arguments.items()}
    roots.update({("value", name): world.state[name] for name in world.schema.values if name in world.state})
    roots.update({("new", name): identity for name, identity in (made or {}).items()})
    situation = Situation(world, roots)
    if before is not None:
        situation.values.update({("before", *key): value for key, value in before.values.items()})
    for fault in firsts:
        for item in situation.items(fault.over):
            if fault.holds(item, situation):
                root = ("first", str(fault))
                values = {key: value for key, value in item.values.items() if key[0] == "item"}
                situation.values.update({(*root, *key[1:]): value for key, value in values.items() if key[1:]})
                situation.values[root] = item.values[("item",)]
                break
    return situation


@dataclass(frozen=True, order=True)
class Fault:
    """What may be wrong with an item of a list: it names nothing, it comes twice, one number is above another."""

    over: Key
    kind: str
    """`missing`, `twice`, `above`, or `below` with a whole number."""
    one: Key
    other: Key = ()

    def holds(self, item: Situation, situation: Situation) -> bool:
        """Whether it is wrong with this item."""
        one = item.values.get(self.one)
        if self.kind == "missing":
            return one is None
        if self.kind == "twice":
            before = situation.items(self.over)
            return any(other.values.get(self.one) == one for other in before[: before.index(item)])
        if not is_number(one):
            return False
        limit = int(self.other[0]) if self.kind == "below" else item.values.get(self.other)
        if not is_number(limit):
            return False
        return one < limit if self.kind == "below" else one > limit  # type: ignore[operator]

    def __str__(self) -> str:
        return " ".join([*self.over, self.kind, *self.one, *self.other])


def faults(situations: Sequence[Situation]) -> tuple[Fault, ...]:
    """What may be wrong with items of the calls' own lists, as far as these calls have them."""
    found: set[Fault] = set()
    for situation in situations:
        for key, value in situation.values.items():
            if key[0] == "arg" and isinstance(value, list) and not any(">" in part for part in key):
                for item in situation.items(key):
                    found.update(_faults(key, item))
    return tuple(sorted(found))


def _faults(over: Key, item: Situation) -> Iterator[Fault]:
    own = {key: value for key, value in item.values.items() if key[0] == "item"}
    numbers = sorted(key for key, value in own.items() if is_number(value))
    for key in own:
        if key[-1].startswith(">") and sum(part.startswith(">") for part in key) == 1:
            yield Fault(over, "missing", key)
            yield Fault(over, "twice", key[:-1])
    for one in numbers:
        if not any(part.startswith(">") for part in one):
            yield Fault(over, "below", one, ("1",))
            yield Fault(over, "below", one, ("0",))
            yield from (Fault(over, "above", one, other) for other in numbers if other != one)


def is_number(value: object) -> bool:
    """A number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)
