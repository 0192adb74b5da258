"""Which changes the recorded calls of one outcome made to an explicit state, as effects that new calls have too.

What depends on the call is which entities change. They are found among those that the call can name, in this order:

1. entities that an argument, a field of such an entity or the next id of a collection names;
2. one for each item of a list of the call or of such an entity;
3. those of a collection that pass filters.

A number changes by what is added to it where that has an explanation; anything else is set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from dreamgym.state import Operation, StateSchema, difference
from dreamgym.synthesis.explaining import Explainer, rank
from dreamgym.synthesis.expressions import Calculation, Constant, Expression, NoValue, Source, decimal
from dreamgym.synthesis.situation import (
    Key,
    Numbering,
    Situation,
    is_number,
)
from dreamgym.synthesis.sources import lists_of, narrowed
from dreamgym.types import JsonObject, StepResult

Kind = tuple[str, str, tuple[str, ...]]
"""What happens (`set`, `append`, `new`, `gone`), in which collection (empty: a single value), to which field."""


@dataclass(frozen=True)
class Recorded:
    """One call of the tool as it was recorded."""

    before: JsonObject
    arguments: JsonObject
    result: StepResult
    after: JsonObject


@dataclass(frozen=True)
class Effect:
    """One change of a program."""

    op: str
    """`set`, `append`, `increase`, `new` or `delete`."""
    collection: str
    tail: tuple[str, ...]
    """The field; of a single value its name."""
    target: Key = ()
    """What names the entity."""
    value: Expression | None = None
    over: Source | None = None
    """Done for each of these."""

    def operations(self, situation: Situation, numbering: Mapping[str, Numbering]) -> Iterator[Operation]:
        """Raises NoValue."""
        for count, place in enumerate(self.over.situations(situation) if self.over else [situation]):
            path = self.tail
            if self.collection:
                identity = place.values.get(self.target)
                if not isinstance(identity, str | int):
                    raise NoValue(f"{' '.join(self.target)} names nothing")
                if self.op == "new":
                    for _ in range(count):
                        identity = numbering[self.collection].next(str(identity))
                path = (self.collection, str(identity), *self.tail)
            value = None if self.value is None else self.value.value(place)
            if self.op == "new" and isinstance(value, dict):
                value = {self_key(situation, self.collection): path[1], **value}
            op = "set" if self.op == "new" else self.op
            yield Operation.model_validate({"op": op, "path": pointer(path), "value": value})


@dataclass
class Case:
    """A recorded call with what it could speak of before and after it, and what it changed."""

    recorded: Recorded
    before: Situation
    after: Situation
    changes: dict[Kind, dict[str, JsonValue]] = field(default_factory=dict)
    """The new value by the entity's id, for each kind of change; of an `append` the list of what was appended."""


def self_key(situation: Situation, collection: str) -> str:
    """The field that holds a collection's ids."""
    return situation.world.schema.collections[collection].key


def pointer(path: Sequence[str]) -> str:
    """A JSON pointer."""
    return "".join(f"/{part.replace('~', '~0').replace('/', '~1')}" for part in path)


def parts_of(path: str) -> list[str]:
    """The parts of a JSON pointer."""
    return [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]


def changes_of(recorded: Recorded, schema: StateSchema) -> dict[Kind, dict[str, JsonValue]]:
    """What a recorded call changed, by kind and entity."""
    found: dict[Kind, dict[str, JsonValue]] = {}
    for operation in _operations(recorded, schema):
        path = parts_of(operation.path)
        name = path[0]
        if name not in schema.collections:
            found.setdefault(("set", "", tuple(path)), {})[""] = operation.value
        elif len(path) == 2:
            kind = "gone" if operation.op == "delete" else "new"
            found.setdefault((kind, name, ()), {})[path[1]] = operation.value
        elif operation.op == "append":
            values = found.setdefault(("append", name, tuple(path[2:])), {}).setdefault(path[1], [])
            assert isinstance(values, list)
            values.append(operation.value)
        else:
            found.setdefault((operation.op, name, tuple(path[2:])), {})[path[1]] = operation.value
    return found


def _operations(recorded: Recorded, schema: StateSchema) -> Iterator[Operation]:
    """The difference, where a collection that came or went as a whole counts as its entities."""
    before: JsonObject = {}
    after: JsonObject = {}
    for name in recorded.before.keys() | recorded.after.keys():
        old, new = recorded.before.get(name), recorded.after.get(name)
        if name not in schema.collections:
            before.update({name: old} if name in recorded.before else {})
            after.update({name: new} if name in recorded.after else {})
        else:
            ours, theirs = old if isinstance(old, dict) else {}, new if isinstance(new, dict) else {}
            before[name] = {i: one for i, one in ours.items() if i not in theirs or theirs[i] != one}
            after[name] = {i: one for i, one in theirs.items() if i not in ours or ours[i] != one}
    return iter(difference(before, after))


class Effects:
    """Learns the effects of some recorded calls of one outcome.

    Args:
        cases: the calls.
        numbering: of the collections that the tool adds to.
    """

    def __init__(self, cases: Sequence[Case], numbering: Mapping[str, Numbering]) -> None:
        self._cases = cases
        self._numbering = numbering
        self._explainer = Explainer([case.before for case in cases])

    def learned(self) -> tuple[Effect, ...] | None:
        """Effects that make all the changes of all the calls; None where some have no explanation."""
        effects: list[Effect] = []
        for kind in sorted({kind for case in self._cases for kind in case.changes}):
            found = self._of_kind(kind)
            if found is None:
                return None
            effects += found
        # What is taken away is looked at first, and a new entity is there before anything is said of it.
        order = ("new", "set", "append", "increase", "delete")
        return tuple(sorted(effects, key=lambda effect: order.index(effect.op)))

    def _of_kind(self, kind: Kind) -> list[Effect] | None:
        _, collection, tail = kind
        if not collection:
            values = [_at(case.recorded.after, tail) for case in self._cases]
            effect = self._effect(kind, (), None, [c.before for c in self._cases], values, [""] * len(values))
            return None if effect is None else [effect]
        open_ = [set(case.changes.get(kind, {})) for case in self._cases]
        effects: list[Effect] = []
        for key in self._explainer.keys:
            if any(open_):
                named = [_identity(case.before, key) for case in self._cases]
                if any(one in left for one, left in zip(named, open_, strict=True)) and (
                    effect := self._direct(kind, key, named)
                ):
                    effects.append(effect)
                    open_ = [left - {one} for one, left in zip(named, open_, strict=True)]
        if any(open_):
            effect = self._repeated(kind, open_)
            return None if effect is None else [*effects, effect]
        return effects

    def _direct(self, kind: Kind, key: Key, named: Sequence[str]) -> Effect | None:
        """An effect on the entity that a key names in every call."""
        values: list[JsonValue] = []
        for case, identity in zip(self._cases, named, strict=True):
            found = _outcome(case, kind, identity)
            if found is _NOTHING:
                return None
            values.append(found)
        return self._effect(kind, key, None, [case.before for case in self._cases], values, named)

    def _repeated(self, kind: Kind, open_: Sequence[set[str]]) -> Effect | None:
        """An effect on the entities that the items of a list name, or on those of a collection that pass filters."""
        collection = kind[1]
        if kind[0] == "new" and collection not in self._numbering:
            return None  # ids that follow no order cannot be told ahead
        for source in lists_of(self._explainer.keys, self._explainer.situations):
            items = [source.situations(case.before) for case in self._cases]
            every = [item for part in items for item in part]
            if not every:
                continue
            shared = set.intersection(*({k for k in item.values if k[0] == "item"} for item in every))
            keys = [("new", collection)] if kind[0] == "new" else sorted(shared, key=rank)
            for key in keys:
                if effect := self._over(kind, source, key, items, open_):
                    return effect
        if kind[0] != "new":
            ids = [sorted(one) for one in open_]
            for entities in narrowed(collection, self._explainer.situations, ids, ordered=False):
                items = [entities.situations(case.before) for case in self._cases]
                key = ("item", self._cases[0].before.world.schema.collections[collection].key)
                if effect := self._over(kind, entities, key, items, open_):
                    return effect
        return None

    def _over(
        self, kind: Kind, source: Source, key: Key, items: Sequence[list[Situation]], open_: Sequence[set[str]]
    ) -> Effect | None:
        places: list[Situation] = []
        values: list[JsonValue] = []
        names: list[str] = []
        for case, part, left in zip(self._cases, items, open_, strict=True):
            named = [_identity(item, key) for item in part]
            if kind[0] == "new" and named:
                named = list(self._numbered(kind[1], named[0], len(named)))
            if not left <= set(named):
                return None
            if len(set(named)) < len(named):
                continue  # what two items do to one entity cannot be told apart
            for item, identity in zip(part, named, strict=True):
                found = _outcome(case, kind, identity)
                if found is _NOTHING:
                    return None
                places.append(item)
                values.append(found)
                names.append(identity)
        return self._effect(kind, key, source, places, values, names) if places else None

    def _numbered(self, collection: str, first: str, count: int) -> Iterator[str]:
        for _ in range(count):
            yield first
            first = self._numbering[collection].next(first)

    def _effect(
        self,
        kind: Kind,
        key: Key,
        source: Source | None,
        places: Sequence[Situation],
        values: Sequence[JsonValue],
        named: Sequence[str],
    ) -> Effect | None:
        """An effect with the explanation of its value."""
        happens, collection, tail = kind
        if happens in {"gone", "delete"}:
            return Effect("delete", collection, tail, key, over=source)
        explainer = self._explainer if source is None else Explainer(places, 1)
        if happens == "new":
            own = self_key(places[0], collection)
            plain = [{n: v for n, v in one.items() if n != own} for one in values if isinstance(one, dict)]
            found = explainer.find(plain) if len(plain) == len(values) else None
            return None if found is None else Effect("new", collection, (), key, found, source)
        if happens == "append":
            single = [one[0] for one in values if isinstance(one, list) and len(one) == 1]
            found = explainer.find(single) if len(single) == len(values) else None
            return None if found is None else Effect("append", collection, tail, key, found, source)
        olds = [
            _at(p.world.state, (collection, i, *tail) if collection else tail)
            for p, i in zip(places, named, strict=True)
        ]
        return _changed(explainer, Effect("set", collection, tail, key, over=source), olds, values)


_NOTHING = object()


def _outcome(case: Case, kind: Kind, identity: str) -> JsonValue:
    """What an entity became, `_NOTHING` where this kind of change cannot have been made of it."""
    happens, collection, tail = kind
    made = case.changes.get(kind, {})
    if identity in made:
        return made[identity]
    entity = case.after.world.collections[collection].get(identity)
    if happens != "set" or entity is None or identity not in case.before.world.collections[collection]:
        return _NOTHING  # type: ignore[return-value]
    return _at(entity, tail)


def _changed(
    explainer: Explainer, effect: Effect, olds: Sequence[JsonValue], values: Sequence[JsonValue]
) -> Effect | None:
    """How a value that was there is changed: by adding where that is explained, else by setting."""
    name = effect.tail[-1]
    if _NOTHING in values:
        return None
    set_ = explainer.find(values, name)
    if set_ is not None and not isinstance(set_, Constant | Calculation):
        return _with(effect, "set", set_)
    if all(is_number(one) for one in (*olds, *values)):
        added = _added(explainer, [_minus(new, old) for new, old in zip(values, olds, strict=True)])
        if added is not None:
            return _with(effect, "increase", added)
    return None if set_ is None else _with(effect, "set", set_)


def _added(explainer: Explainer, differences: Sequence[JsonValue]) -> Expression | None:
    found = explainer.find(differences)
    lost = explainer.find([_minus(0, one) for one in differences])
    if (
        lost is not None
        and (found is None or isinstance(found, Constant | Calculation))
        and not isinstance(lost, Constant)
    ):
        return Calculation("*", lost, Constant("-1"))
    return found


def _with(effect: Effect, op: str, value: Expression) -> Effect:
    return Effect(op, effect.collection, effect.tail, effect.target, value, effect.over)


def _minus(one: JsonValue, other: JsonValue) -> JsonValue:
    assert is_number(one)
    assert is_number(other)
    difference_ = decimal(one) - decimal(other)
    return int(difference_) if isinstance(one, int) and isinstance(other, int) else float(difference_)


def _identity(situation: Situation, key: Key) -> str:
    """The id that a key names, empty where it names none."""
    value = situation.values.get(key)
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _at(value: JsonValue, path: Sequence[str]) -> JsonValue:
    for part in path:
        if not isinstance(value, dict) or part not in value:
            return _NOTHING  # type: ignore[return-value]
        value = value[part]
    return value
