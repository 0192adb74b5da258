"""Unchanged agents play every installed environment, for real and in a dream of one recorded episode."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points

import pytest
from dreamgym_client.control import ControlClient
from dreamgym_integrations.models.chat_server import Reply, chat_server
from dreamgym_server.app import build
from dreamgym_server.running import running
from dreamgym_server.sources import DreamWorlds, RealWorlds, Worlds

from dreamgym.dream.nearest import NearestModel
from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import RealEnvironment, load_real
from dreamgym.episode import load_agent, play, user_message
from dreamgym.replay.memory import MemoryBuffer, MemoryEpisodeStore
from dreamgym.runs.environments import listed
from dreamgym.runs.versions import GROUP
from dreamgym.types import JsonObject, Source, StepResult, Trajectory

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

AGENTS = ("react", "langgraph", "openai_agents")
ENVIRONMENTS = ("alfworld", "bfcl", "coin", "cookingworld", "mapreader", "miniwob", "webshop")
SLOW_TO_START = pytest.param("scienceworld", marks=pytest.mark.long)
SHORT = 20
"""Most steps of the episode that is played; longer ones show nothing new about an agent."""


@dataclass(frozen=True)
class Known:
    """An environment, and an episode of it that its expert won."""

    real: RealEnvironment
    won: Trajectory


@pytest.fixture(params=[*ENVIRONMENTS, SLOW_TO_START])
async def known(request: pytest.FixtureRequest) -> Known:
    """Return an environment with a won episode; skip the test if it cannot be played on this machine."""
    (point,) = entry_points(group=GROUP, name=request.param)
    if (missing := listed(point).missing) is not None:
        pytest.skip(missing)
    real = load_real(request.param)
    for task in real.tasks("train"):
        environment = real.create()
        try:
            won = await play(environment, task, real.behaviours["expert"], spec=real.spec, seed=0, source=Source.REAL)
        finally:
            await environment.close()
        if won.success and len(won.transitions) <= SHORT:
            return Known(real, won)
    raise AssertionError(f"the expert of {request.param} wins no short episode")


@asynccontextmanager
async def served(known: Known, kind: str) -> AsyncIterator[ControlClient]:
    """Serve the real environment, or a dream of the one episode; yield a client of the control API."""
    buffer, spec = MemoryBuffer(TrigramEncoder()), known.real.spec
    worlds: Worlds = RealWorlds(spec, known.real.create)
    if kind == "dream":
        await buffer.add([known.won])
        worlds = DreamWorlds(spec, NearestModel(), buffer)
    async with running(build([worlds], buffer, MemoryEpisodeStore())) as url, ControlClient(url) as control:
        yield control


@pytest.mark.parametrize("kind", ["real", "dream"])
async def test_three_frameworks_win_with_the_moves_of_the_expert(known: Known, kind: str) -> None:
    script = [step.action for step in known.won.transitions]

    def repeats(messages: list[JsonObject], tools: list[JsonObject]) -> Reply:
        done = sum(message["role"] == "tool" for message in messages)
        return Reply(tool_calls=(script[done],)) if done < len(script) else Reply("Done.")

    env = known.real.spec.name
    async with served(known, kind) as control, chat_server(repeats) as policy_url:
        for agent in AGENTS:
            started = await control.create(env, task=known.won.task, seed=0)
            words = user_message(known.won.task, StepResult(observation=started.observation))
            answer = await load_agent(agent)(words, started.mcp_url, policy_url)
            state = await control.finish(env, started.episode, answer=answer)
            assert state.trajectory is not None
            assert [step.action for step in state.trajectory.transitions] == script
            assert (state.terminated, state.reward) == (True, 1.0)
