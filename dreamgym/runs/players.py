"""Who plays: a policy by itself, or an agent of its owner's with the policy behind it.

An agent is given a URL, so whatever it plays stands behind a server's door. Where something is measured, that server
lives in this process and stores nothing: nothing may be learned from a measurement.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from dreamgym.environment import Environment, EnvironmentSpec
from dreamgym.episode import load_agent
from dreamgym.runs.opening import served
from dreamgym.training.rollout import Player, Policy, TokenPlayer

if TYPE_CHECKING:
    from dreamgym_integrations.trainers.policy.conversation import ConversationCodec
    from dreamgym_integrations.trainers.policy.model import ChatCodec
    from dreamgym_server.sources import Worlds

LIMIT_S = 3_600.0
"""Wall time of an agent's episode."""


def player_at(
    url: str, spec: EnvironmentSpec, policy: Policy, codec: ChatCodec, *, agent: str | None, limit_s: float = LIMIT_S
) -> Player:
    """Plays at a server.

    Args:
        url: the server's.
        spec: one of its environments.
        policy: what acts, or is asked by the agent.
        codec: how to talk to it.
        agent: its name, as `load_agent` takes it; None: the policy acts by itself.
        limit_s: an agent that takes longer for an episode is stopped.
    """
    if agent is not None:
        return _agent_at(url, spec, policy, codec, agent, limit_s)
    from dreamgym_client.environment import RemoteEnvironment

    def remote(version: int, group: str) -> Environment:
        return RemoteEnvironment(url, spec.name, policy_version=version, group=group)

    return TokenPlayer(policy, codec, spec, remote)


@asynccontextmanager
async def player_in(
    worlds: Worlds, policy: Policy, codec: ChatCodec, *, agent: str | None, limit_s: float = LIMIT_S
) -> AsyncIterator[Player]:
    """Plays in these worlds; nothing of it is stored."""
    if agent is None:
        yield TokenPlayer(policy, codec, worlds.spec, lambda version, group: worlds.create(""))
        return
    async with served(worlds) as url:
        yield _agent_at(url, worlds.spec, policy, codec, agent, limit_s)


def _agent_at(
    url: str, spec: EnvironmentSpec, policy: Policy, codec: ConversationCodec, agent: str, limit_s: float
) -> Player:
    from dreamgym_integrations.trainers.policy.agent_player import AgentPlayer

    return AgentPlayer(load_agent(agent), policy, codec, url=url, env=spec.name, limit_s=limit_s)
