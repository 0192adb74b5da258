"""Learns the rules of tools from recorded calls.

The recorded calls of a tool fall into outcomes: refused, or a success with one form of answer. For each form of
success, the search finds

- its changes and its answer: values that fit nearly all its calls (`search`);
- its conditions, which hold before nearly all its calls and would seldom hold by chance. Calls with arguments drawn at
  random in recorded states show what holds by chance, so that successes alone are enough to learn a condition. A
  condition on a plain value must also be violated by recorded calls of other outcomes, or be about a field that the
  call changes: a habit of the player is not a rule;
- the categories that it allows, such as the kinds of things that a kind of place takes. Such a condition is kept if the
  combinations seen in other worlds decide more of the recorded calls rightly than no condition does.

The same recordings give the same rules.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from random import Random

from dreamgym.state import StateSchema
from dreamgym.synthesis.objects.calls import ObjectCall
from dreamgym.synthesis.objects.conditions import (
    Condition,
    Either,
    Has,
    Is,
    IsKnown,
    Not,
    OneOf,
    Same,
    Share,
    key_of,
)
from dreamgym.synthesis.objects.rules import ObjectChange, ObjectOutcome, ObjectRules, ToolRules
from dreamgym.synthesis.objects.search import answer_of, effects_of
from dreamgym.synthesis.objects.terms import MISSING, Found, Term, found, terms_in
from dreamgym.synthesis.objects.values import Together
from dreamgym.types import JsonObject

SAMPLE = 300
"""Most calls of one outcome in which conditions are searched. Tables are filled from all calls."""
DRAWN = 300
"""Most calls that are drawn with random arguments."""
CHANCE = 1e-4
"""A condition is not used if the probability that all successes meet it by chance is above this."""
EXCEPTIONS = 0.005
"""Share of an outcome's calls in which a condition need not hold, because a world is known only in part."""
SHOWN = 2
"""Fewest calls of other outcomes that must violate a condition on a plain value or a negated condition."""
LEAST = 3
"""Fewest successes of one form from which rules are learned."""
VALUES = 8
"""A field with more values than this is not compared with single values."""
COVERED = 0.9
"""Share of successes whose categories other worlds must show, if no refusal shows that categories matter."""


def learn_rules(cases: Iterable[ObjectCall], schema: StateSchema) -> ObjectRules:
    """The rules of all tools that recorded calls show."""
    by_tool: dict[str, list[ObjectCall]] = defaultdict(list)
    for case in cases:
        by_tool[case.tool].append(case)
    every = [case for name in sorted(by_tool) for case in by_tool[name]]
    refusals = Counter(case.words for case in every if case.is_error)
    common = max(sorted(refusals), key=refusals.__getitem__) if refusals else None
    states = [case.before for case in _some(every, DRAWN)]
    related = _related(every, schema)
    return ObjectRules(
        {name: _ToolSearch(of_tool, states, schema, related).rules(common) for name, of_tool in sorted(by_tool.items())}
    )


Related = Mapping[tuple[str, str], set[tuple[str, str, str]]]
"""For each list field (collection, field), the (world, entity, item) of each item in any recorded state."""


def _related(cases: Sequence[ObjectCall], schema: StateSchema) -> Related:
    """All items that were seen in lists of entities: a call that adds to a list can lead to each of them."""
    lists = {
        (name, field)
        for name, collection in schema.collections.items()
        for field, kind in collection.fields.items()
        if kind.startswith("array")
    }
    held: dict[tuple[str, str], set[tuple[str, str, str]]] = {place: set() for place in lists}
    seen: set[int] = set()
    for case in cases:
        for name, field in lists:
            part = case.after.get(name)
            if not isinstance(part, dict) or id(part) in seen:
                continue
            for identity, entity in part.items():
                items = entity.get(field) if isinstance(entity, dict) else None
                for item in items if isinstance(items, list) else ():
                    held[name, field].add((case.world, identity, str(item)))
        seen |= {id(part) for part in case.after.values()}
    return held


class _ToolSearch:
    """The search for the rules of one tool.

    Args:
        cases: recorded calls of the tool.
        states: recorded states before calls of any tool.
        schema: schema of the states.
        related: all items that were seen in lists of entities.
    """

    def __init__(
        self, cases: Sequence[ObjectCall], states: Sequence[JsonObject], schema: StateSchema, related: Related
    ) -> None:
        self._cases = cases
        self._schema = schema
        self._related = related
        self._collections = tuple(schema.collections)
        self._forms = [form for group in _grouped(cases, _fields) for form in self._divided(group)]
        self._forms.sort(key=lambda form: -len(form))
        self._refused = [case for case in cases if case.is_error]
        self._drawn = list(self._random_calls(states))

    def rules(self, common: str | None) -> ToolRules:
        """The rules; calls that fit no outcome are refused in the words of the tool's own refusals.

        Nothing is refused if the tool has successes, but too few of each form to learn from.

        Args:
            common: the most frequent refusal of the environment, for a tool that was never refused.
        """
        words = Counter(case.words for case in self._refused)
        refusal = max(sorted(words), key=words.__getitem__) if words else common
        outcomes = [one for i in range(len(self._forms)) if (one := self._outcome(i)) is not None]
        outcomes.sort(key=lambda outcome: -self._precision(outcome))
        return ToolRules(tuple(outcomes), refusal if outcomes or (self._refused and not self._forms) else None)

    def _precision(self, outcome: ObjectOutcome) -> float:
        """Share of an outcome's own calls among the recorded successes that fit it: special outcomes come first."""
        fitting = [case for form in self._forms for case in form if outcome.holds(case.before, case.arguments)]
        return outcome.calls / max(1, len(fitting))

    def _divided(self, cases: list[ObjectCall]) -> list[list[ObjectCall]]:
        """Divide calls whose answers have the same fields: by which of the unexplained fields are null."""
        terms = _terms(_some(cases, SAMPLE), self._collections)
        unexplained = [name for name, value in answer_of(cases, terms, self._schema).items() if value is None]
        return _grouped(cases, lambda case: [(case.answer or {}).get(name) is None for name in unexplained])

    def _outcome(self, number: int) -> ObjectOutcome | None:
        cases = self._forms[number]
        if len(cases) < LEAST:
            return None
        elsewhere = [case for i, form in enumerate(self._forms) if i != number for case in form]
        others = [*_some(self._refused, SAMPLE), *_some(elsewhere, SAMPLE)]
        terms = _terms(_some(cases, SAMPLE), self._collections)
        effects = effects_of(cases, terms, self._schema)
        answer = answer_of(cases, terms, self._schema)
        conditions = self._conditions(cases, others, effects or (), terms)
        conditions += self._tables(cases, conditions, effects or (), terms)
        known = tuple((name, value) for name, value in answer.items() if value is not None)
        is_explained = effects is not None and len(known) == len(answer)
        return ObjectOutcome(tuple(conditions), effects or (), known, is_explained, len(cases))

    def _conditions(
        self,
        cases: Sequence[ObjectCall],
        others: Sequence[ObjectCall],
        effects: Sequence[ObjectChange],
        terms: Sequence[Term],
    ) -> list[Condition]:
        sample, drawn = _some(cases, SAMPLE), self._drawn
        calls = [
            *((case.before, case.arguments) for case in sample),
            *((case.before, case.arguments) for case in others),
            *drawn,
        ]
        own = (1 << len(sample)) - 1
        other = ((1 << len(others)) - 1) << len(sample)
        chance = ((1 << len(drawn)) - 1) << (len(sample) + len(others))
        changed = {(effect.collection, effect.field) for effect in effects}
        allowed = math.floor(EXCEPTIONS * len(sample))
        found_so_far: dict[int, Condition] = {}
        about: list[Condition] = []  # on fields that the call changes
        halves: list[tuple[Condition, int]] = []
        for condition, holds, told in self._candidates(calls, terms):
            is_plain = isinstance(condition.condition if isinstance(condition, Not) else condition, Is)
            if (own & ~holds).bit_count() > allowed:
                if not is_plain and not isinstance(condition, Not | IsKnown) and holds & own:
                    halves.append((condition, holds))
                continue
            is_about = is_plain and _field_of(condition, self._collections) in changed
            if is_plain or isinstance(condition, Not):
                is_shown = (other & told & ~holds).bit_count() >= SHOWN
                if not ((is_about or is_shown) and self._is_rare(holds, (other | chance) & told, len(sample))):
                    continue
            elif not self._is_rare(holds, chance & told, len(sample)):
                continue
            if is_about and isinstance(condition, Is):
                about.append(condition)
            else:
                found_so_far.setdefault(holds, condition)
        for (one, first), (two, second) in combinations(halves, 2):
            both = first | second
            least = max(2, len(sample) // 100)
            if (own & ~both).bit_count() > allowed or min(
                (own & first & ~second).bit_count(), (own & second & ~first).bit_count()
            ) < least:
                continue
            if self._is_rare(both, chance, len(sample)):
                found_so_far.setdefault(both, Either(one, two))
        return [*_needed(found_so_far, other, chance), *about]

    @staticmethod
    def _is_rare(holds: int, among: int, successes: int) -> bool:
        """True if so many successes would hardly all meet a condition by chance.

        Args:
            holds: the calls that meet it, as bits.
            among: the calls that show how often it holds by chance, as bits.
            successes: number of successes that meet it.
        """
        if not among & ~holds:
            return False
        share = ((among & holds).bit_count() + 1) / (among.bit_count() + 2)
        return successes * math.log(share) < math.log(CHANCE)

    def _candidates(
        self, calls: Sequence[tuple[JsonObject, JsonObject]], terms: Sequence[Term]
    ) -> Iterator[tuple[Condition, int, int]]:
        """All conditions on the terms, the plainest first, with the calls in which each holds and can hold, as bits."""
        everything = (1 << len(calls)) - 1
        values = {term: [found(term, *call) for call in calls] for term in terms}
        ids = [term for term in terms if any(map(self._is_id, values[term], (state for state, _ in calls)))]
        lists = [term for term in terms if any(isinstance(value, list) for value in values[term])]

        def both_ways(
            condition: Condition, holds: Iterable[bool], told: int = everything
        ) -> Iterator[tuple[Condition, int, int]]:
            bits = _bits(holds)
            yield condition, bits, told
            yield Not(condition), everything & ~bits, told

        for term in terms:
            if term[-1].startswith(">"):
                yield IsKnown(term), _bits(value is not MISSING for value in values[term]), everything
        for one, other in combinations(ids, 2):
            pairs = zip(values[one], values[other], strict=True)
            yield from both_ways(Same(one, other), (isinstance(a, str) and a == b for a, b in pairs))
        for items in lists:
            for one in ids:
                pairs = zip(values[items], values[one], strict=True)
                holds = (isinstance(a, list) and isinstance(b, str) and b in a for a, b in pairs)
                yield from both_ways(Has(items, one), holds)
        for one, other in combinations(lists, 2):
            pairs = zip(values[one], values[other], strict=True)
            holds = (isinstance(a, list) and isinstance(b, list) and any(x in b for x in a) for a, b in pairs)
            yield from both_ways(Share(one, other), holds)
        for term in terms:
            plain = [_as_json(value) for value in values[term]]
            texts = set(plain) - {""}
            if term in ids:
                texts &= {"null"}
            if not term[-1].startswith(">") and len(texts) <= VALUES:
                told = _bits(value is not MISSING for value in values[term])
                for text in sorted(texts):
                    yield from both_ways(Is(term, text), (one == text for one in plain), told)

    def _is_id(self, value: Found, state: JsonObject) -> bool:
        if not isinstance(value, str):
            return False
        return any(value in part for name in self._collections if isinstance(part := state.get(name), dict))

    def _random_calls(self, states: Sequence[JsonObject]) -> Iterator[tuple[JsonObject, JsonObject]]:
        """Calls with arguments drawn at random from the entities of recorded states."""
        draw, cases = Random(0), [case for form in self._forms for case in form] or list(self._cases)
        kinds = {
            name: sorted(
                {
                    collection
                    for case in _some(cases, SAMPLE)
                    for collection in self._collections
                    if isinstance(part := case.before.get(collection), dict)
                    and isinstance(value := case.arguments.get(name), str)
                    and value in part
                }
            )
            for name in cases[0].arguments
        }
        for state in states:
            arguments: JsonObject = {}
            for name, collections in kinds.items():
                ids = [i for one in collections if isinstance(part := state.get(one), dict) for i in part]
                if ids:
                    arguments[name] = draw.choice(ids)
                elif name in (recorded := draw.choice(cases).arguments):
                    arguments[name] = recorded[name]
            yield state, arguments

    def _tables(
        self,
        cases: Sequence[ObjectCall],
        conditions: Sequence[Condition],
        effects: Sequence[ObjectChange],
        terms: Sequence[Term],
    ) -> list[Condition]:
        """Conditions on categories, if they decide calls rightly with the combinations that other worlds show."""
        tables: list[Condition] = []
        likely = self._likely_calls(conditions)
        for _ in range(2):
            refused = [
                case
                for case in self._refused
                if all(one.holds(case.before, case.arguments) for one in (*conditions, *tables))
            ]
            best: tuple[float, int, OneOf] | None = None
            for of in self._keys(cases, terms):
                if any(isinstance(one, OneOf) and one.terms == of for one in tables):
                    continue
                worlds = self._worlds_of(cases, of, effects)
                own = [(key_of(of, case.before, case.arguments), case.world) for case in cases]
                covered = sum(bool(worlds[key] - {world}) for key, world in own)
                bad = [(key_of(of, case.before, case.arguments), case.world) for case in refused]
                excluded = sum(not worlds.get(key, set()) - {world} for key, world in bad)
                known = sum(len(worlds.get(key, ())) > 0 for key, _ in bad)
                gain = excluded - (len(cases) - covered)
                table = OneOf(of, frozenset(worlds))
                is_rare = 2 * sum(table.holds(*call) for call in likely) < len(likely)
                if excluded <= known and not (is_rare and covered >= COVERED * len(cases)):
                    continue
                if (gain > 0 or (is_rare and covered >= COVERED * len(cases))) and (
                    best is None or (gain, -len(of)) > best[:2]
                ):
                    best = gain, -len(of), table
            if best is None:
                break
            tables.append(best[2])
        return tables

    def _likely_calls(self, conditions: Sequence[Condition]) -> list[tuple[JsonObject, JsonObject]]:
        """Random calls that meet the conditions. Arguments are replaced by the entities that the conditions require."""
        same = [one for one in conditions if isinstance(one, Same)]
        likely = []
        for state, drawn in self._drawn:
            arguments = dict(drawn)
            for one in same:
                for mine, other in ((one.one, one.other), (one.other, one.one)):
                    if mine[0] == "arg" and len(mine) == 2 and isinstance(value := found(other, state, drawn), str):
                        arguments[mine[1]] = value
            if all(one.holds(state, arguments) for one in conditions):
                likely.append((state, arguments))
        return likely

    def _keys(self, cases: Sequence[ObjectCall], terms: Sequence[Term]) -> Iterator[tuple[Term, ...]]:
        """One or two text fields, which are not ids, of entities that arguments name."""
        sample = _some(cases, SAMPLE)
        fields = [
            term
            for term in terms
            if term[0] == "arg"
            and len(term) == 4
            and all(
                isinstance(value := found(term, case.before, case.arguments), str)
                and not self._is_id(value, case.before)
                for case in sample
            )
        ]
        yield from ((term,) for term in fields)
        yield from ((one, other) for one, other in combinations(fields, 2) if one[1] != other[1])

    def _worlds_of(
        self, cases: Sequence[ObjectCall], of: tuple[Term, ...], effects: Sequence[ObjectChange]
    ) -> dict[str, set[str]]:
        """The worlds in which each combination of categories was seen: in a success, or in a list that one adds to."""
        worlds: dict[str, set[str]] = defaultdict(set)
        states: dict[str, JsonObject] = {}
        for case in cases:
            worlds[key_of(of, case.before, case.arguments)].add(case.world)
            states.setdefault(case.world, case.before)
        for effect in effects:
            if not isinstance(effect.value, Together) or len(effect.value.terms) < 2 or effect.value.without:
                continue
            added = effect.value.terms[-1]
            if (
                effect.target[0] != "arg"
                or added[0] != "arg"
                or {term[1] for term in of} != {effect.target[1], added[1]}
            ):
                continue
            for world, entity, item in self._related.get((effect.collection, effect.field), ()):
                if world in states:
                    key = key_of(of, states[world], {effect.target[1]: entity, added[1]: item})
                    if key:
                        worlds[key].add(world)
        worlds.pop("", None)
        return worlds


def _needed(conditions: Mapping[int, Condition], others: int, chance: int) -> list[Condition]:
    """The conditions that are needed, because each excludes calls that the others allow.

    First come conditions that relate entities. Each must exclude calls, recorded or drawn, that no simpler condition
    excludes all. Then come conditions on plain values and negated conditions, those that exclude most calls first. Each
    must exclude at least SHOWN recorded calls of other outcomes that the conditions before it allow.

    Args:
        conditions: conditions by the calls that meet them, as bits.
        others: recorded calls of other outcomes, as bits.
        chance: drawn calls, as bits.
    """
    kept: list[tuple[int, Condition]] = []
    plain: list[tuple[int, Condition]] = []
    for holds, condition in conditions.items():
        if isinstance(condition, Is | Not):
            plain.append((holds, condition))
            continue
        excluded = (others | chance) & ~holds
        if excluded and not any(excluded & known == excluded for known, _ in kept):
            kept.append((excluded, condition))
    left = others
    for excluded, _ in kept:
        left &= ~excluded
    while plain:
        best = max(plain, key=lambda one: (left & ~one[0]).bit_count())
        plain.remove(best)
        if (left & ~best[0]).bit_count() < SHOWN:
            break
        kept.append((0, best[1]))
        left &= best[0]
    return [condition for _, condition in kept]


def _bits(holds: Iterable[bool]) -> int:
    """The values as bits of an integer: bit i is 1 if the i-th value is true."""
    return int("".join(["1" if one else "0" for one in holds])[::-1] or "0", 2)


def _as_json(value: Found) -> str:
    """A text, a truth value or null as JSON; empty for anything else."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "true" if value else "false"
    return json.dumps(value) if isinstance(value, str) else ""


def _grouped(cases: Iterable[ObjectCall], key: Callable[[ObjectCall], object]) -> list[list[ObjectCall]]:
    """The successes among the cases in groups, the largest first."""
    groups: dict[str, list[ObjectCall]] = defaultdict(list)
    for case in cases:
        if case.answer is not None:
            groups[repr(key(case))].append(case)
    return [groups[name] for name in sorted(groups, key=lambda name: (-len(groups[name]), name))]


def _fields(case: ObjectCall) -> list[str]:
    return sorted(case.answer or {})


def _some(cases: Sequence[ObjectCall], most: int) -> list[ObjectCall]:
    """At most `most` of the cases, evenly spread."""
    return list(cases[:: -(-len(cases) // most) or 1])


def _terms(cases: Sequence[ObjectCall], collections: tuple[str, ...]) -> list[Term]:
    """The terms that have a value in any of the calls, arguments first."""
    known = {term for case in cases for term in terms_in(case.before, case.arguments, collections)}
    return sorted(known, key=lambda term: (term[0] != "arg", len(term), term))


def _field_of(condition: Condition, collections: tuple[str, ...]) -> tuple[str, str]:
    """The collection and the field that a condition on a plain value is about."""
    plain = condition.condition if isinstance(condition, Not) else condition
    assert isinstance(plain, Is)
    return (plain.term[-2][1:], plain.term[-1]) if len(plain.term) > 2 else ("", plain.term[-1])
