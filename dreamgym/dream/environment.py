"""DreamEnvironment: an experience model and a replay buffer behind the Environment protocol.

An answer comes from the first tier that has one (dreamgym.dream.tiers). Whether a step ends its task, and what it is
worth, is decided in dreamgym.dream.ending, whichever tier answered.
"""

from __future__ import annotations

from collections.abc import Sequence

from dreamgym.dream.confidence import Calibration, check_calibration, features
from dreamgym.dream.ending import ended
from dreamgym.dream.grounding import Grounding
from dreamgym.dream.model import ExperienceModel, Part, Prediction, Query
from dreamgym.dream.tiers import tiers_of
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import EpisodeFinished, PredictionError
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.state import State
from dreamgym.types import JsonObject, Provenance, StepResult, StopReason, Task, Tier, ToolCall, Transition

ENDED = "The session has ended."
"""The observation of the last step of an episode that is out of support."""


class DreamEnvironment:
    """Plays one episode of a simulated environment.

    Args:
        spec: what is simulated.
        model: predicts each step.
        buffer: grounds each prediction in recorded transitions.
        episode_id: the running episode, which retrieval never returns.
        as_of: a watermark of the buffer; what was stored after it is not there. Episodes of one group share it, so that
            they differ by the policy alone.
        without: parts of the method that are left out, to show what they are worth.
        calibration: gives each prediction of the model its confidence.
        min_confidence: an episode ends, out of support, where a prediction has less.
        k: so many recorded transitions are shown to the model; None: as many as it wants.

    Raises:
        InvalidInput: the calibration is none of this model and environment.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        model: ExperienceModel,
        buffer: ReplayBuffer,
        *,
        episode_id: str = "",
        as_of: int | None = None,
        without: frozenset[Part] = frozenset(),
        calibration: Calibration | None = None,
        min_confidence: float = 0.0,
        k: int | None = None,
    ) -> None:
        check_calibration(calibration, min_confidence, model=model.name, env=spec.name)
        self._spec = spec
        self._model = model
        shown = model.demonstrations if k is None else k
        self._tiers = tiers_of(spec, model, shown=shown, without=without)
        self._grounding = Grounding(
            spec,
            buffer,
            wanted=shown,
            learns_from_dreams=model.learns_from_dreams,
            episode_id=episode_id,
            as_of=as_of,
            without=without,
        )
        self._without = without
        self._calibration = calibration
        self._min_confidence = min_confidence
        self._task: Task | None = None
        self._seed = 0
        self._transitions: tuple[Transition, ...] = ()
        self.asked: tuple[Query, Prediction] | None = None
        """The last step's question and what the model answered, for those who measure it; None where it was not asked
        or had no answer. All that was found is in the question, not only what the model was shown."""

    @property
    def tools(self) -> Sequence[JsonObject]:
        """The real system's tools, as recorded."""
        return self._spec.tools

    @property
    def transitions(self) -> tuple[Transition, ...]:
        """The steps so far, with provenance."""
        return self._transitions

    @property
    def provenance(self) -> Provenance | None:
        """How the last answer came about; None before the first."""
        return self._transitions[-1].provenance if self._transitions else None

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        """Start the task in its recorded initial state."""
        self._task, self._seed, self._transitions = task, seed or 0, ()
        return self._spec.first(task)

    def resume(self, task: Task, *, seed: int, transitions: Sequence[Transition]) -> None:
        """Continue an episode that another process began."""
        self._task, self._seed, self._transitions = task, seed, tuple(transitions)

    async def step(self, action: ToolCall) -> StepResult:
        """Predict one step and remember it. Raises EpisodeFinished, PredictionError, StoreError."""
        query = await self._query(action)
        self.asked = None
        for tier in self._tiers:
            prediction = await tier.answer(query)
            if prediction is not None:
                break
        else:
            raise PredictionError(f"no tier of environment {self._spec.name!r} answers {action.name!r}")
        if tier.infers:
            self.asked = query, prediction
            if self._calibration is not None and prediction.provenance.tier is not Tier.RECORDED:
                confidence = self._calibration.confidence(features(query, prediction))
                prediction = prediction.noted(confidence=confidence)
                if confidence < self._min_confidence:  # nobody can tell the rest: nothing happened, nothing is made up
                    stop: JsonObject = {"state": query.state.text, "stop": StopReason.OUT_OF_SUPPORT.value}
                    over = StepResult(observation=ENDED, truncated=True, is_error=True, info=stop)
                    return self._remember(query, prediction, over)
        prediction = await ended(query, prediction, self._model)
        return self._remember(query, prediction, _result(prediction))

    async def _query(self, action: ToolCall) -> Query:
        task = self._task
        if task is None:
            raise EpisodeFinished("no episode is running: call reset first")
        if self._transitions and self._transitions[-1].result.done:
            raise EpisodeFinished("the episode is over: reset starts a new one")
        state = self._transitions[-1].next_state if self._transitions else task.initial_state or ""
        return Query(
            spec=self._spec,
            task=task,
            history=self._transitions,
            state=State.of(state, self._spec.state),
            action=action,
            demonstrations=await self._grounding.find(task, self._transitions, state, action, seed=self._seed),
            seed=self._seed,
            without=self._without,
        )

    def _remember(self, query: Query, prediction: Prediction, result: StepResult) -> StepResult:
        transition = Transition(
            state=query.state.text,
            action=query.action,
            result=result,
            next_state=result.state,
            reasoning=prediction.reasoning,
            provenance=prediction.provenance,
        )
        self._transitions = (*self._transitions, transition)
        return result

    async def close(self) -> None:
        """Nothing to release: model and buffer belong to whoever made them."""


def _result(prediction: Prediction) -> StepResult:
    info: JsonObject = {}
    if prediction.next_state != prediction.observation:
        info["state"] = prediction.next_state
    if prediction.provenance.open_end:
        info["open_end"] = True
    if prediction.content is not None:
        info["content"] = list(prediction.content)
    if prediction.structured is not None:
        info["structured"] = prediction.structured
    return StepResult(
        observation=prediction.observation,
        reward=1.0 if prediction.success and prediction.terminated else 0.0,
        terminated=prediction.terminated,
        is_error=prediction.is_error,
        info=info,
    )
