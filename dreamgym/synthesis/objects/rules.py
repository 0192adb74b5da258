"""Rules of tools, ready to be run on calls: which outcome a call has, what it changes and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dreamgym.synthesis.objects.conditions import Condition
from dreamgym.synthesis.objects.terms import MISSING, Term, found, worded
from dreamgym.synthesis.objects.values import Value
from dreamgym.types import JsonObject


@dataclass(frozen=True)
class ObjectResult:
    """The result of a call."""

    after: JsonObject
    """The state after the call; the same object as before if nothing changed."""
    answer: JsonObject | None
    """The structured answer; None for a refusal."""
    words: str | None
    """The recorded words of a refusal."""

    @property
    def is_error(self) -> bool:
        """True if the call is refused."""
        return self.answer is None


@dataclass(frozen=True)
class ObjectChange:
    """Sets a field of an entity, or a single value of the state."""

    collection: str
    """Empty for a single value."""
    field: str
    target: Term
    """The term whose value is the id of the entity."""
    value: Value

    def __str__(self) -> str:
        place = f"{self.collection}[{worded(self.target)}].{self.field}" if self.collection else f"state.{self.field}"
        return f"set {place} = {self.value}"


@dataclass(frozen=True)
class ObjectOutcome:
    """One way in which a call succeeds."""

    conditions: tuple[Condition, ...]
    effects: tuple[ObjectChange, ...]
    answer: tuple[tuple[str, Value], ...]
    is_explained: bool
    """False if a change or a field of the answer has no explanation, so that there is no answer."""
    calls: int
    """Number of recorded calls of this outcome."""

    def holds(self, state: JsonObject, arguments: JsonObject) -> bool:
        """True if all conditions hold before the call."""
        return all(condition.holds(state, arguments) for condition in self.conditions)

    def run(self, state: JsonObject, arguments: JsonObject) -> ObjectResult | None:
        """The effect and the answer; None if a value is missing."""
        after = self._after(state, arguments)
        answer: JsonObject = {}
        if after is None:
            return None
        for name, value in self.answer:
            shown = value.of(after, arguments)
            if shown is MISSING:
                return None
            answer[name] = shown  # type: ignore[assignment]  # not MISSING
        return ObjectResult(after, answer, None)

    def _after(self, state: JsonObject, arguments: JsonObject) -> JsonObject | None:
        after = state
        for effect in self.effects:
            value = effect.value.of(state, arguments)
            if value is MISSING:
                return None
            if not effect.collection:
                if after.get(effect.field, MISSING) != value:
                    after = {**after, effect.field: value}  # type: ignore[dict-item]  # not MISSING
                continue
            part, identity = after.get(effect.collection), found(effect.target, state, arguments)
            if not isinstance(part, dict) or not isinstance(identity, str):
                return None
            entity = part.get(identity)
            if not isinstance(entity, dict):
                return None
            if entity.get(effect.field, MISSING) != value:
                changed: JsonObject = {**entity, effect.field: value}  # type: ignore[dict-item]  # not MISSING
                after = {**after, effect.collection: {**part, identity: changed}}
        return after

    def __str__(self) -> str:
        lines = [f"if {condition}" for condition in self.conditions]
        if not self.is_explained:
            return "\n".join([*lines, "    no answer"])
        answer = ", ".join(f"{name}: {value}" for name, value in self.answer)
        return "\n".join([*lines, *(f"    {effect}" for effect in self.effects), f"    answer {{{answer}}}"])


@dataclass(frozen=True)
class ToolRules:
    """The rules of one tool. `str(rules)` is a listing of them."""

    outcomes: tuple[ObjectOutcome, ...]
    """In the order in which they are tried: the most specific first, then the most often recorded."""
    refusal: str | None
    """The recorded words for a call that fits none of the outcomes; None if no refusal was recorded."""

    def run(self, state: JsonObject, arguments: JsonObject) -> ObjectResult | None:
        """The result of a call; None if the recordings do not show it."""
        for outcome in self.outcomes:
            if outcome.holds(state, arguments):
                return outcome.run(state, arguments) if outcome.is_explained else None
        return None if self.refusal is None else ObjectResult(state, None, self.refusal)

    def __str__(self) -> str:
        otherwise = "otherwise:\n    no answer" if self.refusal is None else f"otherwise:\n    refuse {self.refusal!r}"
        return "\n".join([*map(str, self.outcomes), otherwise])


@dataclass(frozen=True)
class ObjectRules:
    """The rules of all tools of an environment."""

    tools: Mapping[str, ToolRules]

    def run(self, tool: str, state: JsonObject, arguments: JsonObject) -> ObjectResult | None:
        """The result of a call; None if the recordings do not show it."""
        rules = self.tools.get(tool)
        return None if rules is None else rules.run(state, arguments)
