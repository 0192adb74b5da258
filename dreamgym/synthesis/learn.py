"""Learns the program of a tool from recorded calls of it.

The recorded calls fall into outcomes: refused or not, with which form of answer, with which changes. For each outcome a
branch is searched that gives exactly the recorded states and answers (`search.effects`, `search.expressions`), and then
a decision list that gives each call its outcome (`search.decisions`). What has no explanation gets no branch: nothing
is guessed. Same recordings, same program, in whatever order they come.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from pydantic import JsonValue

from dreamgym.state import ImpossibleChange, StateSchema, natural, parsed, same, shown_in
from dreamgym.state.wording import Wording, wording_of
from dreamgym.synthesis.expressions import Constant, Expression, NoValue
from dreamgym.synthesis.ids import IdSequence
from dreamgym.synthesis.paths import IndexedState, Path, bind, item_faults
from dreamgym.synthesis.program import Branch, ToolProgram, bind_before
from dreamgym.synthesis.search.decisions import find_decisions
from dreamgym.synthesis.search.effects import Case, EffectSearch, changes_between
from dreamgym.synthesis.search.expressions import ExpressionSearch
from dreamgym.synthesis.search.texts import Token, alike, tokens
from dreamgym.types import Transition

PROGRAMS = 64
"""Most programs that are kept. A tool with few recordings needs one; one with many needs one for each set of nearest
recordings, which changes with the state."""


def learn(recordings: Iterable[Transition], schema: StateSchema) -> ToolProgram | None:
    """The program of a tool; None if no recorded call has an explicit state before and after it.

    The same recordings are learned from once: the last PROGRAMS programs are kept, by the content of their recordings.
    From 48 calls with states of 4 kB a program is learned in 0.1 to 0.3 seconds, and a kept one found in 1 millisecond.

    Args:
        recordings: recorded calls of one tool. Equal calls count once.
        schema: of the states.
    """
    distinct = {one.digest: one for one in sorted(map(_Recording.of, recordings))}
    return _learned(_Recordings(tuple(distinct.values()), schema))


@dataclass(frozen=True, order=True)
class _Recording:
    """A recorded call, compared by what a program depends on."""

    digest: bytes
    structured: str
    """The structured content as JSON, which the digest leaves out; empty without any."""
    has_blocks: bool
    """The answer has content blocks other than one text, which the digest leaves out too."""
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


@lru_cache(maxsize=PROGRAMS)
def _learned(recordings: _Recordings) -> ToolProgram | None:
    schema = recordings.schema
    known = [
        (one.step, before, after)
        for one in recordings.calls
        if (before := parsed(one.step.state)) is not None and (after := parsed(one.step.next_state)) is not None
    ]
    if not known:
        return None
    states = [IndexedState(before, schema) for _, before, _ in known]
    faults = item_faults(
        [bind(state, step.action.arguments) for state, (step, _, _) in zip(states, known, strict=True)]
    )
    changes = [changes_between(before, after, schema) for _, before, after in known]
    created = [
        {kind.collection: min(changed, key=natural) for kind, changed in found.items() if kind.op == "new"}
        for found in changes
    ]
    ids: dict[str, IdSequence] = {}
    for name in sorted({name for made in created for name in made}):
        sequence = IdSequence.of(
            [(list(s.collections[name]), made[name]) for s, made in zip(states, created, strict=True) if name in made]
        )
        if sequence is not None:
            ids[name] = sequence
    cases: list[Case] = []
    for (step, _, after), state, changed, made in zip(known, states, changes, created, strict=True):
        call = bind_before(state, step.action.arguments, ids, faults)
        then = bind(IndexedState(after, schema), step.action.arguments, made, before=call)
        cases.append(Case(step.action.arguments, step.result, call, then, changed))

    found = [outcome for group in _by_form(cases) for outcome in _outcomes(group, cases, ids)]
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
    return ToolProgram(schema, ids, faults, decisions, tuple(finished))


def _by_form(cases: Sequence[Case]) -> list[list[int]]:
    """Groups of cases whose answers have the same form: the same fields, or the same sentence about other things."""
    groups: list[tuple[object, list[Token], list[int]]] = []
    for i, case in enumerate(cases):
        answer = shown_in(case.result)
        fields = tuple(sorted(answer)) if isinstance(answer, dict) else ()
        form = (case.result.is_error, answer is None, case.result.structured is None, fields)
        words = tokens(case.result.observation, case.after) if answer is None else []
        for known, other, group in groups:
            if known == form and alike(other, words):
                group.append(i)
                break
        else:
            groups.append((form, words, [i]))
    return [group for _, _, group in groups]


def _outcomes(
    group: list[int], cases: Sequence[Case], ids: Mapping[str, IdSequence]
) -> Iterator[tuple[list[int], Branch | None]]:
    """Divides the cases of one form into outcomes with a branch each.

    If no branch gives them all, they are divided by what they change and by the truth values in their answers. The
    largest part comes first, and takes the cases of the others that its branch gives as well.
    """
    whole = _branch([cases[i] for i in group], ids)
    if whole is not None:
        yield group, whole
        return
    parts: dict[str, list[int]] = {}
    for i in group:
        answer = shown_in(cases[i].result)
        fields = answer.items() if isinstance(answer, dict) else ()
        truths = [(name, value) for name, value in fields if isinstance(value, bool)]
        parts.setdefault(repr((sorted(cases[i].changes), truths)), []).append(i)
    left = sorted(parts.values(), key=lambda part: (-len(part), part))
    while left:
        part, *left = left
        branch = _branch([cases[i] for i in part], ids)
        if branch is not None:
            part = part + [i for other in left for i in other if _gives(branch, cases[i], ids)]
            left = [rest for other in left if (rest := [i for i in other if i not in part])]
        yield part, branch


def _branch(cases: Sequence[Case], ids: Mapping[str, IdSequence]) -> Branch | None:
    """The branch that gives exactly the recorded states and answers of some cases; None if there is none."""
    results = [case.result for case in cases]
    if any("content" in result.info for result in results):
        return None  # content blocks other than one text are not learned
    effects = EffectSearch(cases, ids).find()
    if effects is None:
        return None
    search = ExpressionSearch([case.after if effects else case.before for case in cases])
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
    branch = Branch(effects, results[0].is_error, structured, text, bool(effects), orders)
    return branch if all(_gives(branch, case, ids) for case in cases) else None


def _gives(branch: Branch, case: Case, ids: Mapping[str, IdSequence]) -> bool:
    """True if a branch gives exactly what was recorded; JSON in a text may be written in another style."""
    try:
        result = branch.run(case.before, ids, case.arguments)
    except (NoValue, ImpossibleChange, ValueError):
        return False
    if result.observation != case.result.observation:
        try:
            is_same_text = same(json.loads(result.observation), json.loads(case.result.observation))
        except ValueError:
            return False
        if not is_same_text:
            return False
    return (
        same(result.after, case.after.state.state)
        and same(result.structured, case.result.structured)
        and result.is_error == case.result.is_error
    )


def _overwritten(branch: Branch, cases: Sequence[Case]) -> dict[Path, frozenset[str]]:
    """See `Branch.overwritten`: that `open` becomes `sent` does not show that `cancelled` would."""
    paths = [
        (*effect.target, f">{effect.collection}", *effect.tail)
        for effect in branch.effects
        if effect.op == "set" and effect.over is None and effect.collection and isinstance(effect.value, Constant)
    ]
    return {path: frozenset(json.dumps(case.before.values.get(path)) for case in cases) for path in paths}


def _field_orders(value: JsonValue) -> Iterator[tuple[str, ...]]:
    """The order of the fields of each object in a value."""
    if isinstance(value, list):
        for part in value:
            yield from _field_orders(part)
    elif isinstance(value, dict):
        yield tuple(value)
        for part in value.values():
            yield from _field_orders(part)
