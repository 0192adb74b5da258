"""DreamEnvironment: an experience model and a replay buffer behind the Environment protocol."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import EpisodeFinished
from dreamgym.experience.model import ExperienceModel, Prediction, Query
from dreamgym.replay.buffer import GROUNDED, Demonstration, ReplayBuffer, Retrieval
from dreamgym.tools import is_forbidden
from dreamgym.types import JsonObject, Source, StepResult, Task, ToolCall, Transition

CANDIDATES = 8
"""So many times more transitions are retrieved than shown where the tools are several. Retrieval weighs the state most:
on a recorded file system a quarter of what it put first was of the called tool."""


class DreamEnvironment:
    """Plays one episode of a simulated environment.

    Args:
        spec: what is simulated.
        model: predicts each step.
        buffer: grounds each prediction in recorded transitions.
        episode_id: the running episode, which retrieval never returns.
        knows_history: give the episode's history to retrieval. Off only to show what that costs.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        model: ExperienceModel,
        buffer: ReplayBuffer,
        *,
        episode_id: str = "",
        knows_history: bool = True,
    ) -> None:
        self._spec = spec
        self._model = model
        self._buffer = buffer
        self._episode_id = episode_id
        self._knows_history = knows_history
        self._task: Task | None = None
        self._seed = 0
        self._transitions: tuple[Transition, ...] = ()

    @property
    def tools(self) -> Sequence[JsonObject]:
        """The real system's tools, as recorded."""
        return self._spec.tools

    @property
    def transitions(self) -> tuple[Transition, ...]:
        """The steps so far, with provenance."""
        return self._transitions

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        """Start the task in its recorded initial state."""
        self._task, self._seed, self._transitions = task, seed or 0, ()
        return self._spec.first(task)

    def resume(self, task: Task, *, seed: int, transitions: Sequence[Transition]) -> None:
        """Continue an episode that another process began."""
        self._task, self._seed, self._transitions = task, seed, tuple(transitions)

    async def step(self, action: ToolCall) -> StepResult:
        """Predict one step and remember it. Raises EpisodeFinished, PredictionError, StoreError."""
        task = self._task
        if task is None:
            raise EpisodeFinished("no episode is running: call reset first")
        if self._transitions and self._transitions[-1].result.done:
            raise EpisodeFinished("the episode is over: reset starts a new one")
        state = self._transitions[-1].next_state if self._transitions else task.initial_state or ""
        demonstrations = await self._demonstrations(task, state, action)
        prediction = await self._model.predict(
            Query(
                spec=self._spec,
                task=task,
                history=self._transitions,
                state=state,
                action=action,
                demonstrations=demonstrations,
                seed=self._seed,
            )
        )
        succeeded = prediction.success and prediction.terminated
        result = StepResult(
            observation=prediction.observation,
            reward=1.0 if succeeded else 0.0,
            terminated=prediction.terminated,
            is_error=prediction.is_error,
            info=_info(prediction),
        )
        transition = Transition(
            state=state,
            action=action,
            result=result,
            next_state=prediction.next_state,
            reasoning=prediction.reasoning,
            provenance=prediction.provenance,
        )
        self._transitions = (*self._transitions, transition)
        return result

    async def _demonstrations(self, task: Task, state: str, action: ToolCall) -> tuple[Demonstration, ...]:
        """What the model is shown. Where the tools are several, the same call comes first, then the same tool.

        A recorded call that its tool's schema forbids is not shown for one that it allows: it was refused for its form.
        """
        shown = self._model.demonstrations
        if not shown:
            return ()
        if self._spec.text_argument is not None:
            return await self._buffer.nearest(self._retrieval(task, state, action, shown))
        found = await self._buffer.nearest(self._retrieval(task, state, action, shown * CANDIDATES))
        if not is_forbidden(self._spec, action):
            found = tuple(
                demonstration
                for demonstration in found
                if not (
                    demonstration.transition.result.is_error
                    and is_forbidden(self._spec, demonstration.transition.action)
                )
            )
        wanted = action.canonical()

        def of_another_call(demonstration: Demonstration) -> tuple[bool, bool]:
            recorded = demonstration.transition.action
            return recorded.canonical() != wanted, recorded.name != action.name

        return tuple(sorted(found, key=of_another_call)[:shown])

    def _retrieval(self, task: Task, state: str, action: ToolCall, k: int) -> Retrieval:
        return Retrieval(
            env=self._spec.name,
            state=state,
            action=action,
            k=k,
            history=self._transitions if self._knows_history else None,
            initial_state=task.initial_state or "",
            world=task.world if self._knows_history and self._spec.deterministic else "",
            exclude=self._episode_id,
            sources=GROUNDED | {Source.SYNTHETIC} if self._model.learns_from_dreams else GROUNDED,
            seed=self._seed if self._knows_history else _step_seed(self._seed, len(self._transitions)),
        )

    async def close(self) -> None:
        """Nothing to release: model and buffer belong to whoever made them."""


def _info(prediction: Prediction) -> JsonObject:
    info: JsonObject = {}
    if prediction.next_state != prediction.observation:
        info["state"] = prediction.next_state
    if prediction.content is not None:
        info["content"] = list(prediction.content)
    if prediction.structured is not None:
        info["structured"] = prediction.structured
    return info


def _step_seed(seed: int, step: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}:{step}".encode(), digest_size=7).digest(), "big")
