"""Players of episodes: a policy that acts by itself, or a user's agent with the policy behind it.

An agent plays at a URL, so its environment is always behind a server. For a measurement, that server runs in this
process and stores nothing, because nothing may be learned from a measurement.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dreamgym.dream.model import Part
from dreamgym.environment import Environment, EnvironmentSpec
from dreamgym.episode import load_agent
from dreamgym.evaluation.episodes import play_many
from dreamgym.redaction import redact_by
from dreamgym.runs.opening import Against, open_worlds, served
from dreamgym.training.rollout import Player, Policy, Rollout, TokenPlayer
from dreamgym.types import Task

if TYPE_CHECKING:
    from dreamgym_integrations.trainers.policy.agent_player import AgentPlayer
    from dreamgym_integrations.trainers.policy.conversation import SpokenCodec
    from dreamgym_integrations.trainers.policy.model import PolicyCodec
    from dreamgym_server.sources import Worlds

    from dreamgym.runs.cluster import Doing

CHUNK = 8
"""Number of episodes that a worker of a cluster plays at once. It is the same for any number of workers, because a
policy's sums are rounded differently in batches of another size."""


def player_at(url: str, spec: EnvironmentSpec, policy: Policy, codec: PolicyCodec, *, agent: str | None) -> Player:
    """Return a player that plays at a server.

    Args:
        url: URL of the server.
        spec: one of its environments.
        policy: acts itself, or answers the agent's questions.
        codec: how to talk to the policy.
        agent: name of the agent, as `load_agent` takes it; None: the policy acts by itself.
    """
    if agent is not None:
        return _agent_at(url, spec, policy, codec, agent)
    from dreamgym_client.environment import RemoteEnvironment

    def remote(version: int, group: str) -> Environment:
        return RemoteEnvironment(url, spec.name, policy_version=version, group=group)

    return TokenPlayer(policy, codec, spec, remote)


@asynccontextmanager
async def player_in(
    worlds: Worlds, policy: Policy, codec: PolicyCodec, *, agent: str | None
) -> AsyncIterator[TokenPlayer | AgentPlayer]:
    """Open a player that plays in these worlds. Nothing that it plays is stored."""
    if agent is None:
        yield TokenPlayer(policy, codec, worlds.spec, lambda version, group: worlds.create(""))
        return
    async with served(worlds) as url:
        yield _agent_at(url, worlds.spec, policy, codec, agent)


def _agent_at(url: str, spec: EnvironmentSpec, policy: Policy, codec: SpokenCodec, agent: str) -> AgentPlayer:
    from dreamgym_integrations.trainers.policy.agent_player import AgentPlayer

    redact = redact_by(spec.redact)
    return AgentPlayer(load_agent(agent), policy, codec, url=url, env=spec.name, redact=redact)


class Chunk(NamedTuple):
    """A part of the episodes of one call of `Player.play`, as its arguments."""

    first: int
    """Index of its first episode among all of the call."""
    tasks: Sequence[Task]
    groups: Sequence[str]
    seeds: Sequence[int]
    version: int
    sampling_seed: int


@dataclass(frozen=True)
class PolicyPlaying:
    """The job of playing with a policy in an environment, for the workers of a cluster."""

    spec: EnvironmentSpec
    against: Against
    policy: Path
    agent: str | None
    model: str | None
    without: frozenset[Part]
    dsn: str | None = field(repr=False)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Callable[[Chunk], Awaitable[list[Rollout]]]]:
        """Load the policy, and open the worlds."""
        from dreamgym_integrations.trainers.policy.model import load_policy

        policy, codec = load_policy(self.policy)
        opened = open_worlds(self.spec, self.against, model=self.model, without=self.without, dsn=self.dsn)
        async with opened as worlds, player_in(worlds, policy, codec, agent=self.agent) as player:

            async def play(chunk: Chunk) -> list[Rollout]:
                first, tasks, groups, seeds, version, sampling_seed = chunk
                return await player.play(
                    tasks, groups=groups, seeds=seeds, version=version, sampling_seed=sampling_seed, first=first
                )

            yield play


class SpreadPlayer:
    """A `Player` whose episodes are played by the workers of a cluster."""

    def __init__(self, workers: Doing[Chunk, list[Rollout]]) -> None:
        self._workers = workers

    async def play(
        self, tasks: Sequence[Task], *, groups: Sequence[str], seeds: Sequence[int], version: int, sampling_seed: int
    ) -> list[Rollout]:
        """Play all episodes at once, in chunks. An error in a chunk ends the call."""
        chunks = [
            Chunk(first, tasks[first:last], groups[first:last], seeds[first:last], version, sampling_seed)
            for first in range(0, len(tasks), CHUNK)
            for last in [first + CHUNK]
        ]
        played = await play_many([self._workers.do] * self._workers.places, chunks)
        return [rollout for some in played for rollout in some]
