"""Lists that something may be done for, or told of: of the call, of an entity, of a collection."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from pydantic import JsonValue

from dreamgym.synthesis.expressions import Entities, Filter, Items
from dreamgym.synthesis.situation import Key, Situation, is_number
from dreamgym.types import JsonObject

KINDS = 8
"""A field with more values than so many is no category."""
NARROWED = 12
"""So many ways to narrow a collection are tried, and each with some categories."""
Found = Sequence[Sequence[str]]
"""Ids of entities in each situation."""


def lists_of(keys: Sequence[Key], situations: Sequence[Situation]) -> list[Items]:
    """The lists that can be named in all situations."""
    return [Items(key) for key in keys if all(isinstance(situation.values[key], list) for situation in situations)]


def shortened(items: Items, keys: Sequence[Key], situations: Sequence[Situation]) -> Iterator[Items]:
    """The same list without what an argument names."""
    own = {key for situation in situations for item in situation.items(items.key) for key in item.own}
    for mine in sorted(key for key in own if key[0] == "item" and len(key) <= 2):
        for other in keys:
            if other[0] == "arg" and len(other) == 2:
                yield Items(items.key, (mine, other))


def related(situations: Sequence[Situation], keys: Sequence[Key], most: int = 4 * NARROWED) -> list[Entities]:
    """Collections narrowed to the entities with what can be named in a field, and then to those of one category.

    Args:
        situations: where.
        keys: what can be named in all of them.
        most: so many of each collection.
    """
    found: list[Entities] = []
    for name in sorted(situations[0].world.collections):
        worlds = [situation.world.collections[name] for situation in situations]
        matching: list[Filter] = []
        for field in _fields(worlds):
            there = [{_plain(one.get(field)) for one in world.values()} for world in worlds]
            for key in keys:
                if key[0] in {"arg", "new", "item"} and _may_match(key, field):
                    values = [_plain(situation.values[key]) for situation in situations]
                    if any(v is not None and v in known for v, known in zip(values, there, strict=True)):
                        matching.append(Filter(field, "is", key))
        pairs = [
            (one, other)
            for number, one in enumerate(matching)
            for other in matching[number + 1 :]
            if one.field != other.field
        ]
        filters: list[tuple[Filter, ...]] = [*((one,) for one in matching), *pairs][:NARROWED]
        categories = _categories(worlds)
        kinds = Counter(category.field for category in categories)
        for category in sorted(categories, key=lambda one: (kinds[one.field], one.field, str(one.other))):
            filters += [(*one, category) for one in filters if _is_of_call(one)]
        found += [Entities(name, part) for part in filters[:most]]
    return found


def among_entities(
    situations: Sequence[Situation], keys: Sequence[Key], targets: Sequence[Sequence[JsonValue]]
) -> Iterator[Entities]:
    """The collections, filtered and in order, whose entities the lists tell of."""
    for name in sorted(situations[0].world.collections):
        ids: list[list[str]] = []
        for situation, target in zip(situations, targets, strict=True):
            told = [_told(element, name, situation) for element in target]
            ids.append([one for one in told if one is not None])
        if [len(one) for one in ids] == [len(target) for target in targets] and any(ids):
            yield from narrowed(name, situations, ids)


def narrowed(name: str, situations: Sequence[Situation], ids: Found, *, ordered: bool = True) -> Iterator[Entities]:
    """The plainest way to name just these entities of a collection, in this order; nothing where there is none."""
    worlds = [situation.world.collections[name] for situation in situations]
    filters = [
        part
        for part in _filters(worlds, situations)
        if all(
            part.passes(world[one], situation)
            for world, situation, found in zip(worlds, situations, ids, strict=True)
            for one in found
        )
    ]
    limits: list[Key] = [
        (),
        *(
            key
            for key in _arguments(situations)
            if key[-1] in {"limit", "count", "n", "top", "max_results", "page_size"}
        ),
    ]
    orders = [("", False), ("", True)]
    if ordered:
        orders += [(field, down) for field in _fields(worlds) for down in (False, True)]
    for limit in limits:
        for order, down in orders:
            if _names(Entities(name, tuple(filters), order, down, limit), situations, ids, ordered):
                yield _plainer(Entities(name, tuple(filters), order, down, limit), situations, ids, ordered)
                return


def _plainer(entities: Entities, situations: Sequence[Situation], ids: Found, ordered: bool) -> Entities:
    """Without every filter that is not needed, the unlikeliest left out first."""
    for part in reversed(entities.filters):
        fewer = Entities(
            entities.collection,
            tuple(one for one in entities.filters if one != part),
            entities.order,
            entities.descending,
            entities.limit,
        )
        if _names(fewer, situations, ids, ordered):
            entities = fewer
    return entities


def _names(entities: Entities, situations: Sequence[Situation], ids: Found, ordered: bool) -> bool:
    for situation, found in zip(situations, ids, strict=True):
        named = entities.ids(situation)
        if list(found) != named if ordered else sorted(found) != sorted(named):
            return False
    return True


def _filters(worlds: Sequence[dict[str, JsonObject]], situations: Sequence[Situation]) -> Iterator[Filter]:
    """All that may hold, the likeliest first."""
    fields = _fields(worlds)
    keys = sorted({key for situation in situations for key in situation.values if key[0] in {"arg", "new", "item"}})
    scalars = [key for key in keys if not _is_entity(key)]
    for kind in ("is", "contains", "at least", "at most"):
        for field in fields:
            for key in scalars:
                if kind == "is" or (key[0] == "arg" and len(key) == 2):
                    yield Filter(field, kind, key)
    for category in _categories(worlds):
        yield category
    for category in _categories(worlds):
        yield Filter(category.field, "is not", category.other)


def _categories(worlds: Sequence[dict[str, JsonObject]]) -> list[Filter]:
    found: list[Filter] = []
    for field in _fields(worlds):
        values = {
            json.dumps(one[field])
            for world in worlds
            for one in world.values()
            if field in one and isinstance(one[field], str | bool | None)
        }
        entities = sum(len(world) for world in worlds)
        if len(values) <= min(KINDS, max(2, entities // 3)):
            found += [Filter(field, "is", value) for value in sorted(values)]
    return found


def _told(element: JsonValue, collection: str, situation: Situation) -> str | None:
    """The id of the entity that an element of a list tells of."""
    entities = situation.world.collections[collection]
    if isinstance(element, str):
        return element if element in entities else None
    if not isinstance(element, dict):
        return None
    key = situation.world.schema.collections[collection].key
    named = [element.get(key), *(value for name, value in element.items() if name in {"id", "name"})]
    return next((one for one in named if isinstance(one, str) and one in entities), None)


def _fields(worlds: Sequence[dict[str, JsonObject]]) -> list[str]:
    return sorted({field for world in worlds for one in world.values() for field in one})


def _arguments(situations: Sequence[Situation]) -> list[Key]:
    return sorted({key for situation in situations for key in situation.values if key[0] == "arg" and len(key) == 2})


def _plain(value: JsonValue) -> str | int | float | None:
    return value if isinstance(value, str) or is_number(value) else None  # type: ignore[return-value]


def _may_match(key: Key, field: str) -> bool:
    """An argument itself or an id that it leads to; anything deeper only under the field's own name."""
    return not _is_entity(key) and (not any(part.startswith(">") for part in key) or key[-1] == field)


def _is_entity(key: Key) -> bool:
    return key[-1].startswith(">")


def _is_of_call(filters: tuple[Filter, ...]) -> bool:
    """Narrowed by what the call names alone, and by no category so far."""
    return all(not isinstance(part.other, str) for part in filters)
