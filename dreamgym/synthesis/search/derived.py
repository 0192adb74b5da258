"""The search for derived fields, which follow from the rest of the state in every recorded state.

Only fields that change are examined. A flag is sought as the entities that pass filters, a number as a calculation or
as a count or sum over related entities, a list as the ids of entities in an order. Expressions are sought in a sample
of the states and must then hold in all of them; states in which one does not hold join the sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

from pydantic import JsonValue

from dreamgym.state import StateSchema, is_number, same
from dreamgym.synthesis.derived import DerivedField
from dreamgym.synthesis.expressions import (
    Calculation,
    Entities,
    Expression,
    Filter,
    ForEach,
    NoValue,
    Sum,
    Variable,
    gives,
    parts_of,
)
from dreamgym.synthesis.paths import Bindings, IndexedState, bind
from dreamgym.synthesis.search.expressions import ExpressionSearch
from dreamgym.synthesis.search.sources import categories_of, collection_of, fields_of, selecting
from dreamgym.types import JsonObject

SAMPLE = 24
"""About as many states are searched for expressions first."""
ROUNDS = 4
"""Most samples for one field."""
CHANGES = 4
"""A field that changed in fewer recorded calls than this is not examined."""
ENTITIES = 200
"""Most entities whose values are compared in a search."""


def derived_fields(recorded: Sequence[tuple[JsonObject, JsonObject]], schema: StateSchema) -> tuple[DerivedField, ...]:
    """The derived fields, each after those that it follows from.

    Args:
        recorded: the state before and after each recorded call.
        schema: schema of the states.
    """
    changes = Counter(
        field
        for before, after in recorded
        for field in {*_changed_values(before, after, schema), *changed_entity_fields(before, after, schema)}
    )
    states = list({id(state): IndexedState(state, schema) for pair in recorded for state in pair}.values())
    found: list[DerivedField] = []
    for (collection, field), count in sorted(changes.items()):
        if count < CHANGES:
            continue
        cyclic = frozenset({(collection, field), *(one.place for one in found if field in _reads_of(one, found))})
        sample = states[:: max(1, len(states) // SAMPLE)]
        for _ in range(ROUNDS):
            derived = _find(collection, field, sample, cyclic)
            if derived is None:
                break
            wrong = [state for state in states if not _holds(derived, state)]
            if not wrong:
                found.append(derived)
                break
            sample += wrong[:: max(1, len(wrong) // 4)]
    return tuple(sorted(found, key=lambda one: len(_reads_of(one, found) & {other.field for other in found})))


def _find(
    collection: str, field: str, sample: Sequence[IndexedState], cyclic: frozenset[tuple[str, str]]
) -> DerivedField | None:
    calls = [bind(state, {}) for state in sample]
    if not collection:
        targets = [state.state.get(field) for state in sample]
        return next((DerivedField("", field, one) for one in _values(calls, targets, cyclic)), None)
    places = [
        (call.of_entity(collection, identity), entity.get(field))
        for call in calls
        for identity, entity in call.state.collections[collection].items()
    ]
    places = places[:: max(1, len(places) // ENTITIES)]
    items, values = [item for item, _ in places], [value for _, value in places]
    if values and all(isinstance(value, bool) for value in values):
        ids = [[i for i, entity in s.collections[collection].items() if entity.get(field) is True] for s in sample]
        if min(values.count(True), values.count(False)) >= CHANGES:
            for entities in selecting(collection, calls, ids, ordered=False, without=_names(cyclic)):
                return DerivedField(collection, field, entities)
        return None
    return next((DerivedField(collection, field, one) for one in _values(items, values, cyclic)), None)


def _values(
    calls: Sequence[Bindings], targets: Sequence[JsonValue], cyclic: frozenset[tuple[str, str]]
) -> Iterator[Expression]:
    """Expressions that give every target."""
    if len({repr(target) for target in targets}) < 2:
        return  # a field that never varies shows too little
    if all(is_number(target) for target in targets):
        found = ExpressionSearch(calls, 1, _names(cyclic)).find(targets)
        if isinstance(found, Calculation):
            yield found
        for one in _sums(calls, cyclic):
            if gives(one, calls, targets):
                yield one
    elif all(isinstance(target, list) for target in targets) and ("item",) not in calls[0].values:
        lists = [target for target in targets if isinstance(target, list)]
        for entities in collection_of(calls, lists, _names(cyclic)):
            listed = ForEach(entities, Variable(("item", calls[0].state.schema.collections[entities.collection].key)))
            if gives(listed, calls, targets):
                yield listed


def _sums(calls: Sequence[Bindings], cyclic: frozenset[tuple[str, str]]) -> Iterator[Expression]:
    """Counts of the entities that refer to the item and have up to two categories, and sums over their numbers."""
    own = [path for path in calls[0].values if path[0] == "item" and len(path) == 2]
    names = _names(cyclic)
    for name in sorted(calls[0].state.collections):
        collections = [call.state.collections[name] for call in calls]
        fields = [field for field in fields_of(collections) if field not in names]
        anchors: list[tuple[Filter, ...]] = [
            (Filter(field, "is", path),)
            for field in fields
            for path in own
            if any(_is_named(call, path, field, entities) for call, entities in zip(calls, collections, strict=True))
        ]
        categories = [one for one in categories_of(collections) if one.field not in names]
        categories += [Filter(one.field, "is not", one.other) for one in categories]
        numbers = [
            field
            for field in fields_of(collections)
            if (name, field) not in cyclic
            and any(is_number(one.get(field)) for part in collections for one in part.values())
        ]
        key = calls[0].state.schema.collections[name].key
        for anchor in anchors if own else [()]:
            # the field of one entity is not a sum, and often a copy that keeps the value that it was made with
            for count in range(any(one.field == key for one in anchor), 3):
                for chosen in combinations(categories, count):
                    over = Entities(name, (*anchor, *chosen))
                    yield Sum(over)
                    if count < 2:
                        yield from (Sum(over, Variable(("item", field))) for field in numbers)


def _names(places: frozenset[tuple[str, str]]) -> frozenset[str]:
    return frozenset(field for _, field in places)


def _is_named(call: Bindings, path: tuple[str, ...], field: str, entities: dict[str, JsonObject]) -> bool:
    value = call.values.get(path)
    return isinstance(value, str) and any(entity.get(field) == value for entity in entities.values())


def _holds(derived: DerivedField, state: IndexedState) -> bool:
    try:
        values = derived.values(state)
    except NoValue:
        return False
    if not derived.collection:
        return same(state.state.get(derived.field), values[""])
    entities = state.collections[derived.collection]
    return all(same(entities[identity].get(derived.field), value) for identity, value in values.items())


def _reads_of(derived: DerivedField, known: Sequence[DerivedField]) -> set[str]:
    """Names of the fields that a derived field follows from, directly or through others."""
    reads: set[str] = set()
    for part in parts_of(derived.value):
        if isinstance(part, Filter):
            reads.add(part.field)
        elif isinstance(part, Entities):
            reads |= {part.order, part.collection}
        elif isinstance(part, tuple) and part and all(isinstance(step, str) for step in part):
            reads |= set(part)
    for one in known:
        if one.field in reads and one is not derived:
            reads |= _reads_of(one, [other for other in known if other is not derived])
    return reads


def changed_entity_fields(before: JsonObject, after: JsonObject, schema: StateSchema) -> Iterator[tuple[str, str]]:
    """The collection and name of each field of an entity that the call changed."""
    for name in schema.collections:
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict) and old != new:
            for identity in old.keys() & new.keys():
                one, other = old[identity], new[identity]
                if isinstance(one, dict) and isinstance(other, dict) and one != other:
                    yield from ((name, field) for field in one.keys() & other.keys() if one[field] != other[field])


def _changed_values(before: JsonObject, after: JsonObject, schema: StateSchema) -> Iterator[tuple[str, str]]:
    """An empty collection and the name, for each single value of the state that the call changed."""
    for name in before.keys() & after.keys() - schema.collections.keys():
        if not same(before[name], after[name]):
            yield "", name
