"""The search for the changes and the answers of calls whose answers have one form."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations

from pydantic import JsonValue

from dreamgym.state import StateSchema, as_object
from dreamgym.synthesis.objects.calls import ObjectCall
from dreamgym.synthesis.objects.rules import ObjectChange
from dreamgym.synthesis.objects.terms import Found, Term, found
from dreamgym.synthesis.objects.values import Always, Having, Read, Together, Value
from dreamgym.types import JsonObject

TRIED = 300
"""Most calls in which a value is searched."""
EXCEPTIONS = 0.02
"""Share of the calls in which the recorded value may differ."""


def answer_of(cases: Sequence[ObjectCall], terms: Sequence[Term], schema: StateSchema) -> dict[str, Value | None]:
    """How each field of the answers follows from the state after the call; None for one without an explanation."""
    tried = cases[:: -(-len(cases) // TRIED) or 1]
    calls = [(case.after, case.arguments) for case in tried]
    return {
        name: _value([(case.answer or {}).get(name) for case in tried], calls, terms, schema, name)
        for name in tried[0].answer or {}
    }


def effects_of(
    cases: Sequence[ObjectCall], terms: Sequence[Term], schema: StateSchema
) -> tuple[ObjectChange, ...] | None:
    """The changes that the calls make; None if some change has no explanation. A removal has none."""
    tried = cases[:: -(-len(cases) // TRIED) or 1]
    if sum(any(removed_by(case, schema)) for case in tried) > EXCEPTIONS * len(tried):
        return None
    changes = [dict(changes_of(case, schema)) for case in tried]
    kinds = sorted({(collection, field) for one in changes for collection, _, field in one})
    effects: list[ObjectChange] = []
    for collection, field in kinds:
        places = [{i for name, i, part in one if (name, part) == (collection, field)} for one in changes]
        found_effects = _of_field(collection, field, places, tried, terms, schema)
        if found_effects is None:
            return None
        effects += found_effects
    return tuple(effects)


def changes_of(case: ObjectCall, schema: StateSchema) -> Iterator[tuple[tuple[str, str, str], JsonValue]]:
    """(collection, entity, field) of everything that a call set to another value, and this value."""
    if case.before is case.after:
        return
    for name, new in case.after.items():
        old = case.before.get(name)
        if name not in schema.collections:
            if name not in case.before or old != new:
                yield ("", "", name), new
        elif isinstance(new, dict) and new is not old:
            known = old if isinstance(old, dict) else {}
            for identity, entity in new.items():
                was = known.get(identity)
                if entity is was or not isinstance(entity, dict):
                    continue
                for field, value in entity.items():
                    if not isinstance(was, dict) or field not in was or was[field] != value:
                        yield (name, identity, field), value


def removed_by(case: ObjectCall, schema: StateSchema) -> Iterator[tuple[str, str, str]]:
    """(collection, entity, field) of everything that a call removed."""
    if case.before is case.after:
        return
    for name, old in case.before.items():
        new = case.after.get(name)
        if name not in schema.collections:
            if name not in case.after:
                yield "", "", name
        elif isinstance(old, dict) and new is not old:
            left = as_object(new)
            for identity, entity in old.items():
                now = left.get(identity)
                if now is not entity and isinstance(entity, dict):
                    yield from ((name, identity, field) for field in entity.keys() - as_object(now).keys())


def _of_field(
    collection: str,
    field: str,
    places: Sequence[set[str]],
    cases: Sequence[ObjectCall],
    terms: Sequence[Term],
    schema: StateSchema,
) -> list[ObjectChange] | None:
    """The effects on one field: of the single value, or of the entities that terms name."""
    if not collection:
        targets: list[JsonValue] = [case.after.get(field) for case in cases]
        value = _value(targets, [(case.before, case.arguments) for case in cases], terms, schema, field)
        return None if value is None else [ObjectChange("", field, (), value)]
    allowed = math.floor(EXCEPTIONS * len(cases))
    left = [set(ids) for ids in places]
    effects: list[ObjectChange] = []
    for term in terms:
        named = [found(term, case.before, case.arguments) for case in cases]
        if not any(isinstance(one, str) and one in ids for one, ids in zip(named, left, strict=True)):
            continue
        rows = []
        for one, case in zip(named, cases, strict=True):
            part = case.after.get(collection)
            entity = part.get(one) if isinstance(part, dict) and isinstance(one, str) else None
            if isinstance(entity, dict) and field in entity:
                rows.append((entity[field], (case.before, case.arguments)))
        own = (*term, f">{collection}", field)
        value = _value([row[0] for row in rows], [row[1] for row in rows], [*terms, own], schema, field, own)
        if value is None:
            continue
        effects.append(ObjectChange(collection, field, term, value))
        left = [ids - {one} if isinstance(one, str) else ids for one, ids in zip(named, left, strict=True)]
        if sum(bool(ids) for ids in left) <= allowed:
            return effects
    return None


def _value(
    targets: Sequence[JsonValue],
    calls: Sequence[tuple[JsonObject, JsonObject]],
    terms: Sequence[Term],
    schema: StateSchema,
    name: str,
    own: Term = (),
) -> Value | None:
    """The plainest value that is the target in nearly all calls; None if there is none.

    Args:
        targets: one for each call.
        calls: state and arguments.
        terms: terms that the value may use.
        schema: schema of the states.
        name: the field that the value stands in.
        own: the term of this field, for a list that is changed.
    """
    allowed = math.floor(EXCEPTIONS * len(targets))

    def read(term: Term) -> Iterator[Found]:
        return (found(term, *call) for call in calls)

    def fits(values: Iterable[Found]) -> bool:
        missed = 0
        for value, target in zip(values, targets, strict=True):
            if type(value) is not type(target) or value != target:
                missed += 1
                if missed > allowed:
                    return False
        return True

    if own and isinstance(targets[0], list):
        scalars = [term for term in terms if any(isinstance(value, str) for value in read(term))]
        changed = [*(Together((own,), (term,)) for term in scalars), *(Together((own, term)) for term in scalars)]
        if (first := _first(changed, calls, fits)) is not None:
            return first
    named = [term for term in terms if len(term) == 2 and term[0] == "arg"]
    alike = [term for term in terms if term[-1] == name and term not in named and term != own]
    for term in [*named, *alike]:
        if fits(read(term)):
            return Read(term)
    texts = [json.dumps(target) for target in targets]
    constant: JsonValue = json.loads(max(sorted(set(texts)), key=texts.count))
    always = Always(json.dumps(constant)) if fits([constant] * len(targets)) else None
    names_items = isinstance(constant, list) and constant != []  # the same items by chance, in few recordings
    if always is not None and not names_items:
        return always
    for term in terms:
        if term != own and fits(read(term)):
            return Read(term)
    if not all(isinstance(target, list) for target in targets):
        return always
    scalars = [term for term in terms if any(isinstance(value, str) for value in read(term))]
    lists = [term for term in terms if any(isinstance(value, list) for value in read(term))]
    candidates: list[Value] = [
        Having(collection, field, term)
        for collection, definition in schema.collections.items()
        for field in definition.fields
        for term in scalars
    ]
    candidates += [Together(pair) for pair in combinations([*scalars, *lists], 2)]
    candidates += [Together((term,)) for term in scalars]
    return _first(candidates, calls, fits) or always


def _first(
    candidates: Iterable[Value],
    calls: Sequence[tuple[JsonObject, JsonObject]],
    fits: Callable[[Iterable[Found]], bool],
) -> Value | None:
    return next((one for one in candidates if fits(one.of(*call) for call in calls)), None)
