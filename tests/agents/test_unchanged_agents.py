"""Agents written for any MCP server play in the dream and in reality, sixteen at once, and every episode is right."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from dreamgym_client.control import ControlClient, EpisodeState
from dreamgym_integrations.models.chat_server import chat_server
from dreamgym_server.app import build
from dreamgym_server.limits import Limits
from dreamgym_server.running import running
from dreamgym_server.sources import DreamWorlds, RealWorlds, Worlds
from scripted import FOUND, GAVE_UP, asked, played_directly, plays_coin

from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.nearest import NearestModel
from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import Environment, load_real
from dreamgym.episode import load_agent, play
from dreamgym.replay.memory import MemoryBuffer, MemoryEpisodeStore
from dreamgym.types import Source, StopReason, Trajectory

pytestmark = pytest.mark.anyio

EXAMPLES = Path(__file__).parents[2] / "examples"
COIN = load_real("coin")
TASKS = COIN.tasks("train")[:16]

Episodes = Sequence[tuple[str, str, str]]
"""Task, MCP URL and policy URL of each."""
Players = Callable[[Episodes], Awaitable[Sequence[str]]]


@dataclass
class Place:
    """A server, and the same world without a server."""

    url: str
    source: Source
    directly: Callable[[], Environment]


async def recorded() -> MemoryBuffer:
    """A buffer with two real episodes of every task."""
    buffer, environment = MemoryBuffer(TrigramEncoder()), COIN.create()
    for number, task in enumerate([*TASKS, *TASKS]):
        behaviour = COIN.behaviours["mixed"]
        await buffer.add([await play(environment, task, behaviour, spec=COIN.spec, seed=number, source=Source.REAL)])
    await environment.close()
    return buffer


@asynccontextmanager
async def place(source: Source) -> AsyncIterator[Place]:
    """Serve the dream or the real environment."""
    buffer = await recorded()
    worlds: Worlds = RealWorlds(COIN.spec, COIN.create)
    directly: Callable[[], Environment] = COIN.create
    if source is Source.SYNTHETIC:
        worlds = DreamWorlds(COIN.spec, NearestModel(), buffer)

        def directly() -> Environment:
            return DreamEnvironment(COIN.spec, NearestModel(), buffer)

    async with running(build([worlds], buffer, MemoryEpisodeStore())) as url:
        yield Place(url, source, directly)


async def check_sixteen_at_once_in_each(players: Players) -> None:
    """Let the players play 16 tasks in reality and 16 in the dream, all at the same time, and check every step."""
    async with (
        place(Source.REAL) as real,
        place(Source.SYNTHETIC) as dream,
        ControlClient(real.url) as at_real,
        ControlClient(dream.url) as at_dream,
        chat_server(plays_coin) as policy_url,
    ):
        doors = [(real, at_real), (dream, at_dream)]
        started = [await control.create("coin", task=task, seed=3) for _, control in doors for task in TASKS]
        answers = await players([(asked(one.task, one.observation), one.mcp_url, policy_url) for one in started])
        for number, (where, control) in enumerate(doors):
            mine = slice(number * len(TASKS), (number + 1) * len(TASKS))
            states = [
                await control.finish("coin", one.episode, answer=answer)
                for one, answer in zip(started[mine], answers[mine], strict=True)
            ]
            await check_episodes(where, answers[mine], states)


async def check_episodes(where: Place, answers: Sequence[str], states: Sequence[EpisodeState]) -> None:
    """Compare every step with the same script played without the players."""
    won = 0
    for task, answer, state in zip(TASKS, answers, states, strict=True):
        expected = await played_directly(where.directly(), task, 3, COIN.spec.max_steps)
        trajectory = state.trajectory
        assert isinstance(trajectory, Trajectory)
        assert [step.action.arguments["command"] for step in trajectory.transitions] == [said for said, _ in expected]
        assert [step.result.observation for step in trajectory.transitions] == [
            result.observation for _, result in expected
        ]
        assert trajectory.task == task
        assert trajectory.source is where.source
        assert trajectory.success == expected[-1][1].terminated
        assert state.reward == float(trajectory.success)
        assert state.stop_reason is (StopReason.TERMINATED if trajectory.success else StopReason.MAX_STEPS)
        assert answer == (FOUND if trajectory.success else GAVE_UP)
        won += trajectory.success
    assert 0 < won < len(TASKS)


def in_this_process(name: str) -> Players:
    """One of our agents, by entry point."""
    agent = load_agent(name)

    async def players(episodes: Episodes) -> Sequence[str]:
        return await asyncio.gather(*(agent(*episode) for episode in episodes))

    return players


def as_a_script(script: Path) -> Players:
    """An example, in a process of its own that must import nothing of ours."""

    async def players(episodes: Episodes) -> Sequence[str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).with_name("drive.py")),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        given = json.dumps({"script": str(script), "episodes": episodes}).encode()
        out, said = await process.communicate(given)
        assert process.returncode == 0, said.decode()
        result = json.loads(out)
        assert result["ours"] == []
        answers: list[str] = result["answers"]
        return answers

    return players


# the examples below make their agents as the last two do
@pytest.mark.parametrize(
    "name",
    ["react", pytest.param("langgraph", marks=pytest.mark.long), pytest.param("openai_agents", marks=pytest.mark.long)],
)
async def test_a_built_in_agent_plays_sixteen_episodes_in_the_dream_and_sixteen_in_reality_at_once(name: str) -> None:
    await check_sixteen_at_once_in_each(in_this_process(name))


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("langgraph_create_agent", marks=pytest.mark.long),
        pytest.param("langgraph_prebuilt", marks=pytest.mark.long),
        "openai_agents_sdk",
    ],
)
async def test_an_example_plays_sixteen_in_each_at_once_and_imports_nothing_of_ours(script: str) -> None:
    await check_sixteen_at_once_in_each(as_a_script(EXAMPLES / f"{script}.py"))


@pytest.mark.parametrize("name", ["react", "langgraph", "openai_agents"])
async def test_an_agent_waits_for_a_slow_step_as_long_as_the_server_and_needs_no_key(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []
    send = httpx2.AsyncClient.send

    async def heard(client: httpx2.AsyncClient, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if request.url.path.endswith("/mcp"):
            limits.append(request.extensions["timeout"]["read"])
        return await send(client, request, **options)

    monkeypatch.setattr(httpx2.AsyncClient, "send", heard)
    monkeypatch.setenv("OPENAI_API_KEY", "")
    app = build([RealWorlds(COIN.spec, COIN.create)], MemoryBuffer(TrigramEncoder()), MemoryEpisodeStore())
    async with running(app) as url, ControlClient(url) as control, chat_server(plays_coin) as policy_url:
        started = await control.create("coin", task=TASKS[0], seed=3)
        answer = await load_agent(name)(asked(started.task, started.observation), started.mcp_url, policy_url)
    assert answer in {FOUND, GAVE_UP}
    assert min(limits) > Limits().step_s
