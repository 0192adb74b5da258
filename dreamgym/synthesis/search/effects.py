"""The search for effects that make the recorded changes of all calls of one outcome.

Which entities change depends on the call. They are searched in this order:

1. the entity that a path names: an argument, a field of such an entity, or the next id of a collection;
2. one entity for each item of a list of the call or of such an entity;
3. the entities of a collection that pass filters.

A number that changes is increased if the difference has an expression. Anything else is set.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pydantic import JsonValue

from dreamgym.state import StateSchema, as_object, difference, unescaped
from dreamgym.synthesis.expressions import Calculation, Constant, Expression, Source, decimal, is_calculable
from dreamgym.synthesis.ids import IdSequence
from dreamgym.synthesis.paths import Bindings, Path, rank
from dreamgym.synthesis.program import Effect, items_at
from dreamgym.synthesis.search.expressions import ExpressionSearch
from dreamgym.synthesis.search.sources import lists, selecting
from dreamgym.types import JsonObject, StepResult

OPERATIONS = ("new", "set", "append", "increase", "delete")
"""The order of effects: an entity is made before its fields are set, and deleted after everything that reads it."""
_NOTHING = object()
"""Stands for a value that is not there, since None is a JSON value."""


class ChangeKind(NamedTuple):
    """The kind of a change, without its entity."""

    op: str
    """`set`, `append` or `delete` of a field; `new` or `gone` of an entity."""
    collection: str
    """Empty for a single value of the state."""
    tail: tuple[str, ...]
    """Path of the field in the entity, or of the single value in the state."""


Changes = dict[ChangeKind, dict[str, JsonValue]]
"""For each kind of change, the new value by the entity's id; for an `append`, the list of the appended values."""


@dataclass(frozen=True)
class Case:
    """A recorded call with its bindings and changes."""

    arguments: JsonObject
    result: StepResult
    before: Bindings
    after: Bindings
    changes: Changes


def changes_between(
    before: JsonObject, after: JsonObject, schema: StateSchema, derived: frozenset[tuple[str, str]] = frozenset()
) -> Changes:
    """The changes from one state to another, without those of derived fields (collection and field)."""
    # A collection that came or went as a whole counts as its entities, so both states get all collections.
    old: JsonObject = {}
    new: JsonObject = {}
    for name in before.keys() | after.keys():
        if name not in schema.collections:
            old.update({name: before[name]} if name in before else {})
            new.update({name: after[name]} if name in after else {})
            continue
        ours, theirs = as_object(before.get(name)), as_object(after.get(name))
        old[name] = {i: entity for i, entity in ours.items() if i not in theirs or theirs[i] != entity}
        new[name] = {i: entity for i, entity in theirs.items() if i not in ours or ours[i] != entity}
    changes: Changes = {}
    for operation in difference(old, new):
        name, *rest = unescaped(operation.path)
        if name not in schema.collections:
            if ("", name) in derived:
                continue
            changes.setdefault(ChangeKind("set", "", (name, *rest)), {})[""] = operation.value
            continue
        identity, *tail = rest
        if not tail:
            op = "gone" if operation.op == "delete" else "new"
            value = operation.value
            if isinstance(value, dict):
                value = {field: part for field, part in value.items() if (name, field) not in derived}
            changes.setdefault(ChangeKind(op, name, ()), {})[identity] = value
        elif (name, tail[0]) in derived:
            continue
        elif operation.op == "append":
            values = changes.setdefault(ChangeKind("append", name, tuple(tail)), {}).setdefault(identity, [])
            assert isinstance(values, list)
            values.append(operation.value)
        else:
            changes.setdefault(ChangeKind(operation.op, name, tuple(tail)), {})[identity] = operation.value
    return changes


def of_one_kind(changes: Sequence[Changes], after: Sequence[JsonObject]) -> list[Changes]:
    """The changes of all calls. If some calls set a list and others append to it, all of them set it in the result.

    Args:
        changes: the changes of each call.
        after: the state after each call.
    """
    kinds = {kind for found in changes for kind in found}
    both = {kind for kind in kinds if kind.op == "append" and kind._replace(op="set") in kinds}
    uniform: list[Changes] = []
    for found, state in zip(changes, after, strict=True):
        one = {kind: dict(values) for kind, values in found.items() if kind not in both}
        for kind in both & found.keys():
            news = {identity: _at(state, (kind.collection, identity, *kind.tail)) for identity in found[kind]}
            one.setdefault(kind._replace(op="set"), {}).update(news)
        uniform.append(one)
    return uniform


class EffectSearch:
    """Finds the effects of one outcome.

    Args:
        cases: recorded calls of the outcome.
        ids: sequences of new ids, for the collections that the tool adds to.
    """

    def __init__(self, cases: Sequence[Case], ids: Mapping[str, IdSequence]) -> None:
        self._cases = cases
        self._ids = ids
        self._calls = [case.before for case in cases]
        self._expressions = ExpressionSearch(self._calls)

    def find(self) -> tuple[Effect, ...] | None:
        """Effects that make all changes of all calls; None if some change has no explanation."""
        effects: list[Effect] = []
        for kind in sorted({kind for case in self._cases for kind in case.changes}):
            found = self._of_kind(kind)
            if found is None:
                return None
            effects += found
        return tuple(sorted(effects, key=lambda effect: OPERATIONS.index(effect.op)))

    def _of_kind(self, kind: ChangeKind) -> list[Effect] | None:
        if not kind.collection:
            values = [_at(case.after.state.state, kind.tail) for case in self._cases]
            effect = self._effect(kind, (), None, self._calls, values, [""] * len(values))
            return None if effect is None else [effect]
        unexplained = [set(case.changes.get(kind, {})) for case in self._cases]
        effects: list[Effect] = []
        for path in self._expressions.paths:
            if not any(unexplained):
                break
            named = [_identity(call, path) for call in self._calls]
            if not any(identity in ids for identity, ids in zip(named, unexplained, strict=True)):
                continue
            values = [_value_after(case, kind, one) for case, one in zip(self._cases, named, strict=True)]
            effect = None if _NOTHING in values else self._effect(kind, path, None, self._calls, values, named)
            if effect is not None:
                effects.append(effect)
                unexplained = [ids - {identity} for ids, identity in zip(unexplained, named, strict=True)]
        if any(unexplained):
            effect = self._loop(kind, unexplained)
            return None if effect is None else [*effects, effect]
        return effects

    def _loop(self, kind: ChangeKind, unexplained: Sequence[set[str]]) -> Effect | None:
        """An effect on the entities that the items of a list name, or on those of a collection that pass filters."""
        collection = kind.collection
        if kind.op == "new" and collection not in self._ids:
            return None  # the ids do not follow a sequence
        for source in lists(self._expressions.paths, self._calls):
            items = [source.items(call) for call in self._calls]
            every = [item for part in items for item in part]
            if every:
                shared = set.intersection(*({p for p in item.values if p[0] == "item"} for item in every))
                for path in [("new", collection)] if kind.op == "new" else sorted(shared, key=rank):
                    if effect := self._over(kind, source, path, items, unexplained):
                        return effect
        if kind.op != "new":
            key = self._calls[0].state.schema.collections[collection].key
            ids = [sorted(one) for one in unexplained]
            for entities in selecting(collection, self._calls, ids, ordered=False):
                items = [entities.items(call) for call in self._calls]
                if effect := self._over(kind, entities, ("item", key), items, unexplained):
                    return effect
        return None

    def _over(
        self,
        kind: ChangeKind,
        source: Source,
        path: Path,
        items: Sequence[list[Bindings]],
        unexplained: Sequence[set[str]],
    ) -> Effect | None:
        """The effect on the entity that a path names in each item; None if it misses a change or makes another."""
        changed: list[Bindings] = []
        values: list[JsonValue] = []
        names: list[str] = []
        for case, part, ids in zip(self._cases, items, unexplained, strict=True):
            named = [_identity(item, path) for item in part]
            if kind.op == "new" and named:
                named = self._ids[kind.collection].run_from(named[0], len(named))
            if not ids <= set(named):
                return None
            if len(set(named)) < len(named):
                continue  # two items changed the same entity, and the change of each is not known
            changed += part
            values += [_value_after(case, kind, identity) for identity in named]
            names += named
        if not changed or _NOTHING in values:
            return None
        return self._effect(kind, path, source, changed, values, names)

    def _effect(
        self,
        kind: ChangeKind,
        target: Path,
        source: Source | None,
        places: Sequence[Bindings],
        values: Sequence[JsonValue],
        named: Sequence[str],
    ) -> Effect | None:
        """The effect with an expression for its value; None if the value has none.

        Args:
            kind: kind of the change.
            target: path of the entity's id.
            source: source of the loop; None without a loop.
            places: the bindings of each call, or of each item of the loop.
            values: the new value in each of these.
            named: the entity's id in each of these.
        """
        op, collection, tail = kind
        effect = Effect("delete" if op == "gone" else op, collection, tail, target, over=source)
        if effect.op == "delete":
            return effect
        search = self._expressions if source is None else ExpressionSearch(places, 1)
        if op in {"new", "append"}:
            if op == "new":
                key = places[0].state.schema.collections[collection].key
                added: list[JsonValue] = [
                    {name: part for name, part in one.items() if name != key} for one in values if isinstance(one, dict)
                ]
            else:
                added = [one[0] for one in values if isinstance(one, list) and len(one) == 1]
            found = search.find(added) if len(added) == len(values) else None
            if found is None:
                return None
            repeats = op == "append" and any(
                json.dumps(item, sort_keys=True) in items_at(place.state.state, (collection, identity, *tail))
                for place, identity, item in zip(places, named, added, strict=True)
            )
            return replace(effect, value=found, repeats=repeats)
        if _NOTHING in values:
            return None
        fields = [(collection, identity, *tail) if collection else tail for identity in named]
        olds = [_at(place.state.state, field) for place, field in zip(places, fields, strict=True)]
        assigned = search.find(values, tail[-1])
        if assigned is not None and not isinstance(assigned, Constant | Calculation):
            return replace(effect, value=assigned)
        if all(map(is_calculable, (*olds, *values))):
            increase = _increase(search, olds, values)
            if increase is not None:
                return replace(effect, op="increase", value=increase)
        return None if assigned is None else replace(effect, value=assigned)


def _increase(search: ExpressionSearch, olds: Sequence[JsonValue], news: Sequence[JsonValue]) -> Expression | None:
    """The expression whose value is added to each old number to give the new one."""
    gained = search.find([_minus(new, old) for new, old in zip(news, olds, strict=True)])
    lost = search.find([_minus(old, new) for new, old in zip(news, olds, strict=True)])
    # A call does not contain a number such as -3. If two recorded calls both took 3 away, the difference is the
    # constant -3 or a calculation that fits by chance, while the call itself often contains 3. So a loss that the call
    # contains, with its sign turned, is better than such a gain.
    is_named = lost is not None and not isinstance(lost, Constant)
    if lost is not None and is_named and (gained is None or isinstance(gained, Constant | Calculation)):
        return Calculation("*", lost, Constant("-1"))
    return gained


def _minus(one: JsonValue, other: JsonValue) -> JsonValue:
    if isinstance(one, int) and isinstance(other, int):
        return one - other
    return float(decimal(one) - decimal(other))


def _value_after(case: Case, kind: ChangeKind, identity: str) -> JsonValue:
    """The value that this kind of change gave an entity; `_NOTHING` if the change cannot have been made."""
    changed = case.changes.get(kind, {})
    if identity in changed:
        return changed[identity]
    # The call may have set the field to the value that it already had.
    entity = case.after.state.collections[kind.collection].get(identity)
    if kind.op != "set" or entity is None or identity not in case.before.state.collections[kind.collection]:
        return _NOTHING  # type: ignore[return-value]
    return _at(entity, kind.tail)


def _identity(bindings: Bindings, path: Path) -> str:
    """The id that a path is bound to; empty if it is not bound to one."""
    value = bindings.values.get(path)
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _at(value: JsonValue, path: Sequence[str]) -> JsonValue:
    for part in path:
        if not isinstance(value, dict) or part not in value:
            return _NOTHING  # type: ignore[return-value]
        value = value[part]
    return value
