"""Programs: what the calls of one outcome do to a state and answer, ready to be run on another call."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass

from pydantic import JsonValue

from dreamgym.state import Operation, apply
from dreamgym.state.wording import Wording
from dreamgym.synthesis.changes import Effect
from dreamgym.synthesis.expressions import (
    AsJson,
    Calculation,
    Constant,
    Expression,
    NoValue,
    Sum,
    Term,
    Words,
    in_style,
)
from dreamgym.synthesis.situation import Numbering, Situation, World, is_number, situation_of
from dreamgym.types import JsonObject


@dataclass(frozen=True)
class Proposal:
    """What a call does and answers, as far as recordings show."""

    operations: tuple[Operation, ...]
    after: JsonObject
    """The state with the operations applied."""
    observation: str
    structured: JsonObject | None
    is_error: bool


@dataclass(frozen=True)
class Program:
    """What the calls of one outcome do and answer."""

    effects: tuple[Effect, ...]
    is_error: bool
    structured: Expression | None
    text: Expression | Wording
    looks_back: bool
    """The answer may speak of what was before the call."""
    orders: tuple[tuple[str, ...], ...] = ()
    """In which order the answers' objects have their fields."""

    def run(self, before: Situation, numbering: Mapping[str, Numbering], arguments: JsonObject) -> Proposal:
        """Raises NoValue and ImpossibleChange."""
        world = before.world
        operations = tuple(op for effect in self.effects for op in effect.operations(before, numbering))
        after = apply(world.state, operations, world.schema) if operations else world.state
        made = {
            effect.collection: str(before.values[effect.target])
            for effect in self.effects
            if effect.op == "new" and effect.over is None
        }
        situation = after_call(before, World(after, world.schema), arguments, made) if self.looks_back else before
        structured = None if self.structured is None else self._ordered(self.structured.value(situation))
        if isinstance(self.text, Wording):
            assert isinstance(structured, dict)
            observation: JsonValue = self.text.text(structured)
        elif isinstance(self.text, AsJson):
            value = self._ordered(self.text.of.value(situation))
            observation = in_style(value, self.text.style, is_ascii=self.text.is_ascii)
        else:
            observation = self.text.value(situation)
        if not isinstance(observation, str) or not isinstance(structured, dict | None):
            raise NoValue("the answer is no text, or its structured content no object")
        return Proposal(operations, after, observation, structured, self.is_error)

    def _ordered(self, value: JsonValue) -> JsonValue:
        """With the fields of each object as the recorded answers had them; a state has them in alphabetical order."""
        if isinstance(value, list):
            return [self._ordered(part) for part in value]
        if not isinstance(value, dict):
            return value
        order = next((names for names in self.orders if value.keys() == set(names)), tuple(value))
        return {name: self._ordered(value[name]) for name in order}


def after_call(before: Situation, world: World, arguments: JsonObject, made: Mapping[str, str]) -> Situation:
    """What a call can speak of after it, and of what was before."""
    return situation_of(world, arguments, made, before)


def calculations(part: object) -> Iterator[Expression]:
    """Every calculation in a program: what it comes to may decide whether it is done."""
    if isinstance(part, Calculation | Sum):
        yield part
    if is_dataclass(part) and not isinstance(part, type):
        for one in fields(part):
            yield from calculations(getattr(part, one.name))
    elif isinstance(part, tuple):
        for inner in part:
            yield from calculations(inner)


def falls(program: Program) -> Iterator[Expression]:
    """What the numbers come to that a program adds to."""
    for effect in program.effects:
        if effect.op == "increase" and effect.over is None and effect.value is not None and effect.collection:
            there = Term((*effect.target, f">{effect.collection}", *effect.tail))
            yield Calculation("+", there, effect.value)


def told(part: object) -> Iterator[float]:
    """Constant numbers in a text."""
    if isinstance(part, Constant):
        value = json.loads(part.text)
        if is_number(value):
            yield value
    if isinstance(part, Words):
        for inner in part.parts:
            yield from told(inner)
