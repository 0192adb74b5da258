"""Programs: the changes that a tool makes to an explicit state, and its answers, ready to be run on a call.

A program decides which outcome a call has, and each outcome has a branch: changes of the state and an answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from pydantic import JsonValue

from dreamgym.state import (
    ImpossibleChange,
    Operation,
    StateSchema,
    apply,
    difference,
    is_number,
    leaves,
    natural,
    pointer,
    same,
)
from dreamgym.state.json_values import value_at
from dreamgym.state.wording import Wording
from dreamgym.synthesis.decisions import DecisionList
from dreamgym.synthesis.derived import DerivedField, settled
from dreamgym.synthesis.expressions import (
    Combined,
    Entities,
    Expression,
    Fallback,
    Filter,
    JsonText,
    NoValue,
    Source,
    in_style,
    is_empty,
    parts_of,
    shown,
)
from dreamgym.synthesis.ids import IdSequence
from dreamgym.synthesis.paths import Bindings, IndexedState, ItemFault, Path, bind, is_argument
from dreamgym.types import JsonObject

LITERALS = ("true", "false", "null")
SIGNS = ("zero", "positive", "negative")
"""The categories of numbers; the place of each is the sign as -1, 0 or 1."""
NUMBERS = ("5", "5.0", "2.5")
"""An example of each kind of number. One server takes 5.0 for 5, and another refuses it."""


@dataclass(frozen=True)
class ProgramResult:
    """The effect and the answer of one call."""

    operations: tuple[Operation, ...]
    """The changes, as operations on the state before the call."""
    after: JsonObject
    """The state after the call."""
    observation: str
    structured: JsonObject | None
    is_error: bool


@dataclass(frozen=True)
class Effect:
    """One kind of change that a branch makes."""

    op: str
    """`set`, `append`, `increase`, `new` or `delete`."""
    collection: str
    """Empty for a single value of the state."""
    tail: tuple[str, ...]
    """Path of the field in the entity, or of the single value in the state."""
    target: Path = ()
    """The path that is bound to the id of the entity."""
    value: Expression | None = None
    over: Source | None = None
    """If it is given, the change is made once for each of its items."""
    repeats: bool = False
    """True if a recorded call appended an item to a list that had an equal one."""

    def operations(self, call: Bindings, ids: Mapping[str, IdSequence]) -> Iterator[Operation]:
        """The changes in one call. Raises NoValue."""
        there: dict[tuple[str, ...], frozenset[str]] = {}
        for count, item in enumerate(self.over.items(call) if self.over else [call]):
            value = None if self.value is None else self.value.value(item)
            path = self.tail
            if self.collection:
                identity = item.values.get(self.target)
                if not isinstance(identity, str | int):
                    raise NoValue(f"no id is bound to {shown(self.target)}")
                if self.op == "new":
                    if count:  # the call may give the first id, which need not follow the sequence
                        identity = ids[self.collection].later(str(identity), count)
                    if isinstance(value, dict):
                        value = {call.state.schema.collections[self.collection].key: identity, **value}
                path = (self.collection, str(identity), *self.tail)
            if self.op == "append" and not self.repeats:
                if path not in there:  # all items of a loop may be for one long list
                    there[path] = items_at(call.state.state, path)
                if json.dumps(value, sort_keys=True) in there[path]:
                    raise NoValue("no recorded call appended an item that the list had")
            op = "set" if self.op == "new" else self.op
            yield Operation.model_validate({"op": op, "path": pointer(*path), "value": value})

    def __str__(self) -> str:
        entity = f"{self.collection}[{shown(self.target)}]" if self.collection else "state"
        place = ".".join([entity, *self.tail])
        change = {
            "set": f"set {place} = {self.value}",
            "append": f"append {self.value} to {place}",
            "increase": f"increase {place} by {self.value}",
            "new": f"add {place} = {self.value}",
            "delete": f"delete {place}",
        }[self.op]
        return change if self.over is None else f"for item in {self.over}: {change}"


@dataclass(frozen=True)
class ProgramAnswer:
    """The answer of the calls with one outcome, or of some of them."""

    structured: Expression | None
    text: Expression | Wording
    """The observation: an expression, or how it follows from the structured content."""
    field_orders: tuple[tuple[str, ...], ...] = ()
    """The recorded orders of the fields of objects in the answers. In a state, fields are sorted."""

    def of(self, call: Bindings) -> tuple[str, JsonObject | None]:
        """The observation and the structured content. Raises NoValue, ValueError."""
        structured = None if self.structured is None else self._ordered(self.structured.value(call))
        if isinstance(self.text, Wording):
            assert isinstance(structured, dict)
            observation: JsonValue = self.text.text(structured)
        elif isinstance(self.text, JsonText):
            value = self._ordered(self.text.of.value(call))
            observation = in_style(value, self.text.style, is_ascii=self.text.is_ascii)
        else:
            observation = self.text.value(call)
        if not isinstance(observation, str) or not isinstance(structured, dict | None):
            raise NoValue("the observation must be a text and the structured content an object")
        return observation, structured

    def _ordered(self, value: JsonValue) -> JsonValue:
        if isinstance(value, list):
            return [self._ordered(part) for part in value]
        if not isinstance(value, dict):
            return value
        order = next((names for names in self.field_orders if value.keys() == set(names)), tuple(value))
        return {name: self._ordered(value[name]) for name in order}


@dataclass(frozen=True)
class Definitions:
    """Definitions that all branches of a tool refer to."""

    ids: Mapping[str, IdSequence] = field(default_factory=dict)
    """Sequences of new ids, for the collections that the tool adds to."""
    faults: tuple[ItemFault, ...] = ()
    derived: tuple[DerivedField, ...] = ()
    """Fields that follow from the rest of the state after every call."""
    chosen: tuple[tuple[str, Expression], ...] = ()
    """A name and the expression of the id, for each entity that the tool chooses."""
    changed: tuple[tuple[str, str], ...] = ()
    """Collection and field. The answer can refer to the entities in which the call changed this field."""

    def bind_before(self, state: IndexedState, arguments: JsonObject) -> Bindings:
        """The bindings before a call."""
        new_ids = {name: sequence.next_after(state.collections[name]) for name, sequence in self.ids.items()}
        known_ids = {name: identity for name, identity in new_ids.items() if identity is not None}
        call = bind(state, arguments, known_ids, faults=self.faults)
        for name, expression in self.chosen:
            with suppress(NoValue):
                call.add(("chosen", name), expression.value(call))
        return call

    def bind_after(
        self, state: JsonObject, arguments: JsonObject, created: Mapping[str, str], before: Bindings
    ) -> Bindings:
        """The bindings after a call, which may have created entities."""
        after = IndexedState(state, before.state.schema)
        changed = {
            f"{name}.{field}": sorted(
                (
                    identity
                    for identity, entity in after.collections[name].items()
                    if (old := before.state.collections[name].get(identity)) is not None
                    and not same(old.get(field), entity.get(field))
                ),
                key=natural,
            )
            for name, field in self.changed
        }
        return bind(after, arguments, created, before=before, changed=changed)


@dataclass(frozen=True)
class Branch:
    """The changes and the answer of the calls with one outcome."""

    effects: tuple[Effect, ...]
    is_error: bool
    answers: tuple[ProgramAnswer | None, ...]
    """The possible answers; None for one without an explanation. `choice` selects one by the state after the call."""
    choice: DecisionList
    reads_after: bool
    """True if the answer is made from the state after the call. It can also refer to the state before it."""
    overwritten: Mapping[Path, frozenset[str]] = field(default_factory=dict)
    """For each field that the branch sets to a constant, and each entity that it makes: the recorded values before, as
    JSON."""

    @cached_property
    def read(self) -> frozenset[Path]:
        """The arguments, and parts of them, that the changes and answers are made from."""
        parts = (part for part in parts_of((self.effects, self.answers)) if isinstance(part, tuple))
        paths = (part[part[:1] == ("before",) :] for part in parts)
        return frozenset(path for path in paths if path[:1] == ("arg",))

    @cached_property
    def optional(self) -> frozenset[Path]:
        """The arguments that the changes and answers can do without."""
        paths: set[Path] = set()
        for part in parts_of((self.effects, self.answers)):
            if isinstance(part, Fallback):
                paths.add(part.path)
            elif isinstance(part, Filter) and isinstance(part.other, tuple):
                paths.add(part.other)
            elif isinstance(part, Entities):
                paths.add(part.limit)
            elif isinstance(part, Combined):
                paths |= {*part.lists, part.without}
        return frozenset(path for path in paths if path and is_argument(path))

    def run(self, before: Bindings, definitions: Definitions, arguments: JsonObject) -> ProgramResult:
        """The effect and the answer of a call of this outcome. Raises NoValue, ImpossibleChange, ValueError."""
        schema = before.state.schema
        state = before.state.state
        operations = tuple(op for effect in self.effects for op in effect.operations(before, definitions.ids))
        call = before
        after = state
        if operations or self.reads_after:
            if settled(state, definitions.derived, schema) is not state:
                raise NoValue("a derived field does not have the value that its rule gives")
            changed = apply(state, operations, schema)
            after = settled(changed, definitions.derived, schema)
            operations = (*operations, *difference(changed, after))
        if self.reads_after:
            created = {
                effect.collection: str(before.values[effect.target])
                for effect in self.effects
                if effect.op == "new" and effect.over is None
            }
            call = definitions.bind_after(after, arguments, created, before)
        chosen = self.choice.outcome(call)
        answer = None if chosen is None else self.answers[chosen]
        if answer is None:
            raise NoValue("the answer has no explanation")
        observation, structured = answer.of(call)
        return ProgramResult(operations, after, observation, structured, self.is_error)

    def __str__(self) -> str:
        lines = [str(effect) for effect in self.effects]
        for decision in self.choice.decisions:
            lines.append(f"if {'' if decision.answer else 'not '}({decision.question}):")
            lines += [f"    {line}" for line in self._shown(decision.outcome)]
        if self.choice.decisions:
            return "\n".join([*lines, "otherwise:", *(f"    {line}" for line in self._shown(self.choice.otherwise))])
        return "\n".join([*lines, *self._shown(self.choice.otherwise)])

    def _shown(self, chosen: int | None) -> list[str]:
        answer = None if chosen is None else self.answers[chosen]
        if answer is None:
            return ["no answer"]
        lines = [] if answer.structured is None else [f"structured {answer.structured}"]
        if not isinstance(answer.text, Wording):
            lines.append(f"{'refuse' if self.is_error else 'answer'} {answer.text}")
        return lines


@dataclass(frozen=True)
class ToolProgram:
    """The behaviour of one tool, derived from its recorded calls. `str(program)` is a listing of it.

    A program is pure: the same state and arguments give the same result. It draws no random numbers and stores nothing.
    """

    schema: StateSchema
    definitions: Definitions
    decisions: DecisionList
    branches: tuple[Branch | None, ...]
    """One branch for each outcome; None if the recorded calls of the outcome have no explanation."""
    familiar: Mapping[Path, frozenset[str]] = field(default_factory=dict)
    """The categories that each path had in recorded calls, see `traits`."""
    numbers: Mapping[Path, frozenset[str]] = field(default_factory=dict)
    """The kinds of numbers at each place of the recorded calls' arguments, see `number_kinds`."""
    named: Mapping[Path, frozenset[str]] | None = None
    """The arguments of recorded calls, and the keys in them, each with the kinds of empty that recorded calls show, see
    `emptiness`; None while the program is being learned."""
    only: JsonObject | None = None
    """The arguments, if all recorded calls had the same: they do not show what others do."""

    def run(self, state: JsonObject, arguments: JsonObject) -> ProgramResult | None:
        """The effect and the answer of a call in a state.

        None if the recordings do not show them:

        - the call may have an outcome that has no explanation;
        - a value that the branch needs may be missing;
        - all recorded calls of the tool had the same arguments, and the call has another value of one that the branch
          does not read;
        - the call has an argument that no recorded call of the tool had, or such a key in an argument, unless the
          branch reads the object with the key as a whole; keys in the items of lists are not looked at;
        - a number in an argument is of another kind (whole, whole but written as 5.0, or not whole) than all that
          recorded calls had in its place;
        - an argument that the branch can do without is empty in a way that no recorded call shows, such as null;
        - an argument is true, false or null, or has a text, and no recorded call shows this category; but a branch
          that reads texts of an argument, and had several in recorded calls, reads others too;
        - the branch may change the state for an argument, or an entity, of a category that no recorded call shows;
        - the branch may set a field to a constant, for instance a status to `sent`, although in no recorded call of
          this outcome the field had the value that it has now;
        - the branch may make an entity whose id exists already, or append an item to a list that has an equal one,
          although no recorded call of this outcome did so.
        """
        try:
            call = self.definitions.bind_before(IndexedState(state, self.schema), arguments)
            outcome = self.decisions.outcome(call)
            branch = None if outcome is None else self.branches[outcome]
            if branch is None or not self._is_like_recorded(call, arguments, branch):
                return None
            return branch.run(call, self.definitions, arguments)
        except (NoValue, ImpossibleChange, ValueError, ArithmeticError):  # a number may be too large to be written
            return None

    def _is_like_recorded(self, call: Bindings, arguments: JsonObject, branch: Branch) -> bool:
        """True if recorded calls show what a call with such arguments and entities does, see `run`."""
        if self.only is not None:
            unread = {*arguments, *self.only} - {path[1] for path in branch.read}
            if any(not same(arguments.get(name), self.only.get(name)) for name in unread):
                return False
        if any(kind and kind not in self.numbers.get(place, (kind,)) for place, kind in number_kinds(arguments)):
            return False
        if self.named is not None and any(
            is_argument(path)
            and path not in self.named
            and not any(path[:end] in branch.read for end in range(2, len(path)))
            for path in call.values
        ):
            return False
        if self.named is not None and any(
            is_empty(call, path) and emptiness(call, path) not in self.named.get(path, ()) for path in branch.optional
        ):
            return False
        new = [(path, one) for path, one in traits(call) if one not in self.familiar.get(path, (one,))]
        if branch.effects:
            if new:
                return False
        elif any(is_argument(path) and one not in SIGNS and not self._looks_up(path, one, branch) for path, one in new):
            return False
        return all(json.dumps(call.values.get(path)) in known for path, known in branch.overwritten.items())

    def _looks_up(self, path: Path, one: str, branch: Branch) -> bool:
        """True if the branch reads an argument that had several texts in recorded calls, so that it may have others."""
        is_read = any(read[: len(path)] == path for read in branch.read)
        return is_read and one not in LITERALS and len(self.familiar[path]) > 1

    def __str__(self) -> str:
        lines = [f"chosen {name} = {expression}" for name, expression in self.definitions.chosen]
        for decision in self.decisions.decisions:
            lines += [f"if {'' if decision.answer else 'not '}({decision.question}):", self._listing(decision.outcome)]
        lines += ["otherwise:" if self.decisions.decisions else "always:", self._listing(self.decisions.otherwise)]
        return "\n".join(lines)

    def _listing(self, outcome: int | None) -> str:
        branch = None if outcome is None else self.branches[outcome]
        text = "no answer" if branch is None else str(branch)
        return "\n".join(f"    {line}" for line in text.split("\n"))


def items_at(state: JsonObject, path: Sequence[str]) -> frozenset[str]:
    """The items of the list at a path of the state, each as JSON with sorted keys; none if there is no list."""
    found = value_at(state, pointer(*path))
    return frozenset(json.dumps(one, sort_keys=True) for one in found) if isinstance(found, list) else frozenset()


def emptiness(call: Bindings, path: Path) -> str:
    """The value of an argument as JSON; an empty text if it is not given."""
    return json.dumps(call.values[path]) if path in call.values else ""


def traits(call: Bindings) -> Iterator[tuple[Path, str]]:
    """The category of each argument, and of each field of an entity that an argument names.

    A text is its own category; a number anywhere in an argument has one of SIGNS.
    """
    for path, value in call.values.items():
        is_own = path[0] == "arg" and len(path) == 2
        for place, number in _places(value, path) if is_own else ():
            if is_number(number):
                yield place, SIGNS[(number > 0) - (number < 0)]
        of_entity = path[0] == "arg" and len(path) == 4 and path[2].startswith(">") and "@" not in path[2]
        if (is_own or of_entity) and isinstance(value, str | bool | None):
            yield path, json.dumps(value)


def number_kinds(arguments: JsonObject) -> Iterator[tuple[Path, str]]:
    """The kind of the number, one of NUMBERS, at each place of the arguments; an empty text for other values."""
    for place, value in _places(arguments, ("arg",)):
        if isinstance(value, float):
            yield place, NUMBERS[1] if value.is_integer() else NUMBERS[2]
        else:
            yield place, NUMBERS[0] if is_number(value) else ""


def _places(value: JsonValue, path: Path) -> Iterator[tuple[Path, JsonValue]]:
    """Every value that is neither an object nor a list, with its place. The items of a list share one place."""
    for place, leaf in leaves(value):
        yield (*path, *(part if isinstance(part, str) else "[]" for part in place)), leaf
