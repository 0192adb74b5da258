"""Where an episode's world comes from: dreamed, or the real thing.

The rest of the server cannot tell the two apart. A world must be restorable from the stored steps alone, because the
next call of an episode may reach another process than the last one did.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from dreamgym.dream.confidence import Calibration, check_calibration
from dreamgym.dream.ending import is_unbounded
from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.model import ExperienceModel, Judge, Part
from dreamgym.dream.task_check import accomplished
from dreamgym.environment import Environment, EnvironmentSpec
from dreamgym.errors import EnvironmentUnavailable, MalformedAnswer
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.episode_store import Episode
from dreamgym.types import Source, StepResult, ToolCall, Transition
from dreamgym_server.redaction_gate import Admission

logger = logging.getLogger(__name__)


class WorldChanged(EnvironmentUnavailable):
    """The world did not come back as the episode left it; trying again would not help."""


class Worlds(Protocol):
    """Everything that the server needs to know of one environment."""

    @property
    def spec(self) -> EnvironmentSpec:
        """The description that agents and trainers are shown."""

    @property
    def source(self) -> Source:
        """What trajectories played here are stored as."""

    @property
    def admission(self) -> Admission:
        """Takes out of what comes in what was taken out of the recordings."""

    def admitted(self, action: ToolCall) -> tuple[ToolCall, str]:
        """A call as it is played, and the canonical form in which it is remembered."""

    async def watermark(self, group: str) -> int | None:
        """What the worlds of a group know of; None where that cannot grow meanwhile. No name is a group of one."""

    def create(self, episode_id: str, as_of: int | None = None) -> Environment:
        """A new world, not yet reset, as of a watermark."""

    async def restore(self, episode: Episode) -> Environment:
        """The world of an episode as its last step left it.

        Raises:
            WorldChanged: the world does not come back the same.
        """

    def transition(
        self, environment: Environment, episode: Episode, action: ToolCall, result: StepResult
    ) -> Transition:
        """What is remembered of the step that `environment` has just taken."""

    async def judge(self, episode: Episode, answer: str | None) -> bool | None:
        """Whether the steps, with the final answer if there is one, accomplish the task; None if nobody can tell.

        The task's own check decides if it has one; a judge that disagrees is logged.

        Raises:
            PredictionError: the judge cannot be reached. One that answers rubbish gives no verdict, which is logged.
        """


class DreamWorlds:
    """Simulated worlds of one environment; the other arguments are those of DreamEnvironment."""

    source = Source.SYNTHETIC

    def __init__(
        self,
        spec: EnvironmentSpec,
        model: ExperienceModel,
        buffer: ReplayBuffer,
        *,
        without: frozenset[Part] = frozenset(),
        calibration: Calibration | None = None,
        min_confidence: float = 0.0,
    ) -> None:
        check_calibration(calibration, min_confidence, model=model.name, env=spec.name)
        self.spec = spec
        self.admission = Admission(spec)
        self._model = model
        self._buffer = buffer
        self._without = without
        self._calibration = calibration
        self._min_confidence = min_confidence

    async def watermark(self, group: str) -> int:
        """How far the buffer had got when the first episode of the group began."""
        return await self._buffer.watermark(self.spec.name, group)

    def create(self, episode_id: str, as_of: int | None = None) -> DreamEnvironment:
        return DreamEnvironment(
            self.spec,
            self._model,
            self._buffer,
            episode_id=episode_id,
            as_of=as_of,
            without=self._without,
            calibration=self._calibration,
            min_confidence=self._min_confidence,
        )

    def admitted(self, action: ToolCall) -> tuple[ToolCall, str]:
        """A dream knows the redacted world only."""
        action = self.admission.call(action)
        return action, action.canonical()

    async def restore(self, episode: Episode) -> DreamEnvironment:
        """A dream is its history."""
        environment = self.create(episode.id, episode.as_of)
        environment.resume(episode.task, seed=episode.seed, transitions=episode.transitions)
        return environment

    def transition(
        self, environment: Environment, episode: Episode, action: ToolCall, result: StepResult
    ) -> Transition:
        """The dream remembers its own steps, with the reasoning behind them."""
        assert isinstance(environment, DreamEnvironment)
        return environment.transitions[-1]

    async def judge(self, episode: Episode, answer: str | None) -> bool | None:
        """The check's verdict, or the experience model's if it is a judge.

        Without either, an environment that ends its tasks itself has not ended this one, unless an end was left open.
        A check that believes a state which rests on a model's word needs the judge's word too.
        """
        checked = _checked(episode) if Part.CHECKS not in self._without else None
        is_doubtful = checked is True and is_unbounded(episode.transitions)
        if not isinstance(self._model, Judge):
            is_open = any(step.provenance.open_end for step in episode.transitions)
            is_missed = checked is None and self.spec.is_over_when_done and not is_open
            return None if is_doubtful else False if is_missed else checked
        if answer is None and checked is not None and not is_doubtful:
            return checked
        try:
            judged = await self._model.judge(self.spec, episode.task, episode.transitions, answer, seed=episode.seed)
        except MalformedAnswer as error:
            logger.warning("episode %s: no verdict on its end: %s", episode.id, error)
            return None if is_doubtful else checked
        if checked is None:
            return judged
        if is_doubtful:
            return judged or None
        if judged is not checked:
            logger.warning("episode %s: the judge says %s, the task's own check %s", episode.id, judged, checked)
        return checked


class RealWorlds:
    """Real worlds of one environment; `create` makes one that nobody else uses."""

    source = Source.REAL

    def __init__(self, spec: EnvironmentSpec, create: Callable[[], Environment]) -> None:
        self.spec = spec
        self.admission = Admission(spec)
        self._create = create

    async def watermark(self, group: str) -> None:
        """Reality knows nothing of the buffer."""

    def create(self, episode_id: str, as_of: int | None = None) -> Environment:
        return self._create()

    def admitted(self, action: ToolCall) -> tuple[ToolCall, str]:
        """Reality is given what was said."""
        return action, self.admission.call(action).canonical()

    async def restore(self, episode: Episode) -> Environment:
        """Play the stored actions again and insist on the same answers."""
        environment = self._create()
        try:
            first = await environment.reset(episode.task, seed=episode.seed)
            _same(episode, 0, episode.initial, first)
            for step, transition in enumerate(episode.transitions, start=1):
                _same(episode, step, transition.result, await environment.step(transition.action))
        except BaseException:
            await environment.close()
            raise
        return environment

    def transition(
        self, environment: Environment, episode: Episode, action: ToolCall, result: StepResult
    ) -> Transition:
        """States are what the environment says they are."""
        last = episode.transitions[-1].next_state if episode.transitions else episode.initial.state
        return self.admission.transition(Transition.of(last, action, result))

    async def judge(self, episode: Episode, answer: str | None) -> bool | None:
        """The check's verdict. Without one, an environment that ends its tasks itself has not ended this one."""
        checked = _checked(episode)
        return False if checked is None and self.spec.is_over_when_done else checked


def _checked(episode: Episode) -> bool | None:
    """What the task's own check says of the episode."""
    last = episode.transitions[-1].next_state if episode.transitions else episode.initial.state
    return accomplished(episode.task, last, [transition.result.observation for transition in episode.transitions])


def _same(episode: Episode, step: int, stored: StepResult, replayed: StepResult) -> None:
    if stored.observation != replayed.observation:
        raise WorldChanged(
            f"episode {episode.id!r} could not be restored: step {step} answered {stored.observation[:200]!r} before "
            f"and {replayed.observation[:200]!r} when played again"
        )
