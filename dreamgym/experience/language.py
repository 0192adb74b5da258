"""The experience model that asks a language model: render, complete, parse.

What it decides is what happens. Whether that is worth a reward is asked again in a separate call (`reward.judge`),
because this one reads what the agent wrote.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import model_validator

from dreamgym.environment import EnvironmentSpec
from dreamgym.experience.asking import Answer, ask
from dreamgym.experience.model import Prediction, Query
from dreamgym.experience.prompt import step_messages
from dreamgym.experience.reward import judge
from dreamgym.llm import LLM
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
    """What the model answers; the keys of SCHEMA."""

    reasoning: str
    observation: str
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
        if "\x00" in f"{self.reasoning}{self.observation}{self.state}":
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
        messages = step_messages(query, as_turns=self._as_turns)
        answer = await ask(self._llm, messages, StepAnswer, SCHEMA, max_tokens=MAX_TOKENS, seed=query.seed)
        success = False
        if answer.success:
            claimed = StepResult(observation=answer.observation, terminated=True)
            steps = [*((step.action, step.result) for step in query.history), (query.action, claimed)]
            success = await judge(self._llm, query.spec, query.task, steps, seed=query.seed)
        # A refused action changes nothing; otherwise the agent is shown the state, unless the model says more.
        unsaid = query.state if answer.error else answer.observation
        return Prediction(
            reasoning=answer.reasoning,
            observation=answer.observation,
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
