"""The protocols of the experience model, of a tier and of a judge, with the query and the prediction."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import Protocol, runtime_checkable

from pydantic import Field

from dreamgym.environment import EnvironmentSpec
from dreamgym.replay.buffer import Demonstration
from dreamgym.state import State
from dreamgym.types import Frozen, JsonObject, Provenance, Task, TokenUsage, ToolCall, Transition


class Part(StrEnum):
    """A part of the method that can be left out, to show what it is worth."""

    HISTORY = "history"
    """The episode's steps so far, for the model and for retrieval."""
    RETRIEVAL = "retrieval"
    """Everything that reads recordings while playing: the transitions that the model is shown, and the tiers
    `recorded`, `check`, `effects` and `views`."""
    REASONING = "reasoning"
    """Thinking before the answer."""
    STATE = "state"
    """Typed changes of an explicit state; without it the model writes the next state as a text."""
    CHECKS = "checks"
    """Checks before and after the model, the task's own check, and the judge of an end."""
    RECORDED = "recorded"
    """The tier `recorded`."""
    EFFECTS = "effects"
    """The tier `effects`."""
    VIEWS = "views"
    """The tier `views`."""
    CACHE = "cache"
    """The tier `cache`."""


class Prediction(Frozen):
    """The predicted answer of the environment (paper, eq. 4). Its reward follows from `success`."""

    reasoning: str = ""
    observation: str
    structured: JsonObject | None = None
    """The structured content, valid under the tool's output schema if it has one."""
    content: tuple[JsonObject, ...] | None = None
    """The MCP content blocks, if they are more than the observation as one text."""
    next_state: str
    """The state after the step; if the environment has an explicit state, its text."""
    success: bool = False
    """True if this very action accomplishes the task; only together with `terminated`. From a language model it is a
    claim, on which dreamgym.dream.ending decides."""
    terminated: bool = False
    is_error: bool = False
    """The environment refused the action."""
    probabilities: dict[str, float] = Field(default_factory=dict)
    """Mean token probability and the probabilities of flags, as in `Completion.probabilities`."""
    provenance: Provenance

    def noted(self, **fields: object) -> Prediction:
        """A copy with these fields of its provenance changed."""
        return self.model_copy(update={"provenance": self.provenance.model_copy(update=fields)})


class Reach(IntEnum):
    """How an entity is related to a call, nearest first."""

    NAMED = 0
    """An argument is the entity's id."""
    LINKED = 1
    """The entity contains the id of a named entity, or a named entity contains its id."""
    ANY = 2


class Query(Frozen):
    """Everything that a prediction may depend on (paper, eq. 4)."""

    spec: EnvironmentSpec
    task: Task
    history: tuple[Transition, ...]
    """All steps of the running episode, oldest first."""
    state: State
    action: ToolCall
    demonstrations: tuple[Demonstration, ...]
    """Retrieved transitions, best first."""
    changeable: dict[str, Reach] | None = None
    """Kinds of changes that this call may make to the explicit state (dreamgym.dream.checks); None: unknown."""
    seed: int = 0
    without: frozenset[Part] = frozenset()

    @property
    def is_explicit(self) -> bool:
        """True if the state is explicit and used as such: models list changes, and answers are checked against it."""
        return self.state.is_explicit and Part.STATE not in self.without


class StepTier(Protocol):
    """One way to answer a step. A dream asks its tiers in their order, and the first answer counts.

    Other packages add tiers by entry points of the group `dreamgym.tiers` (dreamgym.dream.environment).
    """

    @property
    def infers(self) -> bool:
        """True if its answers can be wrong. They then get a confidence, and one that is too unsure ends the episode."""

    async def answer(self, query: Query) -> Prediction | None:
        """The answer; None if this tier has none, so that the next one is asked.

        Raises:
            PredictionError: no tier can answer this step.
        """


class ExperienceModel(Protocol):
    """Predicts one step. The same query has the same answer.

    A model whose attribute `checks_state` is true has checked that its prediction does not contradict the state; for
    any other model the dream checks it. A model whose attribute `repeats` is true only repeats recordings.
    """

    @property
    def name(self) -> str:
        """The name that provenance records."""

    @property
    def demonstrations(self) -> int:
        """How many transitions it wants to be shown."""

    @property
    def learns_from_dreams(self) -> bool:
        """True if it may be shown synthetic transitions. A model that copies must not: it would copy its guesses."""

    async def predict(self, query: Query) -> Prediction:
        """Predict the step.

        Raises:
            PredictionError: there is no usable answer; nothing is guessed.
        """

    async def close(self) -> None:
        """Release the model."""


class Verdict(TokenUsage):
    """A judge's decision, and the tokens that it took."""

    accomplished: bool


@runtime_checkable
class Judge(Protocol):
    """Decides whether the steps of an episode accomplish its task. An experience model may also be a judge."""

    async def judge_step(self, query: Query, prediction: Prediction) -> Verdict:
        """The verdict on whether the steps so far and the predicted one accomplish the task.

        Raises:
            MalformedAnswer: no usable verdict was given; nothing is guessed.
            PredictionError: the judge could not be asked.
        """

    async def judge(
        self, spec: EnvironmentSpec, task: Task, history: Sequence[Transition], answer: str | None, *, seed: int
    ) -> bool:
        """True if the steps accomplish the task, with the agent's final answer if it gave one.

        Raises:
            MalformedAnswer: no usable verdict was given; nothing is guessed.
            PredictionError: the judge could not be asked.
        """
