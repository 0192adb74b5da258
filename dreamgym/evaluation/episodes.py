"""Plays one episode of a player, dreamed or real, as an agent plays it, and decides whether it succeeded."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from dreamgym.dream.ending import is_unbounded, needs_invented_answers
from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.task_check import accomplished
from dreamgym.environment import Behaviour, Environment, EnvironmentSpec
from dreamgym.episode import play
from dreamgym.errors import EnvironmentUnavailable
from dreamgym.redaction import redact_by, redacted
from dreamgym.tools import Tools
from dreamgym.types import (
    JsonObject,
    Provenance,
    Source,
    StepResult,
    StopReason,
    Task,
    Tier,
    ToolCall,
    Trajectory,
    Transition,
)

UNANSWERED = StopReason.ERROR.value

WORKERS = 4
"""Number of episodes that are played at a time."""

One = TypeVar("One")
Result = TypeVar("Result")
Make = Callable[[], Environment]
"""Makes a new environment that nobody else uses."""
Progress = Callable[[int, int], None]
"""Called with the number of episodes that are done, and of all."""


class Door:
    """Wraps an environment as an agent sees it: a call that its tool's schema forbids is refused and not passed on.

    Args:
        environment: the wrapped environment.
        tools: the environment's tools.
        patient: if true, a call that gets no answer is a step without an answer, as for an agent that goes on;
            otherwise it ends the episode.
    """

    def __init__(self, environment: Environment, tools: Tools, *, patient: bool = False) -> None:
        self._environment = environment
        self._tools = tools
        self._patient = patient
        self._told: JsonObject = {}
        """The last state that the environment reported; empty if it reports none."""
        self._is_refused = False
        """True if the last call was not answered by the environment: refused here, or without an answer."""

    @property
    def tools(self) -> Sequence[JsonObject]:
        return self._environment.tools

    @property
    def provenance(self) -> Provenance | None:
        """How the last answer came about, if the environment reports it."""
        return Provenance(tier=Tier.CHECK) if self._is_refused else getattr(self._environment, "provenance", None)

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        return self._heard(await self._environment.reset(task, seed=seed))

    async def step(self, action: ToolCall) -> StepResult:
        """Act once; a call that is refused here changes nothing."""
        refusal = self._tools.refusal(action, action.canonical())
        self._is_refused = refusal is not None
        if refusal is not None:
            return StepResult(observation=refusal, is_error=True, info=self._told)
        try:
            return self._heard(await self._environment.step(action))
        except EnvironmentUnavailable as error:
            if not self._patient:
                raise
            self._is_refused = True
            return StepResult(observation=str(error), is_error=True, info={**self._told, "stop": UNANSWERED})

    async def close(self) -> None:
        await self._environment.close()

    def _heard(self, result: StepResult) -> StepResult:
        self._told = {"state": result.info["state"]} if "state" in result.info else {}
        return result


Keep = Callable[[str, Trajectory], None]
"""Called with each episode that was played for a measure: its name, `MEASURE/PLAYER/TASK`, and the episode."""


def forget(measure: str, episode: Trajectory) -> None:
    """Keep nothing."""


async def perform(
    spec: EnvironmentSpec,
    make: Make,
    task: Task,
    behaviour: Behaviour,
    *,
    seed: int,
    source: Source,
    patient: bool = False,
) -> Trajectory:
    """Play one task in a new environment. If the environment fails, even at its start, the error is kept as data.

    A real episode is redacted by the environment's rules, as recordings and the answers of a dream are.
    """
    environment = make()
    # a dream refuses as far as its own recordings show how
    tools = Tools(environment.spec if isinstance(environment, DreamEnvironment) else spec)
    try:
        played = await play(
            Door(environment, tools, patient=patient), task, behaviour, spec=spec, seed=seed, source=source
        )
    except EnvironmentUnavailable as error:  # the reset failed; `play` keeps a later failure
        played = Trajectory(
            id=str(uuid.uuid4()), task=task, source=source, stop_reason=StopReason.ERROR, error=str(error)
        )
    finally:
        await environment.close()
    return redacted(played, redact_by(spec.redact)) if source is Source.REAL else played


async def play_many(
    players: Iterable[Callable[[One], Awaitable[Result]]], episodes: Sequence[One], on_progress: Progress | None = None
) -> list[Result]:
    """Let the players share the episodes, each playing one after another. The first error stops all of them.

    Args:
        players: functions that play one episode; one that may run in parallel is given as `[function] * WORKERS`.
        episodes: the arguments of the players, one for each episode.
        on_progress: called after each episode.

    Returns:
        What the players returned, in the order of the episodes.
    """
    todo, results = iter(enumerate(episodes)), dict[int, Result]()

    async def share(player: Callable[[One], Awaitable[Result]]) -> None:
        for number, one in todo:
            results[number] = await player(one)
            if on_progress is not None:
                on_progress(len(results), len(episodes))

    try:
        async with asyncio.TaskGroup() as group:
            for player in players:
                group.create_task(share(player))
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [results[number] for number in range(len(episodes))]


def repeating(actions: Sequence[ToolCall]) -> Behaviour:
    """A behaviour that makes these calls, whatever is answered, until they or the episode end."""

    async def behaviour(start: StepResult, environment: Environment, seed: int) -> None:
        result = start
        for action in actions:
            if result.done:
                return
            result = await environment.step(action)

    return behaviour


def is_answered(trajectory: Trajectory) -> bool:
    """True if every call got an answer: the environment did not fail, and the simulator was never too unsure."""
    return trajectory.error is None and not any(map(_has_no_answer, trajectory.transitions))


def answered_steps(trajectory: Trajectory) -> tuple[Transition, ...]:
    """The steps that have an answer."""
    return tuple(step for step in trajectory.transitions if not _has_no_answer(step))


def has_succeeded(spec: EnvironmentSpec, trajectory: Trajectory, *, ends_itself: bool | None = None) -> bool | None:
    """True if an episode accomplished its task; None if a call was not answered, or success cannot be decided.

    Args:
        spec: the environment that was played, or dreamed.
        trajectory: the episode.
        ends_itself: the environment ends an accomplished task with a reward: a real episode that it ended without one
            failed. So did one that it did not end, unless a step left the end open. Otherwise the task's own check on
            the state that the episode ended in decides. An episode without a call accomplishes nothing. None: as `spec`
            says.
    """
    if not is_answered(trajectory):
        return None
    steps = trajectory.transitions
    if trajectory.success:
        return True
    has_ended = bool(steps) and steps[-1].result.terminated
    ends_itself = spec.is_over_when_done if ends_itself is None else ends_itself
    is_decided = (has_ended and ends_itself) or trajectory.final_reward is not None
    if is_decided and trajectory.source is Source.REAL:
        return False
    state = last_state(spec, trajectory)
    told = [(step.result.observation, step.provenance) for step in steps]
    verdict = accomplished(trajectory.task, state, [answer for answer, _ in told])
    if verdict is True and not steps:
        return False
    if verdict is True and (is_unbounded(steps) or needs_invented_answers(trajectory.task, state, told)):
        return None
    if verdict is not None or not ends_itself:
        return verdict
    return None if not has_ended and any(step.provenance.open_end for step in steps) else False


def last_state(spec: EnvironmentSpec, trajectory: Trajectory) -> str:
    """The explicit state that an episode ended in; empty if there is none, or a real environment does not report it."""
    if not trajectory.transitions:
        return spec.explicit(trajectory.task.initial_state or "")
    last = trajectory.transitions[-1]
    if trajectory.source is Source.REAL:  # its answer may also be JSON, but it is not a state
        return last.next_state if "state" in last.result.info else ""
    return spec.explicit(last.next_state)


def _has_no_answer(step: Transition) -> bool:
    return step.result.info.get("stop") in {StopReason.OUT_OF_SUPPORT, UNANSWERED}
