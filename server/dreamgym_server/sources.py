"""The environments that episodes are played in: dreamed or real.

The rest of the server treats both alike. An environment must be restorable from the stored steps alone, because the
next call of an episode may reach another process than the last one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dreamgym.content import storable_answer
from dreamgym.dream.confidence import Calibration, check_calibration
from dreamgym.dream.ending import is_unbounded, needs_invented_answers
from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.model import ExperienceModel, Judge, Part
from dreamgym.dream.task_check import accomplished
from dreamgym.environment import Environment, EnvironmentSpec
from dreamgym.errors import EnvironmentUnavailable, MalformedAnswer, in_one_line
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.episode_store import Episode
from dreamgym.spans import TimedSpan, timed
from dreamgym.types import Source, StepResult, Task, ToolCall, Transition

if TYPE_CHECKING:
    from dreamgym.redaction import Redactor

logger = logging.getLogger(__name__)


class WorldChanged(EnvironmentUnavailable):
    """The stored steps cannot be played again in the real environment, or answer differently; a retry does not help."""


class Admission:
    """Redacts incoming calls, tasks and answers by the rules of one environment. Without rules it changes nothing.

    A dream of redacted recordings knows placeholders only. So a real address becomes its placeholder before anything is
    stored, logged or shown to a model. A real environment gets the original call, and a redacted copy is stored. The
    task it gets redacted, because `restore` has no other.
    """

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._redactor: Redactor | None = None
        if spec.redact is not None:
            from dreamgym.redaction import Redactor, load_key

            self._redactor = Redactor(spec.redact, key=load_key())
            self._redactor.text("loads the rules before the first episode")

    def call(self, action: ToolCall) -> ToolCall:
        """A call as it may be stored."""
        if self._redactor is None:
            return action
        said = {"arguments": action.arguments, "answers": action.answers}
        with TimedSpan("redaction"):
            clean = {key: self._redactor.value(said[key]) for key in said}
        return ToolCall.model_validate({"name": action.name, **clean})

    def mark(self, action: ToolCall) -> str:
        """Letters that are equal for equal calls, and tell nothing of a call to those without this user's key."""
        return "" if self._redactor is None else self._redactor.mark(action.canonical())

    def task(self, task: Task) -> Task:
        """A task from a request, redacted; its id and its environment stay."""
        if self._redactor is None:
            return task
        from dreamgym.redaction import redacted_task

        return redacted_task(task, self._redactor.value)

    def result(self, result: StepResult) -> StepResult:
        """A first observation as it may be stored."""
        if self._redactor is None:
            return result
        with TimedSpan("redaction"):
            clean = self._redactor.value(result.model_dump(mode="json", include={"observation", "info"}))
        assert isinstance(clean, dict)
        return StepResult.model_validate({**result.model_dump(), **clean})

    def text(self, text: str) -> str:
        """A final answer or an error message, redacted."""
        return text if self._redactor is None else self._redactor.text(text)

    def transition(self, step: Transition) -> Transition:
        """A step of a real environment as it may be stored."""
        redactor = self._redactor
        if redactor is None:
            return step
        row = step.model_dump(mode="json")
        places = (
            *((row, "state"), (row["action"], "arguments"), (row["action"], "answers")),
            *((row["result"], "observation"), (row["result"], "info"), (row, "next_state")),
        )
        said = [(part, name) for part, name in places if name in part]  # a call without answers has no such field
        # redacted as one value, so that a secret found by its name in the call is removed from the answer too
        with TimedSpan("redaction"):
            clean = redactor.value([part[name] for part, name in said])
        assert isinstance(clean, list)
        for (part, name), value in zip(said, clean, strict=True):
            part[name] = value
        return Transition.model_validate(row)


class AdmittedCall(NamedTuple):
    """A call of an agent, as the environment gets it and as it is stored."""

    asked: ToolCall
    """The call as it arrived."""
    said: str
    """Its canonical text."""
    action: ToolCall
    """The call as it is played."""
    recorded: str
    """Canonical text of the call as a recording has it: redacted."""
    key: str
    """Equal for a call and its resend, and in a real environment different for different calls."""

    @classmethod
    def unchanged(cls, asked: ToolCall, said: str) -> AdmittedCall:
        """A call in which nothing is redacted."""
        return cls(asked, said, asked, said, said)


def key_of(step: Transition) -> str:
    """The key of the call of a stored step."""
    mark = step.result.info.get("redacted", "")
    return f"{step.action.canonical()}{mark}"


class Worlds(Protocol):
    """One environment as the server uses it: it creates, restores and judges episodes of it."""

    @property
    def spec(self) -> EnvironmentSpec:
        """The description that agents and trainers see."""

    @property
    def source(self) -> Source:
        """The source under which trajectories of this environment are stored."""

    @property
    def keeps(self) -> bool:
        """True if finished episodes go to the replay buffer."""

    @property
    def admission(self) -> Admission:
        """Redacts incoming data by the rules with which the recordings were redacted."""

    def admitted(self, asked: ToolCall, said: str) -> AdmittedCall:
        """A call, of which `said` is the canonical text, as it is played and stored."""

    async def watermark(self, group: str) -> int | None:
        """The buffer's watermark that the episodes of a group share; None for a real environment.

        An empty name stands for a group of one episode.
        """

    def create(self, episode_id: str, as_of: int | None = None) -> Environment:
        """A new environment, not yet reset. A dream sees the buffer as of the watermark."""

    async def restore(self, episode: Episode) -> Environment:
        """The environment of an episode as its last step left it.

        Raises:
            WorldChanged: the real environment answers differently this time, or its calls were stored redacted.
        """

    def transition(
        self, environment: Environment, episode: Episode, action: ToolCall, result: StepResult
    ) -> Transition:
        """The transition to store for the step that `environment` has just taken."""

    async def judge(self, episode: Episode, answer: str | None) -> bool | None:
        """True if the steps and the final answer, if there is one, accomplish the task; None if there is no verdict.

        The task's own check decides if it has one; a judge that disagrees is logged.

        Raises:
            PredictionError: the judge cannot be reached. An unusable answer of the judge raises nothing: it is logged
                and counts as no verdict.
        """


class DreamWorlds:
    """Simulated episodes of one environment. The other arguments are those of DreamEnvironment."""

    source = Source.SYNTHETIC
    keeps = True

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
        self.model = model
        self._buffer = buffer
        self._without = without
        self._calibration = calibration
        self._min_confidence = min_confidence

    async def watermark(self, group: str) -> int:
        """The buffer's position when the first episode of the group began."""
        return await self._buffer.watermark(self.spec.name, group)

    def create(self, episode_id: str, as_of: int | None = None) -> DreamEnvironment:
        return DreamEnvironment(
            self.spec,
            self.model,
            self._buffer,
            episode_id=episode_id,
            as_of=as_of,
            without=self._without,
            calibration=self._calibration,
            min_confidence=self._min_confidence,
            timed=True,
        )

    def admitted(self, asked: ToolCall, said: str) -> AdmittedCall:
        """The redacted call: a dream knows redacted recordings only."""
        clean = self.admission.call(asked)
        recorded = said if clean is asked else clean.canonical()
        return AdmittedCall(asked, said, clean, recorded, recorded)

    async def restore(self, episode: Episode) -> DreamEnvironment:
        """A dream that continues from the stored steps; nothing is played again."""
        environment = self.create(episode.id, episode.as_of)
        environment.resume(episode.task, seed=episode.seed, transitions=episode.transitions)
        return environment

    def transition(
        self, environment: Environment, episode: Episode, action: ToolCall, result: StepResult
    ) -> Transition:
        """The dream's own transition, with its reasoning, provenance and time."""
        assert isinstance(environment, DreamEnvironment)
        return environment.transitions[-1]

    @timed("judge")
    async def judge(self, episode: Episode, answer: str | None) -> bool | None:
        """The verdict of the task's check, else of the experience model if it is a judge.

        Without both, the verdict is False if the environment ends its tasks itself, because it has not ended this one,
        unless a step left its end open. If a check accepts a state or an answer that rests on a model's word, the judge
        must agree.
        """
        has_state = self.spec.state is not None
        checked = _checked(episode, has_state=has_state) if Part.CHECKS not in self._without else None
        told = [(step.result.observation, step.provenance) for step in episode.transitions]
        is_doubtful = checked is True and (
            is_unbounded(episode.transitions)
            or needs_invented_answers(episode.task, _state(episode) if has_state else "", told)
        )
        if not isinstance(self.model, Judge):
            is_open = any(step.provenance.open_end for step in episode.transitions)
            is_missed = checked is None and self.spec.is_over_when_done and not is_open
            return None if is_doubtful else False if is_missed else checked
        if answer is None and checked is not None and not is_doubtful:
            return checked
        try:
            judged = await self.model.judge(self.spec, episode.task, episode.transitions, answer, seed=episode.seed)
        except MalformedAnswer as error:
            logger.warning("episode %s: the judge gave no usable verdict: %s", episode.id, in_one_line(error))
            return None if is_doubtful else checked
        if checked is None:
            return judged
        if is_doubtful:
            return judged or None
        if judged is not checked:
            logger.warning(
                "episode %s: the judge says %s, the task's own check says %s; the check counts",
                episode.id,
                judged,
                checked,
            )
        return checked


class RealWorlds:
    """Real episodes of one environment.

    Args:
        spec: description of the environment.
        create: makes an environment that nobody else uses.
        keeps: store the episodes as recordings, from which dreams are then made.
    """

    source = Source.REAL

    def __init__(self, spec: EnvironmentSpec, create: Callable[[], Environment], *, keeps: bool = True) -> None:
        self.spec = spec
        self.keeps = keeps
        self.admission = Admission(spec)
        self._create = create

    async def watermark(self, group: str) -> None:
        """None: a real environment does not use the buffer."""

    def create(self, episode_id: str, as_of: int | None = None) -> Environment:
        return self._create()

    def admitted(self, asked: ToolCall, said: str) -> AdmittedCall:
        """The original call. Two calls that are stored alike, such as logins with two PINs, have different keys."""
        clean = self.admission.call(asked)
        if clean == asked:
            return AdmittedCall.unchanged(asked, said)
        recorded = clean.canonical()
        return AdmittedCall(asked, said, asked, recorded, recorded + self.admission.mark(asked))

    async def restore(self, episode: Episode) -> Environment:
        """Play the stored actions again.

        Raises:
            WorldChanged: an answer differs, a call was stored redacted, or the calls would be made a second time on a
                system that goes on (`begins_anew = False` of the environment).
        """
        if any("redacted" in transition.result.info for transition in episode.transitions):
            raise WorldChanged(
                f"episode {episode.id!r} could not be restored: its calls were stored redacted, so they cannot be "
                "played again"
            )
        environment = self._create()
        if episode.transitions and not getattr(environment, "begins_anew", True):
            raise WorldChanged(
                f"episode {episode.id!r} could not be restored: the real system goes on, so its calls would be made "
                "twice"
            )
        try:
            first = storable_answer(await environment.reset(episode.task, seed=episode.seed))
            _same(episode, 0, episode.initial, self.admission.result(first))
            for step, transition in enumerate(episode.transitions, start=1):
                answer = storable_answer(await environment.step(transition.action))
                again = self.admission.transition(Transition.of(transition.state, transition.action, answer))
                _same(episode, step, transition.result, again.result)
        except BaseException:
            await environment.close()
            raise
        return environment

    def transition(
        self, environment: Environment, episode: Episode, action: ToolCall, result: StepResult
    ) -> Transition:
        """A transition to the state that the environment reported, redacted. A redacted call leaves its mark."""
        last = episode.transitions[-1].next_state if episode.transitions else episode.initial.state
        step = self.admission.transition(Transition.of(last, action, result))
        if step.action == action:
            return step
        noted = step.result.model_copy(update={"info": {**step.result.info, "redacted": self.admission.mark(action)}})
        return step.model_copy(update={"result": noted})

    async def _asks_for_more(self) -> bool:
        fresh = self._create()
        await fresh.close()
        return hasattr(fresh, "verdict")

    async def judge(self, episode: Episode, answer: str | None) -> bool | None:
        """The check's verdict.

        Without a check it is False if the environment ends its tasks itself, because it has not ended this one. If the
        environment asks for more than the check (`verdict` of the environment), it must agree with a success. None if
        it must, but the episode cannot be played again.
        """
        last = episode.transitions[-1].result if episode.transitions else episode.initial
        checked = _checked(episode, has_state="state" in last.info)
        if checked and await self._asks_for_more():
            try:
                again = await self.restore(episode)
            except WorldChanged as error:
                logger.warning("episode %s: it is not known if it is a success: %s", episode.id, in_one_line(error))
                return None
            try:
                return bool(again.verdict())  # type: ignore[attr-defined]  # all environments of one adapter are alike
            finally:
                await again.close()
        return False if checked is None and self.spec.is_over_when_done else checked


def _checked(episode: Episode, *, has_state: bool) -> bool | None:
    """The verdict of the task's own check; None if it cannot decide. An episode without a call accomplishes nothing.

    Args:
        has_state: the last result has a state. Otherwise its observation stands for it, which may be JSON too.
    """
    answers = [transition.result.observation for transition in episode.transitions]
    checked = accomplished(episode.task, _state(episode) if has_state else "", answers)
    return checked and bool(episode.transitions)


def _state(episode: Episode) -> str:
    return episode.transitions[-1].next_state if episode.transitions else episode.initial.state


def _same(episode: Episode, step: int, stored: StepResult, replayed: StepResult) -> None:
    if stored.observation != replayed.observation:
        raise WorldChanged(
            f"episode {episode.id!r} could not be restored: step {step} answered {stored.observation[:200]!r} before "
            f"and {replayed.observation[:200]!r} when played again"
        )
