"""The form in which a model answers one step: turns recorded steps into this form, and answers into predictions.

If the state is explicit, the model lists the changes and code applies them. The keys are in the order of the paper's
eq. 5: the reasoning, then the next state, then the outcome. If the state is a text, the observation mostly is the next
state. The form follows from the query alone, so that training and use cannot differ.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal

from pydantic import JsonValue, model_validator

from dreamgym.content import with_stand_ins
from dreamgym.dream.model import Part, Prediction, Query
from dreamgym.dream.questions import Answer
from dreamgym.dream.reconcile import only_reads, put_right, shown_otherwise
from dreamgym.replay.buffer import Demonstration
from dreamgym.state import Operation, State, apply, as_text, difference, fields, is_number, shown_in
from dreamgym.state.json_values import value_at
from dreamgym.state.wording import Wording, wording_of
from dreamgym.tools import completed, known_fault, output_schema
from dreamgym.types import JsonObject, Provenance, StepResult, Tier, Transition

PLAIN = ("reasoning", "observation", "state", "error", "terminated", "success")
STRUCTURED = ("reasoning", "error", "observation", "structured", "state", "terminated", "success")
"""`error` comes before `observation` and `structured`, because it decides which of the two is null. A small model that
had filled in the wrong one would contradict itself."""
EXPLICIT = ("reasoning", "error", "changes", "observation", "terminated", "success")
EXPLICIT_STRUCTURED = ("reasoning", "error", "changes", "observation", "structured", "terminated", "success")

_CHANGE: JsonObject = {
    "type": "object",
    "properties": {
        "op": {"type": "string", "enum": ["set", "delete", "append", "increase"]},
        "path": {"type": "string"},
        "value": {
            "anyOf": [
                {"type": ["string", "number", "boolean", "null"]},
                {"type": "array", "items": {}},
                {"type": "object"},
            ]
        },
    },
    "required": ["op", "path", "value"],
    "additionalProperties": False,
}
_PROPERTIES: JsonObject = {
    "reasoning": {"type": "string"},
    "observation": {"type": "string"},
    "state": {"type": ["string", "null"]},
    "changes": {"type": "array", "items": _CHANGE},
    "error": {"type": "boolean"},
    "terminated": {"type": "boolean"},
    "success": {"type": "boolean"},
}


class StepAnswer(Answer):
    """A model's answer to one step. Which of the keys it must have depends on the query (`AnswerForm`)."""

    reasoning: str = ""
    observation: str | None = None
    structured: JsonObject | None = None
    state: str | None = None
    changes: tuple[Operation, ...] | None = None
    error: bool
    terminated: bool
    success: bool

    @model_validator(mode="after")
    def _success_is_an_end(self) -> StepAnswer:
        if self.success and not self.terminated:
            raise ValueError('"success" is true but "terminated" is not: only the end of an episode can succeed')
        if self.success and self.error:
            raise ValueError('"success" and "error" are both true: a refused action accomplishes nothing')
        if self.error and self.changes:
            raise ValueError('"error" is true and "changes" are not empty: a refused action changes nothing')
        try:
            text = json.dumps(self.model_dump(), allow_nan=False)
        except ValueError as error:
            raise ValueError("NaN and Infinity are not numbers of JSON") from error
        if "\\u0000" in text.replace("\\\\", ""):
            raise ValueError("a NUL character is no text")
        return self


class AnswerForm:
    """The form of the answer to one query: its keys, its JSON schema, and how an answer becomes a prediction."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._output = output_schema(query.spec, query.action.name)
        self._wording = None if self._output is None else wording(query)
        self.keys = keys(query)
        self.schema = _schema(self.keys, self._output, is_text_derived=self._wording is not None)

    def conditional_schema(self) -> JsonObject:
        """The schema with conditions that follow from the value of "error"; not all decoders take conditions."""
        refused: JsonObject = {"changes": {"const": []}, "structured": {"const": None}}
        done: JsonObject = {"observation": {"const": None}} if self._wording is not None else {}
        conditions: JsonObject = {
            "if": {"properties": {"error": {"const": True}}},
            "then": {"properties": {name: value for name, value in refused.items() if name in self.keys}},
            "else": {"properties": done},
        }
        return {**self.schema, **conditions}

    def _fault_of(self, answer: StepAnswer) -> str | None:
        """The fault in the keys or in the structured content; None if there is none."""
        if missing := [key for key in self.keys if key not in answer.model_fields_set]:
            return f'"{missing[0]}" is missing'
        for key in answer.model_fields_set - {*self.keys}:
            if getattr(answer, key) is not None:
                return f'"{key}" is none of the keys: they are {", ".join(self.keys)}'
        if answer.changes is None and "changes" in self.keys:
            return '"changes" must be a list'
        if self._output is None or answer.error:
            if answer.structured is not None:
                return '"structured" must be null: the action is refused'
        elif answer.structured is None:
            return '"structured" must be an object: the tool has an outputSchema and the action is not refused'
        elif fault := known_fault(self._output, answer.structured):
            return f'"structured" is off the outputSchema: {fault}'
        return None

    def prediction(self, answer: StepAnswer, model: str) -> Prediction:
        """Turn the answer of model `model` into a prediction. A success that it claims is not judged yet.

        Raises:
            ValueError: the answer lacks a key, has one too many, or has an impossible value.
        """
        query = self._query
        if fault := self._fault_of(answer):
            raise ValueError(fault)
        answer = self._seen_right(answer)
        observation = self._observation(answer)
        # recorded and earlier content, that of the called tool first
        steps = sorted((*recorded(query), *history(query)), key=lambda step: step.action.name != query.action.name)
        blocks = [block for step in steps if "content" in step.result.info for block in step.result.content]
        content = with_stand_ins(observation, blocks)
        prediction = Prediction(
            reasoning=answer.reasoning,
            observation=observation,
            structured=answer.structured,
            content=None if content is None else tuple(content),
            next_state=self._next_state(answer, observation),
            success=answer.success,
            terminated=answer.terminated,
            is_error=answer.error,
            provenance=Provenance(
                tier=Tier.MODEL,
                model=model,
                seed=query.seed,
            ),
        )
        if answer.structured is None or self._output is None:
            return prediction
        if fault := known_fault(self._output, answer.structured):  # a correction may break the schema
            raise ValueError(fault)
        return prediction

    def _seen_right(self, answer: StepAnswer) -> StepAnswer:
        """The answer with the fields that it shows of an explicit state corrected, as far as that is beyond doubt."""
        query, schema = self._query, self._query.spec.state
        if schema is None or answer.error or not query.is_explicit or Part.CHECKS in query.without:
            return answer
        said = StepResult(observation=answer.observation or "", info={"structured": answer.structured})
        shown = shown_in(said)
        of_tool = [step for step in recorded(query) if step.action.name == query.action.name]
        made = answer.changes or ()
        if shown is None or not (made or only_reads(query.spec, query.action.name, of_tool)):
            return answer
        after = query.state.after(made)
        paths = query.state.changed_fields(after) if made else None
        right = put_right(shown, after, schema, paths, shown_otherwise(of_tool, schema))
        if right == shown or not isinstance(right, dict):
            return answer
        if answer.structured is not None:
            return answer.model_copy(update={"structured": right})
        way = wording_of([said.model_copy(update={"info": {"structured": shown}})])
        return answer if way is None else answer.model_copy(update={"observation": way.text(right)})

    def _observation(self, answer: StepAnswer) -> str:
        if self._wording is not None and answer.structured is not None:
            try:
                return self._wording.text(answer.structured)
            except ValueError as error:
                raise ValueError(f'"structured": {error}') from error
        if answer.observation is None:
            raise ValueError('"observation" must be a text')
        return answer.observation

    def _next_state(self, answer: StepAnswer, observation: str) -> str:
        """A refused action changes nothing; a text state is the observation, unless the model gives another one."""
        before = self._query.state
        if self._query.is_explicit:
            return before.after(answer.changes or ()).text
        if answer.state is None:
            return before.text if answer.error or before.is_explicit else observation
        written = State.of(answer.state).content if before.is_explicit else None
        return answer.state if written is None else as_text(written)


def keys(query: Query) -> tuple[str, ...]:
    """The keys of the answer to a query, in the order in which they are written."""
    return keys_of(query, query.action.name)


def keys_of(query: Query, tool: str) -> tuple[str, ...]:
    """The keys of an answer of one tool, for this query."""
    is_structured = output_schema(query.spec, tool) is not None
    if query.is_explicit:
        names = EXPLICIT_STRUCTURED if is_structured else EXPLICIT
    else:
        names = STRUCTURED if is_structured else PLAIN
    return tuple(name for name in names if name != "reasoning" or Part.REASONING not in query.without)


def recordings(query: Query) -> tuple[Demonstration, ...]:
    """The recordings that a model is shown, in an order that does not depend on their rank.

    A transition whose state is a text does not show what changed, so a query with an explicit state leaves it out.
    """
    if Part.RETRIEVAL in query.without:
        return ()
    shown = (
        one.model_copy(update={"transition": completed(one.transition, query.spec)})
        for one in sorted(query.demonstrations, key=lambda one: one.id)
    )
    if not query.is_explicit:
        return tuple(shown)

    def is_known(state: str) -> bool:
        return State.of(state, query.spec.state).is_explicit

    return tuple(one for one in shown if is_known(one.transition.state) and is_known(one.transition.next_state))


def recorded(query: Query) -> tuple[Transition, ...]:
    """The transitions of `recordings`."""
    return tuple(one.transition for one in recordings(query))


def history(query: Query) -> tuple[Transition, ...]:
    """The steps of the episode that a model is shown."""
    return () if Part.HISTORY in query.without else query.history


def wording(query: Query) -> Wording | None:
    """How the called tool's text follows from its structured content; None if recordings and episode do not show it."""
    steps = (*recorded(query), *history(query))
    return wording_of(step.result for step in steps if step.action.name == query.action.name)


def answer_of(query: Query, step: Transition) -> JsonObject:
    """A recorded or played step in the form of this query's answer; an empty reasoning is left out.

    A model would copy an empty reasoning.
    """
    answer = _answer(query, step, is_text_derived=wording_of([step.result]) is not None)
    return {key: value for key, value in answer.items() if key != "reasoning" or value}


def answer_text(query: Query, transition: Transition) -> str:
    """A perfect model's answer to a query whose outcome was recorded: the target of fine-tuning (eq. 5)."""
    step = completed(transition, query.spec)
    way = wording(query)
    return json.dumps(
        _answer(query, step, is_text_derived=way is not None and way.fits(step.result)),
        ensure_ascii=False,
        separators=(",", ":"),
    )


def changes_of(before: JsonObject, after: JsonObject, arguments: JsonObject) -> tuple[Operation, ...]:
    """The difference of two states as a model should write it: an `increase` if the call does not name the number."""
    named = [value for _, value in fields(arguments)]
    made = difference(before, after)
    return tuple(_as_increase(operation, value_at(before, operation.path), named) for operation in made)


def _answer(query: Query, step: Transition, *, is_text_derived: bool) -> JsonObject:
    result = step.result
    before, after = State.of(step.state, query.spec.state), State.of(step.next_state)
    unchanged = step.state if result.is_error or before.is_explicit else result.observation
    parts: JsonObject = {
        "changes": [],
        "reasoning": step.reasoning,
        "observation": None if is_text_derived and not result.is_error else result.observation,
        "structured": result.structured,
        "state": None if step.next_state == unchanged else step.next_state,
        "error": result.is_error,
        "terminated": result.terminated,
        "success": result.terminated and result.reward > 0,
    }
    names = keys_of(query, step.action.name)
    if "structured" not in names:
        parts["observation"] = result.observation
    if before.content is not None and after.content is not None and "changes" in names:
        made = changes_of(before.content, after.content, step.action.arguments)
        parts["changes"] = [operation.model_dump(mode="json") for operation in made]
    return {name: parts[name] for name in names}


def _as_increase(operation: Operation, old: JsonValue, named: Sequence[JsonValue]) -> Operation:
    new = operation.value
    if operation.op != "set" or not is_number(old) or not is_number(new):
        return operation
    is_whole = isinstance(new, int) and isinstance(old, int)
    by = new - old if is_whole else float(Decimal(str(new)) - Decimal(str(old)))
    if new in named and by not in named and -by not in named:
        return operation
    is_exact = as_text(apply({"n": old}, [Operation(op="increase", path="/n", value=by)])) == as_text({"n": new})
    return Operation(op="increase", path=operation.path, value=by) if is_exact else operation


def _schema(names: Sequence[str], output: JsonObject | None, *, is_text_derived: bool) -> JsonObject:
    """The JSON schema of an answer. A text that follows from structured content may be null: only refusals need it."""
    known = dict(_PROPERTIES)
    if output is not None:
        known["structured"] = {"anyOf": [_moved(output, "#/properties/structured/anyOf/0"), {"type": "null"}]}
    if is_text_derived:
        known["observation"] = {"type": ["string", "null"]}
    return {
        "type": "object",
        "properties": {name: known[name] for name in names},
        "required": [*names],
        "additionalProperties": False,
    }


SCHEMA: JsonObject = _schema(PLAIN, None, is_text_derived=False)
"""Constrained decoders write keys in this order: the reasoning first, so that it can guide the rest."""


def _moved(value: JsonValue, root: str) -> JsonValue:
    """A schema as a part of another one: its internal references point to its new place."""
    if isinstance(value, list):
        return [_moved(item, root) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: f"{root}{item[1:]}" if key == "$ref" and isinstance(item, str) and item[:1] == "#" else _moved(item, root)
        for key, item in value.items()
        if key not in {"$schema", "$id"}
    }
