"""The experience model that asks a language model: render, complete, parse.

What it decides is what happens. Whether that is worth a reward is asked again in a separate call (`reward.judge`),
because this one reads what the agent wrote.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic import JsonValue, model_validator

from dreamgym.content import with_stand_ins
from dreamgym.environment import EnvironmentSpec
from dreamgym.experience.asking import Answer, ask
from dreamgym.experience.model import Prediction, Query
from dreamgym.experience.prompt import STRUCTURED_ORDER, step_messages, wording
from dreamgym.experience.reward import judge
from dreamgym.llm import LLM
from dreamgym.tools import fault_under, output_schema
from dreamgym.types import JsonObject, Provenance, StepResult, Task, Tier, Transition

MAX_TOKENS = 1024

SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "reasoning": {"type": "string"},
        "observation": {"type": "string"},
        "state": {"type": ["string", "null"]},
        "error": {"type": "boolean"},
        "terminated": {"type": "boolean"},
        "success": {"type": "boolean"},
    },
    "required": ["reasoning", "observation", "state", "error", "terminated", "success"],
    "additionalProperties": False,
}
"""Constrained decoders write keys in this order: the reasoning first, so that it can guide the rest."""


class StepAnswer(Answer):
    """What the model answers; the keys of SCHEMA, and `structured` for a tool with an output schema."""

    reasoning: str
    observation: str | None
    structured: JsonObject | None = None
    state: str | None
    error: bool
    terminated: bool
    success: bool

    @model_validator(mode="after")
    def _success_is_an_end(self) -> StepAnswer:
        if self.success and not self.terminated:
            raise ValueError('"success" is true but "terminated" is not: only the end of an episode can succeed')
        if self.success and self.error:
            raise ValueError('"success" and "error" are both true: a refused action accomplishes nothing')
        if "\x00" in f"{self.reasoning}{self.observation}{self.state}" or "\\u0000" in json.dumps(self.structured):
            raise ValueError("a NUL character is no text")
        return self


class LanguageModel:
    """Predicts with any LLM, shown a few recorded transitions.

    Args:
        llm: is asked; closed together with this model. One that sets `demonstrations_as_turns` is shown the
            recordings as a conversation.
        demonstrations: how many recorded transitions it is shown. Small models are right in 10 of 12 steps with 5,
            in 5 of 12 with 2, and never with none.
    """

    learns_from_dreams = True

    def __init__(self, llm: LLM, demonstrations: int = 5) -> None:
        self._llm = llm
        self._as_turns = bool(getattr(llm, "demonstrations_as_turns", False))
        self.demonstrations = demonstrations

    @property
    def name(self) -> str:
        """The language model's."""
        return self._llm.name

    async def predict(self, query: Query) -> Prediction:
        """Ask for the step, and where it claims success, ask again whether that is so. Raises PredictionError."""
        form = _Form(query)
        answer = await ask(
            self._llm,
            step_messages(query, as_turns=self._as_turns),
            StepAnswer,
            form.schema,
            max_tokens=MAX_TOKENS,
            seed=query.seed,
            fault_of=form.fault_of,
        )
        observation = form.observation(answer)
        success = False
        if answer.success:
            claimed = StepResult(observation=observation, terminated=True)
            steps = [*((step.action, step.result) for step in query.history), (query.action, claimed)]
            success = await judge(self._llm, query.spec, query.task, steps, seed=query.seed)
        # A refused action changes nothing; otherwise the agent is shown the state, unless the model says more.
        unsaid = query.state if answer.error else observation
        content = with_stand_ins(observation, _blocks(query))
        return Prediction(
            reasoning=answer.reasoning,
            observation=observation,
            structured=answer.structured,
            content=None if content is None else tuple(content),
            next_state=unsaid if answer.state is None else answer.state,
            success=success,
            terminated=answer.terminated,
            is_error=answer.error,
            provenance=Provenance(
                tier=Tier.MODEL,
                model=self._llm.name,
                retrieved=tuple(shown.id for shown in query.demonstrations),
                seed=query.seed,
            ),
        )

    async def judge(
        self, spec: EnvironmentSpec, task: Task, history: Sequence[Transition], answer: str, *, seed: int
    ) -> bool:
        """Whether the steps and the final answer accomplish the task. Raises PredictionError."""
        steps = [(step.action, step.result) for step in history]
        return await judge(self._llm, spec, task, steps, seed=seed, final_answer=answer)

    async def close(self) -> None:
        """Release the language model."""
        await self._llm.close()


class _Form:
    """What an answer must be for the tool that is called: structured too, where the tool has an output schema."""

    def __init__(self, query: Query) -> None:
        self._output = output_schema(query.spec, query.action.name)
        self._wording = None if self._output is None else wording(query)
        self.schema = (
            SCHEMA if self._output is None else _schema_with(self._output, is_text_derived=bool(self._wording))
        )

    def fault_of(self, answer: StepAnswer) -> str | None:
        """What the answer lacks or has too much of, or None."""
        if self._output is None or answer.error:
            if answer.structured is not None:
                reason = "the action is refused" if answer.error else "this tool has none"
                return f'"structured" must be null: {reason}'
            return '"observation" must be a text' if answer.observation is None else None
        if answer.structured is None:
            return '"structured" must be an object: the tool has an outputSchema and the action is not refused'
        if fault := fault_under(self._output, answer.structured):
            return f'"structured" is off the outputSchema: {fault}'
        try:
            self.observation(answer)
        except ValueError as error:
            return f'"structured": {error}'
        return None

    def observation(self, answer: StepAnswer) -> str:
        """The text that the agent is given. Raises ValueError where there is none."""
        if self._wording is not None and answer.structured is not None:
            return self._wording.text(answer.structured)
        if answer.observation is None:
            raise ValueError('no text can be made of it, so "observation" must be one')
        return answer.observation


def _schema_with(output: JsonObject, *, is_text_derived: bool) -> JsonObject:
    """SCHEMA with a place for structured content; a text that follows from it is asked for where it is a refusal."""
    properties = SCHEMA["properties"]
    assert isinstance(properties, dict)
    text: JsonObject = {"type": ["string", "null"]} if is_text_derived else {"type": "string"}
    structured: JsonObject = {"anyOf": [_moved(output, "#/properties/structured/anyOf/0"), {"type": "null"}]}
    known = {**properties, "observation": text, "structured": structured}
    return {**SCHEMA, "properties": {name: known[name] for name in STRUCTURED_ORDER}, "required": [*STRUCTURED_ORDER]}


def _moved(value: JsonValue, root: str) -> JsonValue:
    """A schema as a part of another one: what points into it points to its new place."""
    if isinstance(value, list):
        return [_moved(item, root) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: f"{root}{item[1:]}" if key == "$ref" and isinstance(item, str) and item[:1] == "#" else _moved(item, root)
        for key, item in value.items()
        if key not in {"$schema", "$id"}
    }


def _blocks(query: Query) -> list[JsonObject]:
    """Recorded and earlier content, that of the called tool first."""
    shown = [demonstration.transition for demonstration in query.demonstrations]
    steps = sorted((*shown, *query.history), key=lambda step: step.action.name != query.action.name)
    return [block for step in steps if "content" in step.result.info for block in step.result.content]
