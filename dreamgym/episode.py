"""Plays one episode of one agent and records its trajectory.

This module does not deal with policies and tokens. If the environment fails, the trajectory carries the error.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from inspect import Parameter, Signature, signature

from dreamgym.environment import Behaviour, Environment, EnvironmentSpec, from_place
from dreamgym.errors import BudgetSpent, DreamGymError, EpisodeFinished, InvalidInput, UnknownName
from dreamgym.plugins import plugins
from dreamgym.types import (
    JsonObject,
    Provenance,
    Source,
    StepResult,
    StopReason,
    Task,
    ToolCall,
    Trajectory,
    Transition,
)

Agent = Callable[[str, str, str], Awaitable[str]]
"""An agent in any framework: `async (task, mcp_url, policy_url) -> answer`.

`load_agent` also accepts a function of `(task, mcp_url)`, for an agent that uses no chat model.
"""


def load_agent(name: str) -> Agent:
    """Load an agent by entry point, `module:function` or `file.py:function`.

    Raises:
        UnknownName: no agent has this name.
        InvalidInput: the function cannot be loaded, or takes other parameters than an agent.
    """
    found = plugins("dreamgym.agents")
    if name not in found and ":" not in name:
        raise UnknownName("agent", name, found, "module:function and path/to/file.py:function work too")
    agent: Callable[..., Awaitable[str]] = found[name].load() if name in found else from_place("agent", name)
    form = signature(agent)
    takes_model = _takes(form, 3)
    if not takes_model and not _takes(form, 2):
        raise InvalidInput(
            f"agent {name!r}: expected a function of (task, mcp_url, policy_url) or (task, mcp_url), got one of {form}"
        )

    async def awaited(*given: str) -> str:
        answer = agent(*given)
        if not isinstance(answer, Awaitable):
            raise InvalidInput(f"agent {name!r}: expected an async function; write `async def`")
        return await answer

    @wraps(agent)
    async def with_model(task: str, mcp_url: str, policy_url: str) -> str:
        return await awaited(task, mcp_url, policy_url)

    async def without_model(task: str, mcp_url: str, policy_url: str = "") -> str:
        return await awaited(task, mcp_url)

    return with_model if takes_model else without_model


def _takes(form: Signature, number: int) -> bool:
    try:
        form.bind(*[""] * number)
    except TypeError:
        return False
    return True


def check_policy_url(agent: Agent, policy_url: str | None) -> str:
    """The endpoint of the agent's chat model; an empty text for an agent that does not need one.

    Raises:
        InvalidInput: the agent needs a chat model, and there is no endpoint.
    """
    if policy_url is None and signature(agent).parameters.get("policy_url", _NEEDED).default is Parameter.empty:
        raise InvalidInput(
            "this agent needs a chat model: set OPENAI_BASE_URL to the model's endpoint. "
            "An agent without a chat model must be a function of (task, mcp_url)"
        )
    return policy_url or ""


_NEEDED = Parameter("policy_url", Parameter.POSITIONAL_OR_KEYWORD)


def user_message(task: Task, first: StepResult) -> str:
    """The user's message to an agent: the instruction and the first observation."""
    return f"{task.instruction}\n{first.observation}" if first.observation else task.instruction


class Recorder:
    """Wraps an environment: records the transitions and ends the episode at the step limit.

    Args:
        environment: the environment that the episode is played in.
        max_steps: the step with this number truncates the episode.
    """

    def __init__(self, environment: Environment, max_steps: int) -> None:
        self._environment = environment
        self._max_steps = max_steps
        self.transitions: list[Transition] = []
        self.task: Task | None = None
        self._state = ""

    @property
    def tools(self) -> Sequence[JsonObject]:
        return self._environment.tools

    @property
    def is_over(self) -> bool:
        """True if the last step ended the episode."""
        return bool(self.transitions) and self.transitions[-1].result.done

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        """Start an episode. A task without an initial state gets the one that the environment returns."""
        first = await self._environment.reset(task, seed=seed)
        self.task = task.model_copy(update={"initial_state": first.state})
        self.transitions, self._state = [], first.state
        return first

    async def step(self, action: ToolCall) -> StepResult:
        """Take one step and record it. Raises EpisodeFinished after the limit."""
        if self.is_over:
            raise EpisodeFinished("the episode is over: reset starts a new one")
        result = await self._environment.step(action)
        if not result.terminated and len(self.transitions) + 1 >= self._max_steps:
            result = result.model_copy(update={"truncated": True})
        self.transitions.append(Transition.of(self._state, action, result, self._provenance()))
        self._state = result.state
        return result

    def _provenance(self) -> Provenance | None:
        """Provenance of the last answer, if the environment reports it, as a dream does."""
        told = getattr(self._environment, "provenance", None)
        return told if isinstance(told, Provenance) else None

    async def close(self) -> None:
        await self._environment.close()

    def trajectory(self, source: Source, *, world: str = "", error: str | None = None) -> Trajectory:
        """The trajectory of the episode so far."""
        if self.task is None:
            raise EpisodeFinished("nothing was played: call reset first")
        last = self.transitions[-1].result if self.transitions else StepResult(observation="")
        reason = StopReason.FINISHED
        if error is not None:
            reason = StopReason.ERROR
        elif last.terminated:
            reason = StopReason.TERMINATED
        elif last.info.get("stop") == StopReason.OUT_OF_SUPPORT:
            reason = StopReason.OUT_OF_SUPPORT
        elif last.truncated:
            reason = StopReason.MAX_STEPS
        return Trajectory(
            id=str(uuid.uuid4()),
            task=self.task,
            transitions=tuple(self.transitions),
            source=source,
            stop_reason=reason,
            world=world,
            error=error,
        )


async def play(
    environment: Environment, task: Task, behaviour: Behaviour, *, spec: EnvironmentSpec, seed: int, source: Source
) -> Trajectory:
    """Let a behaviour play one task to its end. If the environment fails, the trajectory carries the error.

    A behaviour that asks for one more step after the end does not change how the episode ended. A real episode that its
    environment did not end has the reward of the environment's `verdict`, if it has one.
    """
    recorder = Recorder(environment, spec.max_steps)
    first = await recorder.reset(task, seed=seed)
    error = None
    try:
        await behaviour(first, recorder, seed)
    except BudgetSpent:
        raise
    except DreamGymError as failure:
        if not (recorder.is_over and isinstance(failure, EpisodeFinished)):
            error = f"{type(failure).__name__}: {failure}"
    played = recorder.trajectory(source, world=task.id if spec.deterministic else "", error=error)
    has_ended = bool(played.transitions) and played.transitions[-1].result.terminated
    if source is not Source.REAL or error is not None or has_ended or not hasattr(environment, "verdict"):
        return played
    return played.model_copy(update={"final_reward": float(environment.verdict())})
