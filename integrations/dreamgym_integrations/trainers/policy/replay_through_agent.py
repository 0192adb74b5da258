"""Replays recorded episodes through an agent: the agent writes its own prompts and gets the recorded actions.

The agent plays against the recording: its policy samples the recorded actions, and the environment gives the recorded
answers. So supervised training learns from exactly the tokens that the policy endpoint will see. Episodes in which the
agent asks its policy for anything besides the next action are left out, and counted in a warning.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from dreamgym.environment import EnvironmentSpec
from dreamgym.episode import Agent
from dreamgym.errors import EnvironmentUnavailable, EpisodeFinished, InvalidInput
from dreamgym.redaction import redact_by
from dreamgym.training.rollout import Generation, Rollout, Segment
from dreamgym.types import JsonObject, StepResult, Task, ToolCall, Trajectory
from dreamgym_integrations.trainers.policy.agent_player import AgentPlayer, seed_of_answer
from dreamgym_integrations.trainers.policy.model import ChatCodec
from dreamgym_integrations.trainers.policy.tool_call_format import call_as_text

logger = logging.getLogger(__name__)

BATCH = 32
"""Number of episodes that are played at a time."""
REASONS = 3
"""Number of reasons that are given for episodes that could not be played; the most frequent ones."""


class RecordedEnvironment:
    """An environment that answers as recorded. The seed of `reset` is the number of the recording."""

    def __init__(self, spec: EnvironmentSpec, trajectories: Sequence[Trajectory]) -> None:
        self._spec, self._trajectories = spec, trajectories
        self._trajectory: Trajectory | None = None
        self._step = 0

    @property
    def tools(self) -> Sequence[JsonObject]:
        return self._spec.tools

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        """Start the recording with the number `seed`."""
        self._trajectory, self._step = self._trajectories[seed or 0], 0
        return self._spec.first(self._trajectory.task)

    async def step(self, action: ToolCall) -> StepResult:
        """The recorded answer. Raises EnvironmentUnavailable if the call is not the recorded one."""
        if self._trajectory is None or self._step == len(self._trajectory.transitions):
            raise EpisodeFinished("the recording is at its end")
        transition = self._trajectory.transitions[self._step]
        if action.canonical() != transition.action.canonical():
            raise EnvironmentUnavailable(f"{transition.action.canonical()} was recorded, not {action.canonical()}")
        self._step += 1
        return transition.result

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""


async def replay_through_agent(
    agent: Agent, codec: ChatCodec, spec: EnvironmentSpec, trajectories: Sequence[Trajectory], *, url: str
) -> list[Segment]:
    """All conversations that the agent has with a policy that acts as recorded.

    Args:
        agent: the agent, as `load_agent` returns it.
        codec: codec of the policy.
        spec: description of the recorded environment.
        trajectories: the recordings, in the order in which the `RecordedEnvironment` has them.
        url: address of a server of the `RecordedEnvironment`.

    Raises:
        InvalidInput: none of the recordings could be played through the agent.
    """
    segments: list[Segment] = []
    rollouts: list[Rollout] = []
    for start in range(0, len(trajectories), BATCH):
        some = trajectories[start : start + BATCH]
        words_BN = [_words(codec, trajectory) for trajectory in some]
        policy = _RecordedPolicy(codec, words_BN)
        player = AgentPlayer(agent, policy, codec, url=url, env=spec.name, redact=redact_by(spec.redact))
        rollouts += await player.play(
            [trajectory.task for trajectory in some],
            groups=[""] * len(some),
            seeds=range(start, start + len(some)),
            version=0,
            sampling_seed=0,
        )
    left_out = Counter[str]()
    for trajectory, rollout in zip(trajectories, rollouts, strict=True):
        recorded = [transition.action.canonical() for transition in trajectory.transitions]
        if rollout.error is not None:
            left_out[rollout.error] += 1
        elif rollout.actions != recorded:
            left_out["it made other calls, asked for more than the next action, or had no room left for tokens"] += 1
        else:
            segments += rollout.segments
    why = "; ".join(f"{reason} ({count})" for reason, count in left_out.most_common(REASONS))
    if not segments:
        raise InvalidInput(f"none of {len(trajectories)} recorded episodes could be played through the agent: {why}")
    if left_out:
        logger.warning(
            "%d of %d recorded episodes could not be played through the agent, and nothing is learned from them: %s",
            left_out.total(),
            len(trajectories),
            why,
        )
    return segments


class _RecordedPolicy:
    """A policy that samples given texts; the seed of an answer selects its text."""

    def __init__(self, codec: ChatCodec, words_BN: Sequence[Sequence[str]]) -> None:
        self._end = codec.answer("")
        self._said = {
            seed_of_answer(0, episode, number): codec.answer(words)
            for episode, words_N in enumerate(words_BN)
            for number, words in enumerate(words_N)
        }

    def generate(self, prompts_B: Sequence[Sequence[int]], *, seeds_B: Sequence[int]) -> list[Generation]:
        """The recorded text of each answer; after the last one, an empty text."""
        said_B = [self._said.get(seed, self._end) for seed in seeds_B]
        return [Generation(tuple(ids), (0.0,) * len(ids)) for ids in said_B]


def _words(codec: ChatCodec, trajectory: Trajectory) -> list[str]:
    """The policy's text of each turn. The last one, the answer, is used only if the episode does not end by itself."""
    actions = [transition.action for transition in trajectory.transitions]
    return [*(call_as_text(action, knows_tools=codec.knows_tools) for action in actions), trajectory.answer or ""]
