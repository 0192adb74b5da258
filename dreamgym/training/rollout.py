"""Episodes of a policy as tokens, for a trainer to learn from.

The records do not depend on a trainer or on a way to play. Two players fill them: `TokenPlayer` here, which lets the
policy act by itself, and the policy endpoint, behind which a user's own agent acts. An episode that failed is data: its
error is kept and its reward is None, so that it never enters a gradient and never makes its group fail.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from pydantic import JsonValue

from dreamgym.content import storable_answer
from dreamgym.environment import Environment, EnvironmentSpec
from dreamgym.errors import BudgetSpent, InvalidInput
from dreamgym.redaction import Redact, redact_by
from dreamgym.types import JsonObject, StepResult, Task, ToolCall

TURN_TOKENS = 64
EPISODE_TOKENS = 4096
"""Default limits: most tokens of one answer of a policy, and of an episode, which is cut there. A checkpoint may
contain other limits."""

logger = logging.getLogger(__name__)

MAX_DEPTH = 63
"""Most levels of a policy's call. The request around it has one more, and a server refuses more than 64."""


@dataclass(frozen=True)
class Generation:
    """The tokens that a policy sampled for one prompt."""

    ids: tuple[int, ...]
    """Token ids up to and including the first end-of-turn token, if one was sampled."""
    logprobs: tuple[float, ...]
    """Log-probability of each id under the distribution it was sampled from; same length."""


class Policy(Protocol):
    """The policy as a player sees it: token ids in, sampled token ids out."""

    def generate(self, prompts_B: Sequence[Sequence[int]], *, seeds_B: Sequence[int]) -> list[Generation]:
        """Sample one continuation per prompt. Blocking.

        A prompt with its seed gives the same answer whatever else is in the batch, up to the rounding of float sums.
        """


@dataclass
class Segment:
    """Tokens of one conversation that was only appended to. All lists but `prompt_ids` have the same length."""

    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    """1 for each token that the policy sampled, 0 for each token of somebody else."""
    logprobs: list[float] = field(default_factory=list)
    """Log-probability of each sampled token; 0.0 for tokens of somebody else."""
    rewards: list[float] = field(default_factory=list)
    """Reward of the action that ended with this token, else 0.0."""
    turns: list[int] = field(default_factory=list)
    """Number of the answer that a sampled token belongs to, counted over all conversations of the episode; 0 for tokens
    of somebody else, and for all tokens if each conversation begins after the last one ended."""

    @property
    def ids(self) -> list[int]:
        """All token ids so far: the policy's next prompt."""
        return self.prompt_ids + self.completion_ids

    def say(self, sampled: Generation, turn: int = 0) -> None:
        """Append tokens that the policy sampled, in the answer of this number."""
        self._append(sampled.ids, sampled.logprobs, 1, turn)

    def hear(self, ids: Sequence[int]) -> None:
        """Append tokens of somebody else."""
        self._append(ids, [0.0] * len(ids), 0)

    def reward(self, value: float) -> None:
        """Add a reward to the last token that the policy sampled."""
        for i in range(len(self.mask) - 1, -1, -1):
            if self.mask[i]:
                self.rewards[i] += value
                return

    def _append(self, ids: Sequence[int], logprobs: Sequence[float], mask: int, turn: int = 0) -> None:
        self.completion_ids += ids
        self.logprobs += logprobs
        self.mask += [mask] * len(ids)
        self.rewards += [0.0] * len(ids)
        self.turns += [turn] * len(ids)


class Talk(Protocol):
    """One episode between an environment and the policy."""

    segments: list[Segment]
    """The conversation so far, as tokens."""

    @property
    def prompt(self) -> list[int]:
        """The token ids that the policy continues next."""

    def ids_of(self, text: str) -> list[int] | None:
        """The token ids with which the policy takes an action now; None if no ids express it."""

    def say(self, sampled: Generation) -> str:
        """Append the tokens that the policy sampled for `prompt`; return the text of its action."""

    def skip(self, text: str) -> None:
        """Record an action that the policy did not sample and that nothing is learned from."""

    def hear(self, result: StepResult) -> bool:
        """Append the answer to the last action. Return False if there is no room left for tokens."""


class Codec(Protocol):
    """Translates actions and observations to a policy's tokens and back."""

    max_tokens: int
    """Limit of an episode's tokens, its first prompt included."""

    def talk(self, task: Task, first: StepResult) -> Talk:
        """Start the conversation of a new episode, up to the policy's first turn."""


@dataclass
class Rollout:
    """One episode of a policy: its tokens and its reward."""

    task: Task
    segments: list[Segment]
    """One segment if the conversation was only appended to; one more each time that the agent rewrote its history."""
    actions: list[str] = field(default_factory=list)
    """The texts that the policy wrote as actions; for an agent, the calls that reached the environment. The calls
    of an agent that failed are counted, but their texts are empty."""
    refused: int = 0
    """Number of actions that the environment answered with an error."""
    unheard: int = 0
    """Number of calls of an agent's policy that could not be run: malformed, or of a tool that it was not shown."""
    success: bool = False
    total_reward: float = 0.0
    is_unjudged: bool = False
    """True if no check and no judge could decide the reward."""
    confidence: float | None = None
    """Confidence of the least certain answer of the episode; None if the dream is not calibrated."""
    error: str | None = None

    @property
    def reward(self) -> float | None:
        """Outcome reward; None if it is unknown, since the episode failed or nobody judged it."""
        return None if self.error is not None or self.is_unjudged else self.total_reward


class Player(Protocol):
    """Lets a policy play many episodes at once."""

    async def play(
        self, tasks: Sequence[Task], *, groups: Sequence[str], seeds: Sequence[int], version: int, sampling_seed: int
    ) -> list[Rollout]:
        """One episode per task, in the order of the tasks. A failed episode carries its error.

        Args:
            tasks: one per episode.
            groups: name of each episode's group; the episodes of one group must differ only by the policy.
            seeds: seed of each episode's environment; equal within a group.
            version: how many updates the policy has had.
            sampling_seed: fixes every sampled token.
        """


def draw_seed(*parts: int | str) -> int:
    """A seed of 32 bits, computed from the parts alone."""
    return int.from_bytes(hashlib.blake2b(":".join(map(str, parts)).encode(), digest_size=4).digest(), "big")


def summary(episodes: Sequence[Rollout], rewards: Sequence[float | None], values: Sequence[float | None]) -> JsonObject:
    """The figures of an update for the record.

    Args:
        episodes: the episodes of all groups.
        rewards: the reward of each that counts; None if it is unknown, or if the dream was not sure enough of it.
        values: the values of the groups.
    """
    valid = [episode for episode in episodes if episode.error is None]
    known = [episode for episode, reward in zip(episodes, rewards, strict=True) if reward is not None]
    actions = sum(len(episode.actions) for episode in valid)
    unheard = sum(episode.unheard for episode in valid)
    return {
        "inside_success": sum(episode.success for episode in known) / len(known) if known else None,
        "refused_share": (sum(episode.refused for episode in valid) + unheard) / max(1, actions + unheard),
        "groups": len(values),
        "dead_groups": sum(not value for value in values),
        "values": [*values],
        "failed": len(episodes) - len(valid),
        "unjudged": len(valid) - len(known),
        "environment_steps": sum(len(episode.actions) for episode in episodes),
        "mean_steps": actions / max(1, len(valid)),
    }


def parse_action(spec: EnvironmentSpec, text: str) -> ToolCall:
    """The tool call in a policy's text. Raises InvalidInput, whose message is shown to the policy."""
    if spec.text_argument is not None:
        tool, argument = spec.text_argument
        return ToolCall(name=tool, arguments={argument: text})
    try:
        call = json.loads(text)
        if is_too_deep(call):
            raise InvalidInput(f"not a tool call: it is nested deeper than {MAX_DEPTH} levels")
        json.dumps(call, ensure_ascii=False, allow_nan=False).encode()  # neither NaN nor half a surrogate pair is JSON
        return ToolCall(name=call["name"], arguments=call.get("arguments", {}))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidInput('not a tool call: expected {"name": …, "arguments": {…}} as JSON') from error


def is_too_deep(value: JsonValue) -> bool:
    """True if a value has more than MAX_DEPTH levels."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
    return any(isinstance(one, dict | list) for one in level)


def action_text(spec: EnvironmentSpec, action: ToolCall) -> str:
    """The text by which a policy takes an action; `parse_action` reads it."""
    if spec.text_argument is not None:
        return str(action.arguments.get(spec.text_argument[1], ""))
    return action.model_dump_json()


class TokenPlayer:
    """Plays without an agent: the policy's text is the action, and the observation is its next prompt.

    Args:
        policy: its weights may change from one `play` to the next.
        codec: translates to and from the policy's tokens.
        spec: gives the step limit and how a text becomes a call.
        make_environment: one environment per episode; called with the policy version and the name of its group.
    """

    def __init__(
        self,
        policy: Policy,
        codec: Codec,
        spec: EnvironmentSpec,
        make_environment: Callable[[int, str], Environment],
    ) -> None:
        self._policy, self._codec, self._spec = policy, codec, spec
        self._make_environment = make_environment
        self._has_warned = False

    async def play(
        self,
        tasks: Sequence[Task],
        *,
        groups: Sequence[str],
        seeds: Sequence[int],
        version: int,
        sampling_seed: int,
        first: int = 0,
    ) -> list[Rollout]:
        """Play all episodes at once: one batched generation per turn, then all steps concurrently.

        With `first`, the episodes are numbered from there on, and are sampled as they would be among all episodes.
        """
        async with AsyncExitStack() as stack:
            environments = [self._make_environment(version, group) for group in groups]
            for environment in environments:
                stack.push_async_callback(self._close, environment)
            return await self._played(environments, tasks, seeds, sampling_seed, first)

    async def _played(
        self,
        environments: Sequence[Environment],
        tasks: Sequence[Task],
        seeds: Sequence[int],
        sampling_seed: int,
        first: int,
    ) -> list[Rollout]:
        begun = await asyncio.gather(*map(self._begun, environments, tasks, seeds))
        episodes, talks = [episode for episode, _ in begun], [talk for _, talk in begun]
        live = [i for i, episode in enumerate(episodes) if episode.error is None and self._has_room(talks[i])]
        for turn in range(self._spec.max_steps):
            if not live:
                break
            prompts_B = [talks[i].prompt for i in live]
            seeds_B = [draw_seed(sampling_seed, first + i, turn) for i in live]
            sampled_B = await asyncio.to_thread(self._policy.generate, prompts_B, seeds_B=seeds_B)
            goes_on_B = await asyncio.gather(
                *(
                    self._acted(environments[i], episodes[i], talks[i], sampled)
                    for i, sampled in zip(live, sampled_B, strict=True)
                )
            )
            live = [i for i, goes_on in zip(live, goes_on_B, strict=True) if goes_on]
        return episodes

    async def _begun(self, environment: Environment, task: Task, seed: int) -> tuple[Rollout, Talk]:
        error = None
        try:
            first = storable_answer(await environment.reset(task, seed=seed))
        except BudgetSpent:
            raise
        except Exception as failure:  # noqa: BLE001  # other people's environments: the other episodes go on
            first, error = StepResult(observation=""), self._reason(failure)
        talk = self._codec.talk(task, first)
        if error is None and not self._has_room(talk) and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the first prompt of task %r has %d tokens, and an episode of this policy less than %d: such an "
                "episode is lost; train with more --episode-tokens",
                task.id,
                len(talk.prompt),
                self._codec.max_tokens,
            )
        return Rollout(task, talk.segments, error=error), talk

    def _has_room(self, talk: Talk) -> bool:
        return len(talk.prompt) < self._codec.max_tokens

    async def _acted(self, environment: Environment, episode: Rollout, talk: Talk, sampled: Generation) -> bool:
        """Play one turn; return False if the episode is over or has no room left for tokens."""
        text = talk.say(sampled)
        episode.actions.append(text)
        try:
            result = storable_answer(await environment.step(parse_action(self._spec, text)))
        except InvalidInput as failure:
            result = StepResult(observation=str(failure), is_error=True)
        except BudgetSpent:
            raise
        except Exception as failure:  # noqa: BLE001  # other people's environments: the other episodes go on
            episode.error = self._reason(failure)
            return False
        talk.segments[-1].reward(result.reward)
        if isinstance(confidence := result.info.get("confidence"), float | int):
            episode.confidence = min(confidence, 1.0 if episode.confidence is None else episode.confidence)
        episode.refused += result.is_error
        episode.total_reward += result.reward
        episode.success = result.terminated and episode.total_reward > 0
        is_open = result.info.get("open_end") is True
        episode.is_unjudged = not result.terminated and (episode.is_unjudged or is_open)
        if result.done or len(episode.actions) == self._spec.max_steps:
            return False
        goes_on = talk.hear(result)
        # cut off by the limit of tokens: if the environment does not end by itself, a check or judge has yet to decide
        episode.is_unjudged |= not goes_on and not self._spec.is_over_when_done
        return goes_on

    async def _close(self, environment: Environment) -> None:
        """Close an environment. If that fails, as a judge of an unfinished episode may, no rollout changes."""
        try:
            await environment.close()
        except BudgetSpent:
            raise
        except Exception as failure:  # noqa: BLE001  # other people's environments: what was played counts
            logger.warning("an episode could not be closed: %s", self._reason(failure))

    def _reason(self, failure: Exception) -> str:
        """The error of a failed episode. A server has redacted its messages, an environment in this process has not."""
        said = f"{type(failure).__name__}: {failure}"
        return said if self._redact is None else str(self._redact(said))

    @cached_property
    def _redact(self) -> Redact | None:
        return redact_by(self._spec.redact)
