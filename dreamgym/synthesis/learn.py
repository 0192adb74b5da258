"""Learns the program of a tool from recorded calls of it.

The recorded calls are divided into outcomes: by refusal or success, by the form of the answer, and by the changes. For
each outcome, a branch is searched that gives exactly the recorded states and answers (`search.effects`,
`search.expressions`), and then a decision list that gives each call its outcome (`search.decisions`). An outcome
without an explanation gets no branch: nothing is guessed. The same recordings give the same program, in any order.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from threading import Lock

from pydantic import JsonValue

from dreamgym.state import ImpossibleChange, StateSchema, natural, parsed, same, shown_in
from dreamgym.state.wording import Wording, wording_of
from dreamgym.synthesis.decisions import DecisionList
from dreamgym.synthesis.derived import DerivedField
from dreamgym.synthesis.expressions import Constant, Expression, First, NoValue, is_empty, parts_of
from dreamgym.synthesis.ids import IdSequence
from dreamgym.synthesis.paths import Bindings, IndexedState, Path, bind, is_argument, item_faults
from dreamgym.synthesis.program import (
    SIGNS,
    Branch,
    Definitions,
    ProgramAnswer,
    ToolProgram,
    emptiness,
    number_kinds,
    traits,
)
from dreamgym.synthesis.search.decisions import find_decisions
from dreamgym.synthesis.search.derived import changed_entity_fields, derived_fields
from dreamgym.synthesis.search.effects import Case, EffectSearch, changes_between, of_one_kind
from dreamgym.synthesis.search.expressions import ExpressionSearch
from dreamgym.synthesis.search.texts import Token, alike, list_forms, tokens
from dreamgym.types import JsonObject, Transition

PROGRAMS = 64
"""Most programs that are cached."""
SAMPLE = 96
"""Most recorded calls of a tool in which a program is searched first."""
STATES = 1000
"""Most recorded calls whose states are searched for derived fields."""
CATEGORY = 5
"""A field with more values than this is not a category."""
ROUNDS = 3
"""Most searches for one program, each with more recorded calls."""


class LearnedPrograms:
    """The programs of all tools of an environment, each learned when it is first needed.

    Several threads may call `of`.

    Args:
        recordings: recorded calls of all tools. Equal calls count once.
        schema: schema of the states.
    """

    def __init__(self, recordings: Iterable[Transition], schema: StateSchema) -> None:
        distinct = {one.digest(): one for one in recordings}
        self._steps = [distinct[digest] for digest in sorted(distinct)]
        self._schema = schema
        self._learned: dict[str, ToolProgram | None] = {}
        self._lock = Lock()

    def of(self, tool: str) -> ToolProgram | None:
        """The program of a tool; None if no recorded call of it has an explicit state before and after it."""
        with self._lock:
            if tool not in self._learned:
                of_tool = [step for step in self._steps if step.action.name == tool]
                self._learned[tool] = learn(of_tool, self._schema, self.derived) if of_tool else None
            return self._learned[tool]

    @cached_property
    def derived(self) -> tuple[DerivedField, ...]:
        """The fields that follow from the rest of the state."""
        steps = self._steps[:: -(-len(self._steps) // STATES) or 1]
        pairs = ((parsed(step.state), parsed(step.next_state)) for step in steps)
        known = [(before, after) for before, after in pairs if before is not None and after is not None]
        return derived_fields(known, self._schema)


def learn(
    recordings: Iterable[Transition], schema: StateSchema, derived: tuple[DerivedField, ...] = ()
) -> ToolProgram | None:
    """The program of a tool; None if no recorded call has an explicit state before and after it.

    The last PROGRAMS programs are cached by the content of their recordings. From 48 calls with states of 4 kB, a
    program is learned in 0.1 to 0.3 seconds, and a cached one is found in 1 millisecond.

    Args:
        recordings: recorded calls of one tool. Equal calls count once.
        schema: schema of the states.
        derived: fields that follow from the rest of the state.
    """
    distinct = {one.digest: one for one in sorted(map(_Recording.of, recordings))}
    return _learned(_Recordings(tuple(distinct.values()), schema, derived))


@dataclass(frozen=True, order=True)
class _Recording:
    """A recorded call, compared by all that a program depends on."""

    digest: bytes
    structured: str
    """The structured content as JSON, or an empty text. The digest does not include it."""
    has_blocks: bool
    """True if the answer has content blocks other than one text. The digest does not include them."""
    step: Transition = field(compare=False)

    @classmethod
    def of(cls, step: Transition) -> _Recording:
        result = step.result
        structured = "" if result.structured is None else json.dumps(result.structured)
        return cls(step.digest(), structured, "content" in result.info, step)


@dataclass(frozen=True)
class _Recordings:
    calls: tuple[_Recording, ...]
    schema: StateSchema = field(hash=False)
    derived: tuple[DerivedField, ...]


@lru_cache(maxsize=PROGRAMS)
def _learned(recordings: _Recordings) -> ToolProgram | None:
    schema, derived = recordings.schema, recordings.derived
    known = [
        (one.step, before, after)
        for one in recordings.calls
        if (before := parsed(one.step.state)) is not None and (after := parsed(one.step.next_state)) is not None
    ]
    if not known:
        return None
    names = frozenset((one.collection, one.field) for one in derived)
    changes = of_one_kind(
        [changes_between(before, after, schema, names) for _, before, after in known], [after for _, _, after in known]
    )
    created: list[dict[str, str]] = [
        {kind.collection: min(changed, key=natural) for kind, changed in found.items() if kind.op == "new"}
        for found in changes
    ]
    definitions = Definitions(
        ids=_id_sequences([before for _, before, _ in known], created, schema),
        faults=item_faults([bind(IndexedState(b, schema), step.action.arguments) for step, b, _ in known[:SAMPLE]]),
        derived=derived,
        changed=tuple(sorted({one for _, old, new in known for one in changed_entity_fields(old, new, schema)})),
    )

    def case(i: int) -> Case:
        step, before, after = known[i]
        call = definitions.bind_before(IndexedState(before, schema), step.action.arguments)
        then = definitions.bind_after(after, step.action.arguments, created[i], call)
        return Case(step.action.arguments, step.result, call, then, changes[i])

    definitions = replace(definitions, chosen=tuple(_chosen([case(i) for i in range(min(SAMPLE, len(known)))])))
    return _verified(case, len(known), definitions, schema)


def _id_sequences(
    states: Sequence[JsonObject], created: Sequence[Mapping[str, str]], schema: StateSchema
) -> dict[str, IdSequence]:
    """Sequences of new ids, for the collections in which the calls made entities."""
    sequences: dict[str, IdSequence] = {}
    for name in sorted({name for made in created for name in made}):
        made_in = [(state, made[name]) for state, made in zip(states, created, strict=True) if name in made]
        sequence = IdSequence.of([(list(IndexedState(state, schema).collections[name]), new) for state, new in made_in])
        if sequence is not None:
            sequences[name] = sequence
    return sequences


def _chosen(cases: Sequence[Case]) -> Iterator[tuple[str, Expression]]:
    """The entities that a tool chooses: it sets a field to the id of the first entity in some order."""
    kinds = sorted({kind for case in cases for kind in case.changes if kind.op == "set" and kind.collection})
    for kind in kinds:
        changed = [case for case in cases if len(case.changes.get(kind, {})) == 1]
        targets = [next(iter(case.changes[kind].values())) for case in changed]
        found = ExpressionSearch([case.before for case in changed]).find(targets, kind.tail[-1]) if changed else None
        if any(isinstance(part, First) for part in parts_of(found)):
            assert found is not None
            yield ".".join((kind.collection, *kind.tail)), found


def _verified(case: Callable[[int], Case], count: int, definitions: Definitions, schema: StateSchema) -> ToolProgram:
    """Learn a program from some of the recorded calls, such that no recorded call contradicts it.

    Calls that contradict a program, or have no answer in it, join those from which it is learned. An outcome that calls
    still contradict at the end gets no branch.

    Args:
        case: returns a recorded call by its number.
        count: number of the recorded calls.
        definitions: definitions of the tool.
        schema: schema of the states.
    """
    sample = {i: case(i) for i in range(min(SAMPLE, count))}
    for _ in range(ROUNDS):
        program = _program(list(sample.values()), definitions, schema)
        missed = [i for i in range(count) if i not in sample and not _answers(program, case(i))]
        if not missed:
            break
        sample.update({i: case(i) for i in missed[:: -(-len(missed) // (SAMPLE // 2))]})
    wrong: set[int] = set()
    categories: dict[Path, Counter[str]] = {}
    links: set[Path] = set()
    numbers: dict[Path, set[str]] = {}
    named: dict[Path, Counter[str]] = {}
    first = case(0).arguments
    is_same = True
    for i in range(count):
        one = sample.get(i) or case(i)
        for path in filter(is_argument, one.before.values):
            named.setdefault(path, Counter())[
                emptiness(one.before, path) if is_empty(one.before, path) else "given"
            ] += 1
        is_same &= same(one.arguments, first)
        for path, category in traits(one.before):
            categories.setdefault(path, Counter())[category] += 1
            if _is_id(one.before.values.get(path), one.before.state):
                links.add(path)
        for place, kind in number_kinds(one.arguments):
            numbers.setdefault(place, set()).add(kind)
        outcome = program.decisions.outcome(one.before)
        if outcome is not None and program.run(one.before.state.state, one.arguments) and not _answers(program, one):
            wrong.add(outcome)
    branches = tuple(None if i in wrong else branch for i, branch in enumerate(program.branches))
    familiar = {
        path: frozenset(seen) for path, seen in categories.items() if path not in links and _is_category(path, seen)
    }
    shown = {path: frozenset({*seen, *([""] if seen.total() < count else [])}) for path, seen in named.items()}
    only = first if is_same else None
    kinds = {place: frozenset(seen) for place, seen in numbers.items()}
    return replace(program, branches=branches, familiar=familiar, numbers=kinds, named=shown, only=only)


def _is_id(value: JsonValue, state: IndexedState) -> bool:
    return isinstance(value, str) and any(value in entities for entities in state.collections.values())


def _is_category(path: Path, seen: Counter[str]) -> bool:
    """True if there are few values, seen often. The sign of a number and a truth value of a call always are one."""
    always = {*SIGNS, "true", "false"} if is_argument(path) else {*SIGNS}
    return seen.keys() <= always or (len(seen) <= CATEGORY and seen.total() >= 4 * CATEGORY)


def _answers(program: ToolProgram, case: Case) -> bool:
    outcome = program.decisions.outcome(case.before)
    branch = None if outcome is None else program.branches[outcome]
    return branch is not None and _gives(branch, case, program.definitions)


def _program(cases: Sequence[Case], definitions: Definitions, schema: StateSchema) -> ToolProgram:
    found = [outcome for group in _groups(cases) for outcome in _outcomes(group, cases, definitions)]
    branches = [branch for _, branch in found]
    outcome_of = {i: number for number, (members, _) in enumerate(found) for i in members}
    decisions = find_decisions(
        [case.before for case in cases],
        [outcome_of[i] for i in range(len(cases))],
        branches,
        [cases[members[0]].result.is_error for members, _ in found],
    )
    finished = [
        branch and replace(branch, overwritten=_overwritten(branch, [cases[i] for i in members]))
        for members, branch in found
    ]
    return ToolProgram(schema, definitions, decisions, tuple(finished))


def _groups(cases: Sequence[Case]) -> list[list[list[int]]]:
    """Possible outcomes, each with its cases grouped by the form of their answers.

    All forms of answers to calls that change the state make one outcome: which form is given may depend on the state
    after the call.
    """
    forms = _by_form(cases)
    changing = [group for group in forms if any(cases[i].changes for i in group)]
    return [*([changing] if changing else []), *([group] for group in forms if group not in changing)]


def _by_form(cases: Sequence[Case]) -> list[list[int]]:
    """Groups of cases whose answers have the same form: the same fields, or the same sentence about other things."""
    groups: list[tuple[object, list[Token], list[int]]] = []
    forms = list_forms([case.result.observation for case in cases], [case.after for case in cases])
    for i, case in enumerate(cases):
        answer = shown_in(case.result)
        fields = tuple(sorted(answer)) if isinstance(answer, dict) else ()
        form = (case.result.is_error, answer is None, case.result.structured is None, fields)
        words = tokens(case.result.observation, case.after, forms) if answer is None else []
        for known, other, group in groups:
            if known == form and alike(other, words):
                group.append(i)
                break
        else:
            groups.append((form, words, [i]))
    return [group for _, _, group in groups]


def _outcomes(
    forms: list[list[int]], cases: Sequence[Case], definitions: Definitions
) -> Iterator[tuple[list[int], Branch | None]]:
    """Divide cases into outcomes with a branch each.

    If no branch explains all cases, groups of forms are divided by their changes, then into single forms. The cases of
    one form are divided by `_outcomes_of_form`.
    """
    whole = _branch([[cases[i] for i in group] for group in forms], definitions)
    if whole is not None:
        yield [i for group in forms for i in group], whole
    elif len(forms) == 1:
        yield from _outcomes_of_form(forms[0], cases, definitions)
    else:
        kinds: dict[str, list[list[int]]] = {}
        for group in forms:
            changed = sorted({kind for i in group for kind in cases[i].changes})
            kinds.setdefault(repr(changed), []).append(group)
        for parted in kinds.values() if len(kinds) > 1 else [[group] for group in forms]:
            yield from _outcomes(parted, cases, definitions)


def _outcomes_of_form(
    group: Sequence[int], cases: Sequence[Case], definitions: Definitions
) -> Iterator[tuple[list[int], Branch | None]]:
    """Divide cases with one form of answer by their changes and by the truth values in their answers.

    The largest part comes first. It takes the cases of the other parts that its branch also explains.
    """
    parts: dict[str, list[int]] = {}
    for i in group:
        answer = shown_in(cases[i].result)
        fields = answer.items() if isinstance(answer, dict) else ()
        truths = [(name, value) for name, value in fields if isinstance(value, bool)]
        parts.setdefault(repr((sorted(cases[i].changes), truths)), []).append(i)
    left = sorted(parts.values(), key=lambda part: (-len(part), part))
    while left:
        part, *left = left
        branch = _branch([[cases[i] for i in part]], definitions)
        if branch is not None:
            part = part + [i for other in left for i in other if _gives(branch, cases[i], definitions)]
            left = [rest for other in left if (rest := [i for i in other if i not in part])]
        yield part, branch


def _branch(forms: Sequence[Sequence[Case]], definitions: Definitions) -> Branch | None:
    """The branch that gives exactly the recorded states and answers of some cases; None if there is none.

    Args:
        forms: the cases, grouped by the form of their answers.
        definitions: definitions of the tool.
    """
    cases = [case for form in forms for case in form]
    if any("content" in case.result.info for case in cases):
        return None  # content blocks other than one text are not learned
    effects = EffectSearch(cases, definitions.ids).find()
    if effects is None:
        return None
    reads_after = bool(effects)
    calls = [[case.after if reads_after else case.before for case in form] for form in forms]
    answers = [_answer(form, bound) for form, bound in zip(forms, calls, strict=True)]
    if len(forms) == 1 and answers[0] is None:
        return None
    is_error = cases[0].result.is_error
    choice = find_decisions(
        [call for bound in calls for call in bound],
        [number for number, bound in enumerate(calls) for _ in bound],
        [None if one is None else Branch((), is_error, (one,), DecisionList((), 0), reads_after) for one in answers],
        [is_error for _ in forms],
    )
    branch = Branch(effects, is_error, tuple(answers), choice, reads_after)
    explained = [case for form, answer in zip(forms, answers, strict=True) if answer is not None for case in form]
    return branch if explained and all(_gives(branch, case, definitions) for case in explained) else None


def _answer(cases: Sequence[Case], calls: Sequence[Bindings]) -> ProgramAnswer | None:
    results = [case.result for case in cases]
    search = ExpressionSearch(calls)
    structured: Expression | None = None
    text: Expression | Wording | None = None
    if results[0].structured is not None:
        structured = search.find([result.structured for result in results])
        if structured is None:
            return None
        text = wording_of(results)
    text = text or search.find([result.observation for result in results])
    if text is None:
        return None
    orders = tuple(dict.fromkeys(names for result in results for names in _field_orders(shown_in(result))))
    return ProgramAnswer(structured, text, orders)


def _gives(branch: Branch, case: Case, definitions: Definitions) -> bool:
    """True if a branch gives exactly the recorded result; JSON in a text may be written in another style."""
    try:
        result = branch.run(case.before, definitions, case.arguments)
    except (NoValue, ImpossibleChange, ValueError, ArithmeticError):
        return False
    if result.observation != case.result.observation:
        try:
            is_same_text = same(json.loads(result.observation), json.loads(case.result.observation))
        except (ValueError, RecursionError):
            return False
        if not is_same_text:
            return False
    return (
        same(result.after, case.after.state.state)
        and same(result.structured, case.result.structured)
        and result.is_error == case.result.is_error
    )


def _overwritten(branch: Branch, cases: Sequence[Case]) -> dict[Path, frozenset[str]]:
    """Values for `Branch.overwritten`. A recorded change from `open` to `sent` does not show one from `cancelled`."""
    paths = [
        (*effect.target, f">{effect.collection}", *effect.tail)
        for effect in branch.effects
        if effect.over is None
        and effect.collection
        and (effect.op == "new" or (effect.op == "set" and isinstance(effect.value, Constant)))
    ]
    known = {path: [case.before.values.get(path) for case in cases] for path in paths}
    return {
        path: frozenset(map(json.dumps, values))
        for path, values in known.items()
        if not any(isinstance(value, list | dict) for value in values)
    }


def _field_orders(value: JsonValue) -> Iterator[tuple[str, ...]]:
    """The order of the fields of each object in a value."""
    if isinstance(value, list):
        for part in value:
            yield from _field_orders(part)
    elif isinstance(value, dict):
        yield tuple(value)
        for part in value.values():
            yield from _field_orders(part)
