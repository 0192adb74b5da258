"""The BFCL environment behind a server, with an invented class: an MCP client and agents play it and a dream of it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from answers import text_of
from bfcl_lamps import DOCS, SYSTEMS, lamp_suite
from dreamgym_client.control import ControlClient
from dreamgym_integrations.environments.bfcl.behaviours import behaviours
from dreamgym_integrations.environments.bfcl.environment import OVER, BfclEnvironment
from dreamgym_integrations.environments.bfcl.state import schema_of
from dreamgym_integrations.environments.bfcl.tasks import task_of
from dreamgym_integrations.environments.bfcl.tools import NEXT, tools_of
from dreamgym_integrations.models.chat_server import Reply, chat_server
from dreamgym_server.app import build
from dreamgym_server.running import running
from dreamgym_server.sources import DreamWorlds, RealWorlds, Worlds
from mcp import Client

from dreamgym.dream.nearest import NearestModel
from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import EnvironmentSpec
from dreamgym.episode import load_agent, play
from dreamgym.replay.memory import MemoryBuffer, MemoryEpisodeStore
from dreamgym.types import JsonObject, Source, ToolCall, Trajectory

pytestmark = pytest.mark.anyio

SUITE = lamp_suite()
WAYS = behaviours(lambda: SUITE)
(LAMPS,) = SUITE.conversations.values()
TASK = task_of(LAMPS, SUITE, SYSTEMS, env="lamps", split="train")
SPEC = EnvironmentSpec(
    name="lamps",
    tools_list=({"tools": [*tools_of(DOCS)]},),
    deterministic=True,
    state=schema_of(list(SYSTEMS.values())),
    tasks=(TASK,),
)


def lamps() -> BfclEnvironment:
    return BfclEnvironment(SUITE, SYSTEMS, tools_of(DOCS))


async def episode(way: str, seed: int) -> Trajectory:
    return await play(lamps(), TASK, WAYS[way], spec=SPEC, seed=seed, source=Source.REAL)


@asynccontextmanager
async def served(kind: str) -> AsyncIterator[ControlClient]:
    """Serve the environment or a dream of it; yield a client of the control API."""
    buffer = MemoryBuffer(TrigramEncoder())
    worlds: Worlds = RealWorlds(SPEC, lamps)
    if kind == "dream":
        await buffer.add([await episode("expert", 0)])
        worlds = DreamWorlds(SPEC, NearestModel(), buffer)
    async with running(build([worlds], buffer, MemoryEpisodeStore())) as url, ControlClient(url) as control:
        yield control


@pytest.mark.parametrize("kind", ["real", "dream"])
async def test_an_mcp_client_serves_both_requests_and_is_rewarded_at_the_end(kind: str) -> None:
    async with served(kind) as control:
        started = await control.create("lamps", task=TASK, seed=0)
        async with Client(started.mcp_url) as client:
            tools = (await client.list_tools()).tools
            assert [tool.name for tool in tools] == [NEXT, "press", "count", "names", "forget", "explode"]
            pressed = await client.call_tool("press", {"lamp": "red"})
            assert pressed.structured_content == {"lit": True}
            after = await client.call_tool(NEXT, {})
            assert (len(after.content), text_of(after)) == (1, LAMPS.messages[1])
            counted = await client.call_tool("count", {})
            assert counted.structured_content == {"presses": 1}
            last = await client.call_tool(NEXT, {})
            assert (len(last.content), text_of(last)) == (1, OVER)
        state = await control.finish("lamps", started.episode)
    assert (state.terminated, state.reward) == (True, 1.0)


def plays_lamps(messages: list[JsonObject], tools: list[JsonObject]) -> Reply:
    """A scripted model: one call of the ground truth after another, then a final answer."""
    script = [
        ToolCall(name="press", arguments={"lamp": "red"}),
        *([ToolCall(name=name) for name in (NEXT, "count", NEXT)]),
    ]
    answers = [message for message in messages if message["role"] == "tool"]
    if len(answers) == len(script):
        return Reply("One press.")
    assert NEXT in json.dumps(tools)
    return Reply(tool_calls=(script[len(answers)],))


@pytest.mark.parametrize("kind", ["real", "dream"])
@pytest.mark.parametrize("name", ["react", "langgraph", "openai_agents"])
async def test_an_unchanged_agent_hears_the_second_request_and_wins(name: str, kind: str) -> None:
    async with served(kind) as control, chat_server(plays_lamps) as policy_url:
        started = await control.create("lamps", task=TASK, seed=0)
        answer = await load_agent(name)(f"{TASK.instruction}\n{started.observation}", started.mcp_url, policy_url)
        state = await control.finish("lamps", started.episode, answer=answer)
    assert state.trajectory is not None
    assert [step.action.name for step in state.trajectory.transitions] == ["press", NEXT, "count", NEXT]
    assert state.trajectory.transitions[1].result.observation == LAMPS.messages[1]
    assert (state.terminated, state.reward) == (True, 1.0)


@pytest.mark.parametrize(
    ("tool", "arguments", "reason"),
    [
        ("jump", {}, "jump not found"),
        ("press", {"lamp": 3}, "3 is not"),
        ("press", {}, "required"),
        ("press", {"lamp": "blue"}, "no lamp blue"),
        ("explode", {}, "does not work"),
    ],
)
async def test_an_impossible_call_is_a_tool_error_and_the_episode_goes_on(
    tool: str, arguments: dict[str, object], reason: str
) -> None:
    async with served("real") as control:
        started = await control.create("lamps", task=TASK, seed=0)
        async with Client(started.mcp_url) as client:
            refused = await client.call_tool(tool, arguments)
            assert refused.is_error
            assert reason in text_of(refused)
            assert not (await client.call_tool("press", {"lamp": "red"})).is_error


async def test_an_agent_that_ends_with_an_answer_is_judged_by_the_state_and_by_what_it_looked_up() -> None:
    async with served("real") as control:
        rewards = []
        press, count, next_one = (
            ToolCall(name="press", arguments={"lamp": "red"}),
            ToolCall(name="count"),
            ToolCall(name=NEXT),
        )
        for calls in ([press, next_one, count], [press, next_one], [next_one, count]):
            started = await control.create("lamps", task=TASK, seed=0)
            async with Client(started.mcp_url) as client:
                for call in calls:
                    await client.call_tool(call.name, call.arguments)
            state = await control.finish("lamps", started.episode, answer="One press.")
            assert state.trajectory is not None
            rewards.append(state.trajectory.final_reward)
    assert rewards == [1.0, 0.0, 0.0]


async def test_the_expert_wins_and_the_same_seed_plays_the_same_episode() -> None:
    assert (await episode("expert", 0)).success
    for way in ("noisy", "mixed", "random"):
        ours, again = [(await episode(way, 7)).transitions for _ in range(2)]
        assert ours == again


async def test_slips_lose_some_episodes_and_random_calls_fit_their_schemas() -> None:
    noisy = [(await episode("noisy", seed)).success for seed in range(30)]
    assert 0 < sum(noisy) < 30
    steps = [step for seed in range(10) for step in (await episode("random", seed)).transitions]
    assert not any("validation" in step.result.observation for step in steps)
    assert {step.action.name for step in steps} == {"press", "count", "names", "forget", NEXT}
