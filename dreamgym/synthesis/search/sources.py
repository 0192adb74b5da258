"""The search for the source of a loop: a list, or the entities of a collection that pass filters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from pydantic import JsonValue

from dreamgym.state import is_number
from dreamgym.synthesis.expressions import Entities, Filter, Items, NoValue
from dreamgym.synthesis.paths import Bindings, Path, entities_on, is_entity
from dreamgym.types import JsonObject

KINDS = 8
"""A field with more values than this is not a category."""
NARROWED = 12
"""Most ways to narrow a collection that are tried, and most that are tried with each category."""
LIMITS = frozenset({"limit", "count", "n", "top", "max_results", "page_size"})
"""Names of arguments that limit how many entities are listed."""


def lists(paths: Sequence[Path], calls: Sequence[Bindings]) -> list[Items]:
    """The paths that are bound to a list in all calls."""
    return [Items(path) for path in paths if all(isinstance(call.values[path], list) for call in calls)]


def list_excluding(items: Items, paths: Sequence[Path], calls: Sequence[Bindings]) -> Iterator[Items]:
    """The list without the items that equal an argument."""
    own = {path for call in calls for item in call.items(items.path) for path in item.own}
    for mine in sorted(path for path in own if path[0] == "item" and len(path) <= 2):
        for other in paths:
            if other[0] == "arg" and len(other) == 2:
                yield Items(items.path, (mine, other))


def related(calls: Sequence[Bindings], paths: Sequence[Path], most: int = 4 * NARROWED) -> list[Entities]:
    """Collections narrowed by one or two fields that equal a value of the call, and then also by one category.

    Args:
        calls: the bindings of each call.
        paths: the paths that are bound in all of them.
        most: the largest number for each collection.
    """
    found: list[Entities] = []
    for name in sorted(calls[0].state.collections):
        collections = [call.state.collections[name] for call in calls]
        matching: list[Filter] = []
        for field in fields_of(collections):
            known = [{_scalar(entity.get(field)) for entity in collection.values()} for collection in collections]
            for path in paths:
                # A value of an entity that the call leads to is compared only with a field of the same name.
                if (
                    path[0] not in {"arg", "new", "item"}
                    or is_entity(path)
                    or (entities_on(path) and path[-1] != field)
                ):
                    continue
                values = [_scalar(call.values[path]) for call in calls]
                if any(value is not None and value in there for value, there in zip(values, known, strict=True)):
                    matching.append(Filter(field, "is", path))
        pairs = [(one, other) for one, other in combinations(matching, 2) if one.field != other.field]
        every: list[tuple[Filter, ...]] = [*((one,) for one in matching), *pairs]
        # values in the call itself are likelier than values of entities that it leads to
        narrowed = sorted(
            every, key=lambda part: sum(entities_on(one.other) for one in part if isinstance(one.other, tuple))
        )[:NARROWED]
        filters = list(narrowed)
        categories = categories_of(collections)
        sizes = Counter(category.field for category in categories)
        for category in sorted(categories, key=lambda one: (sizes[one.field], one.field, str(one.other))):
            filters += [(*one, category) for one in narrowed]
        found += [Entities(name, part) for part in filters[:most]]
    return found


def collection_of(
    calls: Sequence[Bindings], targets: Sequence[Sequence[JsonValue]], without: frozenset[str] = frozenset()
) -> Iterator[Entities]:
    """For each collection, the filters and the order that give exactly the entities in the target lists."""
    for name in sorted(calls[0].state.collections):
        ids: list[list[str]] = []
        for call, target in zip(calls, targets, strict=True):
            found = [_shown_id(element, name, call) for element in target]
            ids.append([identity for identity in found if identity is not None])
        if [len(one) for one in ids] == [len(target) for target in targets] and any(ids):
            yield from selecting(name, calls, ids, without=without)


def selecting(
    name: str,
    calls: Sequence[Bindings],
    ids: Sequence[Sequence[str]],
    *,
    ordered: bool = True,
    without: frozenset[str] = frozenset(),
) -> Iterator[Entities]:
    """The selection with the fewest filters that gives these ids in every call; nothing if there is none.

    Args:
        name: the collection.
        calls: the bindings of each call.
        ids: the wanted ids for each call.
        ordered: the ids must come in this order.
        without: names of fields that are left out.
    """
    collections = [call.state.collections[name] for call in calls]

    def gives(entities: Entities) -> bool:
        try:
            found = [entities.ids(call) for call in calls]
        except NoValue:
            return False
        return all(
            list(wanted) == shown if ordered else sorted(wanted) == sorted(shown)
            for wanted, shown in zip(ids, found, strict=True)
        )

    # Begin with every filter that all wanted entities pass. If these select too many, so do fewer of them.
    filters = tuple(
        condition
        for condition in filters_of(collections, calls)
        if condition.field not in without
        and all(
            condition.passes(collection[identity], call)
            for collection, call, wanted in zip(collections, calls, ids, strict=True)
            for identity in wanted
        )
    )
    arguments = sorted({path for call in calls for path in call.values if path[0] == "arg" and len(path) == 2})
    orders = [("", False), ("", True)]
    if ordered:
        fields = [field for field in fields_of(collections) if field not in without]
        orders += [(field, descending) for field in fields for descending in (False, True)]
    for limit in ((), *(path for path in arguments if path[-1] in LIMITS)):
        for order, descending in orders:
            entities = Entities(name, filters, order, descending, limit)
            if gives(entities):
                for condition in reversed(filters):  # try to drop the least likely filter first
                    fewer = replace(entities, filters=tuple(one for one in entities.filters if one != condition))
                    if gives(fewer):
                        entities = fewer
                yield entities
                return


def filters_of(collections: Sequence[Mapping[str, JsonObject]], calls: Sequence[Bindings]) -> Iterator[Filter]:
    """Every possible filter, the likeliest first."""
    keys = {collection.key for collection in calls[0].state.schema.collections.values()}
    fields = sorted(fields_of(collections), key=lambda field: field not in keys)  # the likeliest filter is the id
    paths = sorted({path for call in calls for path in call.values if path[0] in {"arg", "new", "item"}})
    of_call = [path for path in paths if path[0] == "arg" and len(path) == 2]
    values = sorted({path for call in calls for path in call.values if path[0] == "value" and len(path) == 2})
    listed = {
        field for part in collections for one in part.values() for field in fields if isinstance(one.get(field), list)
    }
    yield from (Filter(field, "is", path) for field in fields for path in paths if not is_entity(path))
    yield from (
        Filter(field, "has", path) for field in fields if field in listed for path in paths if not is_entity(path)
    )
    shared = sorted({path for call in calls for path, value in call.values.items() if isinstance(value, list)})
    shared = [path for path in shared if path[0] in {"arg", "item"}]
    yield from (Filter(field, "shares", path) for field in fields if field in listed for path in shared)
    yield from (Filter(field, "contains", path) for field in fields for path in of_call)
    for kind in ("at least", "at most", "above", "below"):
        yield from (Filter(field, kind, path) for field in fields for path in (*of_call, *values))
    categories = categories_of(collections)
    yield from categories
    yield from (Filter(category.field, "is not", category.other) for category in categories)


def categories_of(collections: Sequence[Mapping[str, JsonObject]]) -> list[Filter]:
    """A filter for each value of each field that has few values."""
    found: list[Filter] = []
    entities = sum(len(collection) for collection in collections)
    for field in fields_of(collections):
        values = {
            json.dumps(entity[field])
            for collection in collections
            for entity in collection.values()
            if field in entity and isinstance(entity[field], str | bool | None)
        }
        if len(values) <= min(KINDS, max(2, entities // 3)):
            found += [Filter(field, "is", value) for value in sorted(values)]
    return found


def _shown_id(element: JsonValue, collection: str, call: Bindings) -> str | None:
    """The id of the entity that an element of a list shows."""
    entities = call.state.collections[collection]
    if isinstance(element, str):
        return element if element in entities else next((i for i in entities if _begins_with(element, i)), None)
    if not isinstance(element, dict):
        return None
    key = call.state.schema.collections[collection].key
    candidates = [element.get(key), *(value for name, value in element.items() if name in {"id", "name"})]
    return next((one for one in candidates if isinstance(one, str) and one in entities), None)


def fields_of(collections: Sequence[Mapping[str, JsonObject]]) -> list[str]:
    """Names of the fields of all entities."""
    return sorted({field for collection in collections for entity in collection.values() for field in entity})


def _scalar(value: JsonValue) -> str | int | float | None:
    return value if isinstance(value, str) or is_number(value) else None


def _begins_with(text: str, identity: str) -> bool:
    return text.startswith(identity) and not text[len(identity) : len(identity) + 1].isalnum()
