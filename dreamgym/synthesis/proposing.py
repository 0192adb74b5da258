"""What the calls of one tool do to an explicit state, learned from recordings of that tool, and done again.

Recorded calls fall into outcomes: refused or not, with which answer, with which changes. Of each outcome a program is
learned that gives exactly the recorded states and answers: `changes` finds what changes, `explaining` what every value
follows from. Which outcome a new call has is decided by questions about what the call can speak of (`outcomes`). Where
a value has no explanation there is no proposal: nothing is guessed; nor where a field that an outcome turns into one
value had a value from which no recording shows it turn. It is pure: same recordings, same proposal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pydantic import JsonValue

from dreamgym.dream.model import Query
from dreamgym.replay.buffer import GROUNDED
from dreamgym.state import ImpossibleChange, StateSchema, parsed
from dreamgym.state.wording import Wording, wording_of
from dreamgym.synthesis.changes import Case, Effects, Recorded, changes_of
from dreamgym.synthesis.explaining import Explainer
from dreamgym.synthesis.expressions import (
    Constant,
    Expression,
    NoValue,
    natural,
    same,
)
from dreamgym.synthesis.outcomes import Answered, Outcomes, keys_of, learned
from dreamgym.synthesis.programs import Program, Proposal, after_call, calculations, falls, told
from dreamgym.synthesis.situation import (
    Key,
    Numbering,
    Situation,
    World,
    faults,
    numbering_of,
    situation_of,
)
from dreamgym.synthesis.wording import alike, tokens
from dreamgym.tools import completed
from dreamgym.types import JsonObject, StepResult, Transition


class LearnedTool:
    """One tool as its recordings show it.

    Args:
        recorded: calls of the tool, all different.
        schema: of the state.
    """

    def __init__(self, recorded: Sequence[Recorded], schema: StateSchema) -> None:
        self._schema = schema
        changes = [changes_of(one, schema) for one in recorded]
        self._numbering = _numberings(recorded, [set(found) for found in changes], schema)
        plain = [situation_of(World(one.before, schema), one.arguments) for one in recorded]
        self._faults = faults(plain)
        self._cases = [self._case(one, found) for one, found in zip(recorded, changes, strict=True)]
        self._programs: list[Program | None] = []
        outcomes = self._learn()
        known = [program for program in self._programs if program is not None]
        self._outcomes: Outcomes = learned(
            [case.before for case in self._cases],
            outcomes,
            [self._answered(outcome, outcomes) for outcome in range(len(self._programs))],
            sorted({fall for program in known for fall in falls(program)}, key=repr),
            sorted({part for program in known for part in calculations(program)}, key=repr),
        )
        self._seen = [self._turned(outcome, outcomes) for outcome in range(len(self._programs))]
        self._cases = []  # learned from, and large

    def propose(self, state: JsonObject, arguments: JsonObject) -> Proposal | None:
        """What a call does; None where the recordings do not tell."""
        before = self._before(state, arguments)
        outcome = self._outcomes.decide(before)
        program = None if outcome is None else self._programs[outcome]
        if outcome is None or program is None:
            return None
        for key, values in self._seen[outcome].items():
            if json.dumps(before.values.get(key)) not in values:
                return None
        try:
            return program.run(before, self._numbering, arguments)
        except (NoValue, ImpossibleChange, ValueError):
            return None

    def _turned(self, outcome: int, outcomes: Sequence[int]) -> dict[Key, set[str]]:
        """From which values an outcome turned texts and truth values into one: none of them says what others become."""
        program = self._programs[outcome]
        cases = [case for case, its in zip(self._cases, outcomes, strict=True) if its == outcome]
        keys = [
            (*effect.target, f">{effect.collection}", *effect.tail)
            for effect in (program.effects if program else ())
            if effect.op == "set" and effect.over is None and effect.collection and isinstance(effect.value, Constant)
        ]
        return {key: {json.dumps(case.before.values.get(key)) for case in cases} for key in keys}

    def _answered(self, outcome: int, outcomes: Sequence[int]) -> Answered:
        program = self._programs[outcome]
        if program is None:
            is_error = self._cases[outcomes.index(outcome)].recorded.result.is_error
            return Answered(is_error, frozenset(), frozenset())
        if not program.is_error:
            return Answered(False, frozenset(), frozenset())
        return Answered(True, frozenset(keys_of(program)), frozenset(told(program.text)))

    def _before(self, state: JsonObject, arguments: JsonObject) -> Situation:
        world = World(state, self._schema)
        made = {name: numbering.after(list(world.collections[name])) for name, numbering in self._numbering.items()}
        return situation_of(world, arguments, made, firsts=self._faults)

    def _case(self, recorded: Recorded, changes: dict) -> Case:  # type: ignore[type-arg]
        before = self._before(recorded.before, recorded.arguments)
        made = {name: min(found, key=natural) for (kind, name, _), found in changes.items() if kind == "new"}
        after = after_call(before, World(recorded.after, self._schema), recorded.arguments, made)
        return Case(recorded, before, after, changes)

    def _learn(self) -> list[int]:
        """The outcome of each case; programs are stored by outcome."""
        outcomes = [-1] * len(self._cases)
        for group in self._by_answer():
            whole = self._program(group)
            parts = [(group, whole)] if whole is not None else self._split(group)
            for part, program in parts:
                for i in part:
                    outcomes[i] = len(self._programs)
                self._programs.append(program)
        return outcomes

    def _split(self, group: Sequence[int]) -> list[tuple[list[int], Program | None]]:
        """By what changes and by the truth values answered; what a larger part explains goes there."""
        parts: dict[str, list[int]] = {}
        for i in group:
            case = self._cases[i]
            parts.setdefault(repr((sorted(case.changes), _truths(case.recorded.result))), []).append(i)
        learned: list[tuple[list[int], Program | None]] = []
        left = sorted(parts.values(), key=lambda part: (-len(part), part))
        while left:
            part = left.pop(0)
            program = self._program(part)
            if program is not None:
                for other in left:
                    part += [i for i in other if self._gives(program, i)]
                left = [rest for other in left if (rest := [i for i in other if i not in part])]
            learned.append((part, program))
        return learned

    def _by_answer(self) -> list[list[int]]:
        """Cases whose answers have one form."""
        groups: list[tuple[object, Sequence[tuple[str, bool]] | None, list[int]]] = []
        for i, case in enumerate(self._cases):
            form, words = _form(case)
            for known, said, group in groups:
                if known == form and (words is None or said is None or alike(said, words)):
                    group.append(i)
                    break
            else:
                groups.append((form, words, [i]))
        return [group for _, _, group in groups]

    def _program(self, group: Sequence[int]) -> Program | None:
        cases = [self._cases[i] for i in group]
        if any("content" in case.recorded.result.info for case in cases):
            return None
        effects = Effects(cases, self._numbering).learned()
        if effects is None:
            return None
        looks_back = bool(effects)
        explainer = Explainer([case.after if looks_back else case.before for case in cases])
        results = [case.recorded.result for case in cases]
        structured = None
        text: Expression | Wording | None = None
        if results[0].structured is not None:
            structured = explainer.find([result.structured for result in results])
            if structured is None:
                return None
            text = wording_of(results)
        text = text or explainer.find([result.observation for result in results])
        if text is None:
            return None
        orders = tuple(dict.fromkeys(names for result in results for names in _orders(_value(result))))
        program = Program(effects, results[0].is_error, structured, text, looks_back, orders)
        return program if all(self._gives(program, i) for i in group) else None

    def _gives(self, program: Program, i: int) -> bool:
        """The program says exactly what was recorded."""
        case, recorded = self._cases[i], self._cases[i].recorded
        try:
            said = program.run(case.before, self._numbering, recorded.arguments)
        except (NoValue, ImpossibleChange, ValueError):
            return False
        return (
            same(said.after, recorded.after)
            and same(said.structured, recorded.result.structured)
            and (said.observation == recorded.result.observation or _same_json(said.observation, recorded.result))
            and said.is_error == recorded.result.is_error
        )


def propose(query: Query) -> Proposal | None:
    """What the demonstrations of the called tool say that this call does to an explicit state, and answers.

    None where the state is none, or where something that is needed has no explanation.
    """
    schema, state = query.spec.state, parsed(query.state)
    if schema is None or state is None:
        return None
    shown = {
        step.digest(): step
        for demonstration in query.demonstrations
        if (step := completed(demonstration.transition, query.spec)).action.name == query.action.name
        and demonstration.source in GROUNDED
    }
    tool = _learned(_Recordings(tuple(sorted(shown)), schema, tuple(shown[digest] for digest in sorted(shown))))
    return None if tool is None else tool.propose(state, query.action.arguments)


@dataclass(frozen=True, eq=False)
class _Recordings:
    """Recorded calls of one tool; two with the same digests are the same."""

    digests: tuple[bytes, ...]
    schema: StateSchema
    steps: tuple[Transition, ...]

    def __hash__(self) -> int:
        return hash(self.digests)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Recordings) and (self.digests, self.schema) == (other.digests, other.schema)


@lru_cache(maxsize=64)
def _learned(recordings: _Recordings) -> LearnedTool | None:
    """Learned once: the calls of an episode find mostly the same recordings."""
    recorded = [
        Recorded(before, step.action.arguments, step.result, after)
        for step in recordings.steps
        if (before := parsed(step.state)) is not None and (after := parsed(step.next_state)) is not None
    ]
    return LearnedTool(recorded, recordings.schema) if recorded else None


def _numberings(recorded: Sequence[Recorded], kinds: Sequence[set], schema: StateSchema) -> dict[str, Numbering]:  # type: ignore[type-arg]
    """How the ids follow each other in the collections that the tool adds to."""
    made: dict[str, list[tuple[list[str], str]]] = {}
    for one, found in zip(recorded, kinds, strict=True):
        for kind, name, _ in found:
            if kind == "new":
                before, after = World(one.before, schema).collection(name), World(one.after, schema).collection(name)
                made.setdefault(name, []).append((list(before), min(after.keys() - before.keys(), key=natural)))
    found_ = {name: numbering_of(pairs) for name, pairs in sorted(made.items())}
    return {name: numbering for name, numbering in found_.items() if numbering is not None}


def _form(case: Case) -> tuple[object, Sequence[tuple[str, bool]] | None]:
    """What kind of answer it is, and its words where it is a text."""
    result = case.recorded.result
    value = _value(result)
    if value is None:
        return (result.is_error, None), tokens(result.observation, case.after)
    keys = tuple(sorted(value)) if isinstance(value, dict) else ()
    return (result.is_error, result.structured is None, keys), None


def _truths(result: StepResult) -> list[tuple[str, bool]]:
    value = _value(result)
    return [(name, part) for name, part in value.items() if isinstance(part, bool)] if isinstance(value, dict) else []


def _value(result: StepResult) -> JsonValue:
    """The answer as JSON; None where it is none."""
    if result.structured is not None:
        return result.structured
    if result.observation[:1] not in {"{", "["}:
        return None
    try:
        value: JsonValue = json.loads(result.observation)
    except ValueError:
        return None
    return value


def _orders(value: JsonValue) -> Iterator[tuple[str, ...]]:
    if isinstance(value, list):
        for part in value:
            yield from _orders(part)
    elif isinstance(value, dict):
        yield tuple(value)
        for part in value.values():
            yield from _orders(part)


def _same_json(text: str, result: StepResult) -> bool:
    try:
        return same(json.loads(text), json.loads(result.observation))
    except ValueError:
        return False


__all__ = ["LearnedTool", "Proposal", "Recorded", "propose"]
