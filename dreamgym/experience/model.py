"""The seam of the experience model, and the one that asks a language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from dreamgym.environment import EnvironmentSpec
from dreamgym.replay.buffer import Demonstration
from dreamgym.types import Frozen, JsonObject, Provenance, Task, ToolCall, Transition


class Prediction(Frozen):
    """What the environment would answer (paper, eq. 4). There is no reward here to guess: it follows from `success`."""

    reasoning: str = ""
    observation: str
    structured: JsonObject | None = None
    """The structured content, valid under the tool's output schema where it has one."""
    content: tuple[JsonObject, ...] | None = None
    """The MCP content blocks, where they are more than the observation as one text."""
    next_state: str
    success: bool = False
    """The task is accomplished by this very action; only together with `terminated`."""
    terminated: bool = False
    is_error: bool = False
    """The environment refused the action."""
    provenance: Provenance


class Query(Frozen):
    """Everything that a prediction may depend on (paper, eq. 4)."""

    spec: EnvironmentSpec
    task: Task
    history: tuple[Transition, ...]
    """All steps of the running episode, oldest first."""
    state: str
    action: ToolCall
    demonstrations: tuple[Demonstration, ...]
    """Retrieved transitions, best first."""
    seed: int = 0


class ExperienceModel(Protocol):
    """Predicts one step. Same query, same answer."""

    @property
    def name(self) -> str:
        """What provenance records."""

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


@runtime_checkable
class Judge(Protocol):
    """An experience model may be one too: it says whether an episode that ended in words accomplished its task."""

    async def judge(
        self, spec: EnvironmentSpec, task: Task, history: Sequence[Transition], answer: str, *, seed: int
    ) -> bool:
        """Whether the steps and the agent's final answer accomplish the task.

        Raises:
            PredictionError: no usable verdict could be had; nothing is guessed.
        """
