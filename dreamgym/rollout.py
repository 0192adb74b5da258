"""One agent, one task, one trajectory; and a group of them at once, token by token.

Knows no trainer. A rollout that fails is data: its error is kept and its reward is None, so that it never enters a
gradient and never takes its group down.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from dreamgym.environment import Behaviour, Environment, EnvironmentSpec
from dreamgym.errors import DreamGymError, EpisodeFinished, InvalidInput, UnknownName
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

Agent = Callable[[str, str, str], Awaitable[str]]
"""`async (task, mcp_url, policy_url) -> answer`: any agent, in any framework."""


def load_agent(name: str) -> Agent:
    """An agent by entry point, `module:function` or `file.py:function`. Raises UnknownName listing the registered."""
    found = {point.name: point for point in entry_points(group="dreamgym.agents")}
    if name in found:
        agent: Agent = found[name].load()
        return agent
    place, _, function = name.rpartition(":")
    if not place:
        raise UnknownName("agent", name, found, "module:function and path/to/file.py:function work too")
    try:
        if place.endswith(".py"):
            description = importlib.util.spec_from_file_location(Path(place).stem, place)
            assert description is not None
            assert description.loader is not None
            module = importlib.util.module_from_spec(description)
            description.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
        agent = getattr(module, function)
    except (ImportError, OSError, AttributeError) as error:
        raise InvalidInput(f"agent {name!r} cannot be loaded: {error}") from error
    return agent


def user_message(task: Task, first: StepResult) -> str:
    """What the user would type: the instruction, and what there is to see at the start."""
    return f"{task.instruction}\n{first.observation}" if first.observation else task.instruction


class Recorder:
    """Wraps an environment: keeps the transitions and ends the episode at the step limit.

    Args:
        environment: where the episode is played.
        max_steps: the step that is reached truncates the episode.
    """

    def __init__(self, environment: Environment, max_steps: int) -> None:
        self._environment = environment
        self._max_steps = max_steps
        self.transitions: list[Transition] = []
        self.task: Task | None = None
        self._state = ""

    @property
    def tools(self) -> Sequence[JsonObject]:
        """The wrapped environment's tools."""
        return self._environment.tools

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        """Start over; a task without a known initial state learns it here."""
        first = await self._environment.reset(task, seed=seed)
        self.task = task.model_copy(update={"initial_state": first.state})
        self.transitions, self._state = [], first.state
        return first

    async def step(self, action: ToolCall) -> StepResult:
        """Act and remember. Raises EpisodeFinished after the limit."""
        if self.transitions and self.transitions[-1].result.done:
            raise EpisodeFinished("the episode is over: reset starts a new one")
        result = await self._environment.step(action)
        if not result.terminated and len(self.transitions) + 1 >= self._max_steps:
            result = result.model_copy(update={"truncated": True})
        self.transitions.append(
            Transition(
                state=self._state,
                action=action,
                result=result,
                next_state=result.state,
                provenance=Provenance(tier=Tier.REAL),
            )
        )
        self._state = result.state
        return result

    async def close(self) -> None:
        """Close the wrapped environment."""
        await self._environment.close()

    def trajectory(self, source: Source, *, world: str = "", error: str | None = None) -> Trajectory:
        """The episode so far."""
        if self.task is None:
            raise EpisodeFinished("nothing was played: call reset first")
        last = self.transitions[-1].result if self.transitions else StepResult(observation="")
        reason = StopReason.FINISHED
        if error is not None:
            reason = StopReason.ERROR
        elif last.terminated:
            reason = StopReason.TERMINATED
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
    """Let a behaviour play one task to its end. An environment that fails leaves a trajectory that says so."""
    recorder = Recorder(environment, spec.max_steps)
    first = await recorder.reset(task, seed=seed)
    error = None
    try:
        await behaviour(first, recorder, seed)
    except DreamGymError as failure:
        error = f"{type(failure).__name__}: {failure}"
    return recorder.trajectory(source, world=task.id if spec.deterministic else "", error=error)


@dataclass(frozen=True)
class Generation:
    """What a policy sampled for one prompt."""

    ids: tuple[int, ...]
    """Token ids up to and including the first end-of-turn token, where one was sampled."""
    logprobs: tuple[float, ...]
    """Log-probability of each id under the distribution it was sampled from; same length."""


class Policy(Protocol):
    """The policy as the rollout sees it: token ids in, sampled token ids out."""

    def generate(self, prompts_B: Sequence[Sequence[int]], *, seed: int) -> list[Generation]:
        """Sample one continuation per prompt; same prompts, seed and weights, same answer. Blocking."""


class Codec(Protocol):
    """Turns words into tokens and back. What the environment says is encoded once and never again."""

    def start(self, text: str) -> list[int]:
        """The conversation up to where the policy begins to speak."""

    def turn(self, text: str, *, ended: bool) -> list[int]:
        """What the environment said, up to where the policy speaks again; `ended`: the policy closed its turn."""

    def decode(self, ids: Sequence[int]) -> str:
        """The policy's words, without special tokens."""

    def ended(self, ids: Sequence[int]) -> bool:
        """The policy closed its turn with the end-of-turn token."""


@dataclass
class Rollout:
    """One episode as tokens. `completion_ids`, `mask` and `logprobs` have the same length."""

    task: Task
    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    """1 where the policy sampled the token, 0 where the environment spoke."""
    logprobs: list[float] = field(default_factory=list)
    """0.0 where the environment spoke."""
    actions: list[str] = field(default_factory=list)
    refused: int = 0
    """Actions that the environment answered with an error."""
    success: bool = False
    total_reward: float = 0.0
    error: str | None = None

    @property
    def reward(self) -> float | None:
        """Outcome reward; None for an episode that failed, which must stay out of the gradient."""
        return None if self.error is not None else self.total_reward

    def _hear(self, said: Sequence[int] | None, max_tokens: int) -> bool:
        """Take in what the environment said; False where the episode is over or has no room left."""
        if said is None or len(self.prompt_ids) + len(self.completion_ids) + len(said) >= max_tokens:
            return False
        self._append(said, [0.0] * len(said), 0)
        return True

    def _append(self, ids: Sequence[int], logprobs: Sequence[float], mask: int) -> None:
        self.completion_ids += ids
        self.logprobs += logprobs
        self.mask += [mask] * len(ids)


def parse_action(spec: EnvironmentSpec, text: str) -> ToolCall:
    """The tool call that a policy's words mean. Raises InvalidInput, to be shown to the policy."""
    if spec.text_argument is not None:
        tool, argument = spec.text_argument
        return ToolCall(name=tool, arguments={argument: text})
    try:
        call = json.loads(text)
        return ToolCall(name=call["name"], arguments=call.get("arguments", {}))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidInput('not a tool call: expected {"name": …, "arguments": {…}} as JSON') from error


async def rollout(
    policy: Policy,
    codec: Codec,
    spec: EnvironmentSpec,
    environments: Sequence[Environment],
    tasks: Sequence[Task],
    *,
    seeds: Sequence[int],
    sampling_seed: int,
    max_tokens: int = 4096,
) -> list[Rollout]:
    """Play `tasks[i]` in `environments[i]`, all at once: one batched generation per turn, then all steps concurrently.

    Args:
        seeds: what each environment is reset with; equal within a group, so that the policy alone makes the difference.
        sampling_seed: fixes every sampled token.
        max_tokens: an episode whose tokens exceed this is cut there.
    """

    async def begin(environment: Environment, task: Task, seed: int) -> Rollout:
        try:
            first = await environment.reset(task, seed=seed)
        except DreamGymError as failure:
            return Rollout(task, codec.start(task.instruction), error=f"{type(failure).__name__}: {failure}")
        return Rollout(task, codec.start(user_message(task, first)))

    episodes = await asyncio.gather(*map(begin, environments, tasks, seeds))
    live = [i for i, episode in enumerate(episodes) if episode.error is None]
    for turn in range(spec.max_steps):
        if not live:
            break
        prompts_B = [episodes[i].prompt_ids + episodes[i].completion_ids for i in live]
        sampled_B = await asyncio.to_thread(policy.generate, prompts_B, seed=sampling_seed * 1_000 + turn)
        last_turn = turn + 1 == spec.max_steps
        said_B = await asyncio.gather(
            *(
                _act(codec, spec, environments[i], episodes[i], sampled)
                for i, sampled in zip(live, sampled_B, strict=True)
            )
        )
        live = [
            i for i, said in zip(live, said_B, strict=True) if not last_turn and episodes[i]._hear(said, max_tokens)
        ]
    return episodes


async def _act(
    codec: Codec, spec: EnvironmentSpec, environment: Environment, episode: Rollout, sampled: Generation
) -> list[int] | None:
    """One turn; the tokens of what the environment said, or None where that was the end."""
    text = codec.decode(sampled.ids)
    episode._append(sampled.ids, sampled.logprobs, 1)
    episode.actions.append(text)
    try:
        result = await environment.step(parse_action(spec, text))
    except InvalidInput as failure:
        result = StepResult(observation=str(failure), is_error=True)
    except DreamGymError as failure:
        episode.error = f"{type(failure).__name__}: {failure}"
        return None
    episode.refused += result.is_error
    episode.total_reward += result.reward
    episode.success = result.terminated and episode.total_reward > 0
    return None if result.done else codec.turn(result.observation, ended=codec.ended(sampled.ids))
