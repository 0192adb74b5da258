"""The search for the decision list that gives every recorded call its outcome.

Decisions are found one after the other. Each asks a question and takes all remaining calls with a certain answer, which
must all have the same outcome. The cheapest of these questions is used:

| kind | cost | example, as a reason to refuse |
|---|---|---|
| a path is bound and not empty, if it follows ids | 1 | there is no order with this id |
| a change would make a number negative | 1 | the balance does not cover the price |
| a change would leave a field as it is | 1 | the ticket has these tags already |
| a text argument is blank | 2 | the subject is empty |
| a text argument contains a certain mark | 2 | the address has no `@` |
| a path has one certain value | 2 | the order is `shipped` |
| two paths are equal | 2 | the ticket is merged into itself |
| a number that an answer names is 1 | 1 | "after 1 hour" |
| an argument is above or below a number that a refusal names | 2 | "at most 48 hours" |
| a path is bound and not empty, if it follows a unique text | 3 | there is no room of this name |
| the source of a branch's loop has items | 3 | "the queue is empty" |
| there are entities that pass filters | 3 | the room is booked on this day |
| one number is above another | 4 | more are wanted than are left |
| a number is above a constant, halfway between two calls | 5 | the cart holds more than 10 items |

Added to the cost of its kind:

| reason | cost |
|---|---|
| for each path in the question that the refusal does not name | 2 |
| for each path in the refusal that the question does not ask about | 1/2 |
| the question finds only some of the remaining calls of the outcome | 3 |

Two questions together cost the sum of both. They are tried only if a single question is expensive.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dreamgym.state import is_number
from dreamgym.synthesis.decisions import (
    AreSame,
    Both,
    Decision,
    DecisionList,
    HasText,
    IsAbove,
    IsAlready,
    IsBlank,
    IsOne,
    IsThere,
    IsValue,
    Question,
)
from dreamgym.synthesis.expressions import (
    Calculation,
    Constant,
    Entities,
    Expression,
    Items,
    NoValue,
    Sum,
    Template,
    Variable,
    is_calculable,
    loaded,
    parts_of,
)
from dreamgym.synthesis.paths import Bindings, Path, is_argument, is_entity, rank
from dreamgym.synthesis.program import Branch
from dreamgym.synthesis.search.sources import related

COST_OF_TWO = 4.5
"""If the best single question costs more than this, two questions together are tried as well."""
PAIRED = 150
"""Most questions that are paired with each other."""
VALUES = 8
"""A path with more values than this is not compared with single values."""
CUTS = 12
"""Most constants that one number is compared with."""
ROOTS = frozenset({"arg", "first", "before", "item"})
"""Roots of the paths that show what an answer or a question is about."""


@dataclass(frozen=True)
class _Candidate:
    question: Question
    holds: int
    """A set of calls: bit i is 1 if the question holds in call i."""
    cost: float
    """Cost of the question's kind."""
    paths: frozenset[Path]


_Choice = tuple[float, int, int, Decision, int]
"""Cost, negative number of calls found, index of the candidate, the decision, the set of calls that it finds."""


def find_decisions(
    calls: Sequence[Bindings], outcomes: Sequence[int], branches: Sequence[Branch | None], is_error: Sequence[bool]
) -> DecisionList:
    """The decision list that the recorded calls show.

    Args:
        calls: the bindings before each call.
        outcomes: the outcome of each call.
        branches: the branch of each outcome. A refusal likely depends on the paths that it names.
        is_error: for each outcome, True if it is a refusal.
    """
    counts = Counter(outcomes)
    by_count = sorted(counts, key=lambda outcome: (is_error[outcome], -counts[outcome], outcome))
    last = by_count[0]  # a server does the usual thing if no check fails
    named = [frozenset(paths_in(one)) if one is not None and one.is_error else frozenset() for one in branches]
    candidates = _candidates(calls, outcomes, branches) if len(counts) > 1 else []
    # Sets of calls are the bits of an integer. Thousands of candidates are examined for each outcome in each round, so
    # "only calls of this outcome, among those that are left" must be one operation on machine words.
    of_outcome = {outcome: sum(1 << i for i, one in enumerate(outcomes) if one == outcome) for outcome in counts}
    left = (1 << len(outcomes)) - 1
    decisions: list[Decision] = []
    while missing := [outcome for outcome in by_count if outcome != last and of_outcome[outcome] & left]:
        best: _Choice | None = None
        for outcome in missing:
            wanted = of_outcome[outcome] & left
            for number, one in enumerate(candidates):
                for answer in (True, False):
                    found = (one.holds if answer else ~one.holds) & left
                    # a value that only one of several calls has identifies just this call
                    is_remembered = found != wanted and found.bit_count() == 1 and isinstance(one.question, IsValue)
                    if found and not found & ~wanted and not is_remembered:
                        unnamed = len(one.paths - named[outcome])
                        unasked = len(named[outcome] - one.paths)
                        cost = one.cost + 2 * unnamed + unasked / 2 + 3 * (found != wanted)
                        decision = Decision(one.question, answer, outcome)
                        choice = (cost, -found.bit_count(), number, decision, found)
                        if best is None or choice[:3] < best[:3]:
                            best = choice
        if best is None or best[0] > COST_OF_TWO:
            pairs = [
                pair for outcome in missing if (pair := _pair(candidates, outcome, of_outcome[outcome], left, named))
            ]
            best = min([*pairs, *([best] if best else [])], key=lambda choice: choice[:3], default=None)
        if best is None:
            break
        decisions.append(best[3])
        left &= ~best[4]
    rest = Counter(outcome for i, outcome in enumerate(outcomes) if left >> i & 1)
    most = rest.most_common(1)
    orders = set()
    for call in calls:
        first, *others = [one.outcome for one in decisions if one.question.holds(call) == one.answer] or [-1]
        orders |= {(first, other) for other in others}
    otherwise = most[0][0] if most and 2 * most[0][1] > rest.total() else None
    if otherwise is not None and is_error[otherwise] and not is_error[last]:
        otherwise = None  # a refusal must have a reason
    return DecisionList(tuple(decisions), otherwise, frozenset(orders))


def _pair(
    candidates: Sequence[_Candidate], outcome: int, members: int, left: int, named: Sequence[frozenset[Path]]
) -> _Choice | None:
    """The cheapest two questions that together find the remaining calls of one outcome, and no others."""
    wanted = members & left
    holding: list[tuple[float, int, int, _Candidate, bool]] = []
    for number, one in enumerate(candidates):
        for answer in (True, False):
            found = (one.holds if answer else ~one.holds) & left
            if found & wanted == wanted and found != left:
                cost = one.cost + 2 * len(one.paths - named[outcome])
                holding.append((cost, number, found, one, answer))
    holding = sorted(holding, key=lambda choice: choice[:2])[:PAIRED]
    best: _Choice | None = None
    for i, (cost, number, found, one, answer) in enumerate(holding):
        for other_cost, _, other_found, other, other_answer in holding[i + 1 :]:
            if best is not None and cost + other_cost >= best[0]:
                break
            if found & other_found == wanted:
                unasked = len(named[outcome] - one.paths - other.paths)
                both = Both(one.question, answer, other.question, other_answer)
                total = cost + other_cost + unasked / 2
                if best is None or total < best[0]:
                    best = (total, -wanted.bit_count(), number, Decision(both, True, outcome), wanted)
    return best


def paths_in(part: object) -> Iterator[Path]:
    """The paths in a part of a program. An entity counts as its id, and a value before the call as the value."""
    for one in parts_of(part):
        if isinstance(one, tuple) and len(one) > 1 and all(isinstance(step, str) for step in one) and one[0] in ROOTS:
            path: Path = one[1:] if one[0] == "before" else one
            yield path[:-1] if is_entity(path) else path


def _candidates(
    calls: Sequence[Bindings], outcomes: Sequence[int], branches: Sequence[Branch | None]
) -> list[_Candidate]:
    """All questions that some calls answer differently. Of those with the same answers and paths, only the cheapest."""
    found: dict[tuple[int, frozenset[Path]], _Candidate] = {}
    everything = (1 << len(calls)) - 1
    for cost, questions in _questions(calls, outcomes, [branch for branch in branches if branch is not None]):
        for question in questions:
            holds = sum(1 << i for i, call in enumerate(calls) if question.holds(call))
            if 0 < holds < everything:
                # IsOne asks about a number that the answers themselves name, so its paths must not add to its cost
                paths = frozenset() if isinstance(question, IsOne) else frozenset(paths_in(question))
                found.setdefault((holds, paths), _Candidate(question, holds, cost, paths))
    return list(found.values())


def _questions(
    calls: Sequence[Bindings], outcomes: Sequence[int], branches: Sequence[Branch]
) -> Iterator[tuple[float, Iterable[Question]]]:
    """Every question with the cost of its kind, the cheapest kinds first."""
    paths = sorted({path for call in calls for path in call.values if path[0] != "new"}, key=rank)
    numbers = [Variable(path) for path in paths if any(is_number(call.values.get(path)) for call in calls)]
    of_call = [variable for variable in numbers if is_argument(variable.path)]
    calculated = sorted(
        {part for branch in branches for part in parts_of(branch) if isinstance(part, Calculation | Sum)}, key=repr
    )
    remainders = sorted({amount for branch in branches for amount in _remainders(branch)}, key=repr)
    sources = sorted(
        {part for branch in branches for part in parts_of(branch) if isinstance(part, Entities | Items)}, key=repr
    )
    limits = sorted({number for branch in branches if branch.is_error for number in _numbers_in_text(branch)})

    yield 1, (IsThere(path) for path in paths if "@" not in path[-1])
    yield 1, (IsAbove(Constant("0"), amount) for amount in remainders)
    yield 1, sorted({already for branch in branches for already in _repetitions(branch)}, key=repr)
    yield 1, (IsOne(number) for number in sorted({one for branch in branches for one in _named(branch)}, key=repr))
    yield 2, (IsBlank(path) for path in paths if path[0] == "arg" and len(path) == 2)
    yield 2, _marks(calls, paths)
    yield 2, _values(calls, paths)
    yield 2, _equalities(calls, paths)
    constants = [Constant(json.dumps(limit)) for limit in limits]
    yield 2, (above for one in of_call for limit in constants for above in (IsAbove(one, limit), IsAbove(limit, one)))
    yield 3, (IsThere(path) for path in paths if "@" in path[-1])
    yield 3, (IsAbove(Sum(source), Constant("0")) for source in sources)
    yield 3, (IsAbove(Sum(entities), Constant("0")) for entities in related(*_most_bound(calls, paths)))
    left: list[Expression] = [*of_call, *calculated]
    pairs = ((one, other) for one in left for other in numbers if one != other)
    yield 4, (above for one, other in pairs for above in (IsAbove(one, other), IsAbove(other, one)))
    yield 5, (cut for one in (*left, *numbers) for cut in _cuts(one, calls, outcomes))


def _remainders(branch: Branch) -> Iterator[Expression]:
    """The value of each number after a branch increases it. An amount that is taken away may be too large."""
    for effect in branch.effects:
        if effect.op == "increase" and effect.over is None and effect.value is not None and effect.collection:
            yield Calculation("+", Variable((*effect.target, f">{effect.collection}", *effect.tail)), effect.value)


def _repetitions(branch: Branch) -> Iterator[Question]:
    """For each field that a branch sets, the question whether it already has the value."""
    for effect in branch.effects:
        if effect.op == "set" and effect.over is None and effect.value is not None and effect.collection:
            yield IsAlready((*effect.target, f">{effect.collection}", *effect.tail), effect.value)


def _named(branch: Branch) -> Iterator[Expression]:
    """The expressions in the texts of a branch that is not a refusal, which may be numbers."""
    for answer in branch.answers:
        if answer is not None and isinstance(answer.text, Template) and not branch.is_error:
            yield from (part for part in answer.text.parts if isinstance(part, Variable | Calculation | Sum))


def _numbers_in_text(branch: Branch) -> Iterator[float]:
    texts = [answer.text for answer in branch.answers if answer is not None]
    for part in (part for text in texts for part in (text.parts if isinstance(text, Template) else (text,))):
        if isinstance(part, Constant) and is_number(value := loaded(part.text)):
            yield value


def _marks(calls: Sequence[Bindings], paths: Sequence[Path]) -> Iterator[Question]:
    """A question for each character of a text argument that is not a letter, digit or white space."""
    for path in paths:
        if path[0] == "arg" and len(path) == 2:
            texts = [value for call in calls if isinstance(value := call.values.get(path), str)]
            marks = {letter for text in texts for letter in text if not letter.isalnum() and not letter.isspace()}
            yield from (HasText(path, mark) for mark in sorted(marks))


def _values(calls: Sequence[Bindings], paths: Sequence[Path]) -> Iterator[Question]:
    for path in paths:
        bound = [call.values[path] for call in calls if path in call.values]
        if all(isinstance(value, str | bool | None) for value in bound):
            texts = {json.dumps(value) for value in bound}
            if len(texts) <= min(VALUES, max(2, len(bound) // 2)):
                yield from (IsValue(path, text) for text in sorted(texts))


def _equalities(calls: Sequence[Bindings], paths: Sequence[Path]) -> Iterator[Question]:
    scalar = [path for path in paths if any(isinstance(call.values.get(path), str | int) for call in calls)]
    for one in filter(is_argument, scalar):
        for other in scalar:
            if one < other or not is_argument(other):
                yield AreSame(one, other)


def _most_bound(calls: Sequence[Bindings], paths: Sequence[Path]) -> tuple[list[Bindings], list[Path]]:
    """The calls with at least half as many paths as the call with the most, and the paths that they share.

    A call with a wrong id has few paths. With it, no shared paths would be left to narrow collections.
    """
    most = max(len(call.values) for call in calls)
    full = [call for call in calls if len(call.values) * 2 >= most]
    return full, [path for path in paths if all(path in call.values for call in full)]


def _cuts(one: Expression, calls: Sequence[Bindings], outcomes: Sequence[int]) -> Iterator[Question]:
    """Questions whether a number is above a constant between values of different outcomes."""
    values: list[tuple[float, int]] = []
    for call, outcome in zip(calls, outcomes, strict=True):
        try:
            value = one.value(call)
        except NoValue:
            continue
        if is_calculable(value):
            values.append((value, outcome))
    values.sort()
    cuts = [(low, high) for (low, a), (high, b) in pairwise(values) if low < high and a != b]
    for low, high in cuts[:CUTS]:
        middle = (low + high) // 2 if isinstance(low, int) and isinstance(high, int) else (low + high) / 2
        yield IsAbove(one, Constant(json.dumps(middle)))
