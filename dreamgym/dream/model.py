"""The experience model as a protocol: what it is asked, what it answers, and who judges it."""

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
    """Everything that reads recordings while playing: what the model is shown, and the tiers `recorded`, `check`,
    `effects` and `views`."""
    REASONING = "reasoning"
    """Thinking before the answer."""
    STATE = "state"
    """Typed changes of an explicit state; without it the model writes the next state as a text."""
    CHECKS = "checks"
    """Checks before and after the model, the task's own check, and the judge of an end."""
    RECORDED = "recorded"
    """The tier of the same name."""
    EFFECTS = "effects"
    """The tier of the same name."""
    VIEWS = "views"
    """The tier of the same name."""
    CACHE = "cache"
    """The tier of the same name."""


class Prediction(Frozen):
    """The predicted answer of the environment (paper, eq. 4). Its reward follows from `success`."""

    reasoning: str = ""
    observation: str
    structured: JsonObject | None = None
    """The structured content, valid under the tool's output schema where it has one."""
    content: tuple[JsonObject, ...] | None = None
    """The MCP content blocks, where they are more than the observation as one text."""
    next_state: str
    """After the step; where the environment has an explicit state, the text of that."""
    success: bool = False
    """The task is accomplished by this very action; only together with `terminated`. Of a language model it is a claim,
    which is decided in dreamgym.dream.ending."""
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
    """An argument is its id."""
    LINKED = 1
    """It holds the id of one that is named, or its id stands in one."""
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
        """The state is explicit, and used as such: a model says what changes, and answers are checked against it."""
        return self.state.is_explicit and Part.STATE not in self.without


class StepTier(Protocol):
    """One way to answer a step. A dream asks its tiers in their order, and the first answer counts.

    Other packages add tiers by entry points of the group `dreamgym.tiers` (dreamgym.dream.environment).
    """

    @property
    def infers(self) -> bool:
        """Its answers can be wrong: they get a confidence, and may be too unsure to go on with."""

    async def answer(self, query: Query) -> Prediction | None:
        """The answer; None: this tier has none, so the next one is asked.

        Raises:
            PredictionError: nobody can answer this step.
        """


class ExperienceModel(Protocol):
    """Predicts one step. Same query, same answer.

    One whose attribute `checks_state` is true has found no contradiction to the state in what it predicts; of any other
    the dream looks for one. One whose attribute `repeats` is true says nothing that was not recorded.
    """

    @property
    def name(self) -> str:
        """The name that provenance records."""

    @property
    def demonstrations(self) -> int:
        """How many transitions it wants to be shown."""

    @property
    def learns_from_dreams(self) -> bool:
        """It may be shown synthetic transitions; one that copies must not, or it would copy its own guesses."""

    async def predict(self, query: Query) -> Prediction:
        """Predict the step.

        Raises:
            PredictionError: no usable answer could be had; nothing is guessed.
        """

    async def close(self) -> None:
        """Release the model."""


class Verdict(TokenUsage):
    """A judge's decision, and the tokens that it took."""

    accomplished: bool


@runtime_checkable
class Judge(Protocol):
    """An experience model may be one too: it says whether what happened accomplished the task."""

    async def judge_step(self, query: Query, prediction: Prediction) -> Verdict:
        """The verdict if the steps so far and the predicted one accomplish the task.

        Raises:
            MalformedAnswer: no usable verdict was given; nothing is guessed.
            PredictionError: nobody could be asked.
        """

    async def judge(
        self, spec: EnvironmentSpec, task: Task, history: Sequence[Transition], answer: str | None, *, seed: int
    ) -> bool:
        """True if the steps accomplish the task, with the agent's final answer if it gave one.

        Raises:
            MalformedAnswer: no usable verdict was given; nothing is guessed.
            PredictionError: nobody could be asked.
        """
