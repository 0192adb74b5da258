"""If a step takes longer than the client waits, the client asks again and gets the answer of the same step.

The frameworks are imported where they are used, since every worker imports this file and only one runs it.
"""

from __future__ import annotations

import asyncio
import inspect
from pkgutil import resolve_name

import pytest
from answers import meta_of, text_of
from dreamgym_integrations.models.chat_server import Reply, chat_server
from mcp import Client
from mcp.shared.exceptions import MCPError
from openai import AsyncOpenAI
from server_stage import Stage

from dreamgym.embedding import TrigramEncoder
from dreamgym.replay.memory import MemoryBuffer, MemoryEpisodeStore
from dreamgym.types import JsonObject, ToolCall

pytestmark = pytest.mark.anyio

TOO_SHORT_S = 1.0
"""Timeout of the client, long enough for everything except the step that waits."""
GAVE_UP = "An error occurred while running the tool. Please try again."


@pytest.fixture
def stage() -> Stage:
    return Stage(MemoryBuffer(TrigramEncoder()), MemoryEpisodeStore())


class SlowModel:
    """Makes the stage's model wait until `answers` is set."""

    def __init__(self, stage: Stage) -> None:
        self.answers = asyncio.Event()
        stage.model.before = lambda query: self.answers.wait()


async def test_an_openai_agent_that_gave_up_waiting_asks_again_and_there_is_one_step(stage: Stage) -> None:
    from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
    from agents.mcp import MCPServerStreamableHttp

    slow = SlowModel(stage)
    read: list[str] = []

    def policy(messages: list[JsonObject], tools: list[JsonObject]) -> Reply:
        """Try again if the tool's answer asks for it, and let the simulation answer only then."""
        read[:] = [str(message["content"]) for message in messages if message["role"] == "tool"]
        if read and GAVE_UP in read[-1]:
            slow.answers.set()
        elif read:
            return Reply("Done.")
        return Reply(tool_calls=(ToolCall(name="add", arguments={"n": 4}),))

    async with stage.serve() as (_, http), chat_server(policy) as chat_url:
        made = (await http.post("/envs/counter/episodes", json={})).json()
        set_tracing_disabled(disabled=True)
        async with (
            AsyncOpenAI(base_url=chat_url, api_key="none") as client,
            MCPServerStreamableHttp(
                {"url": made["mcp_url"]}, client_session_timeout_seconds=TOO_SHORT_S, cache_tools_list=True
            ) as server,
        ):
            model = OpenAIChatCompletionsModel(model="policy", openai_client=client)
            await Runner.run(Agent(name="Assistant", model=model, mcp_servers=[server]), "Add 4.", max_turns=10)
        state = (await http.get(f"/envs/counter/episodes/{made['episode']}")).json()
    assert GAVE_UP in read[0]
    assert "count 4" in read[-1]
    assert [state["step"], len(stage.model.asked)] == [1, 1]


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_call_sent_again_and_again_while_the_step_runs_joins_it(stage: Stage, mode: str) -> None:
    slow = SlowModel(stage)
    async with stage.serve() as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        async with Client(made["mcp_url"], mode=mode) as client:
            for _ in range(2):  # the second one finds the step of the first one running
                with pytest.raises(MCPError, match=r"(?i)timed out"):
                    await client.call_tool("add", {"n": 4}, read_timeout_seconds=TOO_SHORT_S)
            await client.list_tools()  # arrives after the notice that the client no longer waits for the last call
            slow.answers.set()
            result = await client.call_tool("add", {"n": 4})
    assert text_of(result) == "count 4"
    assert meta_of(result)["dreamgym/step"] == 1
    assert len(stage.model.asked) == 1


@pytest.mark.parametrize(
    ("client", "parameter", "default"),
    [
        ("agents.mcp:MCPServerStreamableHttp", "client_session_timeout_seconds", 5),
        ("mcp:Client", "read_timeout_seconds", None),
        ("fastmcp:Client", "timeout", None),
    ],
)
def test_the_documented_parameters_are_those_of_the_clients(client: str, parameter: str, default: float | None) -> None:
    assert inspect.signature(resolve_name(client)).parameters[parameter].default == default


def test_the_toolset_of_pydantic_ai_waits_five_minutes() -> None:
    from pydantic_ai.mcp import MCPToolset

    toolset = MCPToolset("http://127.0.0.1:9/mcp")
    assert toolset.client._session_kwargs["read_timeout_seconds"] == 300
