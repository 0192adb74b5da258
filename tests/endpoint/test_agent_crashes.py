"""An episode in which the agent crashed is used for training only if the policy's words were to blame."""

from __future__ import annotations

import asyncio
import itertools
import logging
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from answers import text_of
from dreamgym_integrations.trainers.policy.agent_player import AgentPlayer
from dreamgym_server.app import build
from dreamgym_server.running import running
from dreamgym_server.sources import RealWorlds, Worlds
from echo import SPEC, Echo
from mcp import Client
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types.chat import ChatCompletionMessageParam
from pydantic import SecretStr
from server_stage import CounterEnvironment, counter_spec
from speakers import CODEC, Speaker, call
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from dreamgym.embedding import TrigramEncoder
from dreamgym.episode import Agent, load_agent
from dreamgym.redaction import RedactionRules, Redactor, load_key
from dreamgym.replay.memory import MemoryBuffer, MemoryEpisodeStore
from dreamgym.runs.opening import served
from dreamgym.runs.players import player_in
from dreamgym.training.rollout import Rollout, summary

pytestmark = pytest.mark.anyio
COUNTER = counter_spec()
Play = Callable[[Agent, str], Awaitable[Rollout]]


def counter() -> Worlds:
    return RealWorlds(COUNTER, lambda: CounterEnvironment(COUNTER))


def echo(**options: Any) -> Worlds:
    return RealWorlds(SPEC, lambda: Echo(**options))


@asynccontextmanager
async def at(worlds: Worlds, **options: Any) -> AsyncIterator[Play]:
    """Yield a function that lets an agent play one episode with a policy that always says the same."""
    async with served(worlds) as url:

        async def play(agent: Agent, says: str) -> Rollout:
            player = AgentPlayer(agent, Speaker(lambda _: says), CODEC, url=url, env=worlds.spec.name, **options)
            task = worlds.spec.tasks[0]
            (rollout,) = await player.play([task], groups=[""], seeds=[0], version=0, sampling_seed=0)
            return rollout

        yield play


async def ask(policy_url: str, *messages: ChatCompletionMessageParam) -> str:
    async with AsyncOpenAI(base_url=policy_url, api_key="none", max_retries=0) as client:
        said = await client.chat.completions.create(model="m", messages=messages)
    return said.choices[0].message.content or ""


def user(text: str) -> ChatCompletionMessageParam:
    return {"role": "user", "content": text}


async def strict(task: str, mcp_url: str, policy_url: str) -> str:
    """Send the policy's words to the echo; crash if they are a question or if the tool returns an error."""
    for _ in range(SPEC.max_steps):
        words = await ask(policy_url, user(task))
        if "?" in words:
            raise ValueError(f"no answer: {words}")
        async with Client(mcp_url) as environment:
            result = await environment.call_tool("act", {"command": words})
        if result.is_error:
            raise RuntimeError(text_of(result))
    return ""


async def limited(task: str, mcp_url: str, policy_url: str) -> str:
    """Run a graph that stops at its own recursion limit, long before the environment would."""
    from langchain.agents import create_agent
    from langchain_core._api import LangChainBetaWarning
    from langchain_openai import ChatOpenAI

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LangChainBetaWarning)
        from langchain.mcp import MCPAdapter

    async with DefaultAsyncHttpxClient() as http, MCPAdapter(mcp_url) as adapter:
        model = ChatOpenAI(model="m", base_url=policy_url, api_key=SecretStr("none"), http_async_client=http)
        agent = create_agent(model, await adapter.list_tools())
        await agent.ainvoke({"messages": [{"role": "user", "content": task}]}, {"recursion_limit": 6})
    return ""


def worth(rollout: Rollout) -> tuple[float | None, int]:
    """Return the reward, and the number of conversations to learn from."""
    return rollout.reward, len(rollout.segments)


async def test_an_output_that_the_agent_rejects_ends_the_episode_with_the_reward_so_far() -> None:
    async with at(echo()) as play:
        assert worth(await play(strict, "who?")) == (0.0, 1)

        async def second_thoughts(task: str, mcp_url: str, policy_url: str) -> str:
            async with Client(mcp_url) as environment:
                await environment.call_tool("act", {"command": "two words"})
            return await strict(task, mcp_url, policy_url)

        rollout = await play(second_thoughts, "who?")
    assert rollout.reward == pytest.approx(0.2)
    assert len(rollout.segments) == 1
    assert (rollout.success, rollout.actions) == (False, ['act{"command":"two words"}'])


async def test_a_graph_that_reaches_its_recursion_limit_is_a_failure_of_the_policy() -> None:
    async with at(counter()) as play:
        rollout = await play(limited, call("add", n=0))
    assert worth(rollout) == (0.0, 1)
    assert len(rollout.actions) == 3


@pytest.mark.parametrize("name", ["react", "langgraph", "openai_agents"])
@pytest.mark.parametrize("says", [call("fly"), '<tool_call>\n{"name": "add", "argu', call("add", n="many")])
async def test_calls_that_nobody_can_run_are_worth_nothing_in_any_framework(name: str, says: str) -> None:
    async with at(counter()) as play:
        rollout = await play(load_agent(name), says)
    assert worth(rollout) == (0.0, 1)
    assert (rollout.success, rollout.actions) == (False, [])
    was_heard = says == call("add", n="many")  # the tool refused it
    assert (rollout.unheard == 0) is was_heard
    assert summary([rollout], [0.0], [0.0])["refused_share"] == (0.0 if was_heard else 1.0)


async def test_a_refused_action_is_the_policys_fault_and_an_unavailable_environment_is_not() -> None:
    async with at(echo()) as play:
        assert worth(await play(strict, "")) == (0.0, 1)
    async with at(echo(breaks=True)) as play:
        rollout = await play(strict, "hello")
    assert rollout.reward is None
    assert "The environment did not answer" in str(rollout.error)


@pytest.mark.parametrize("name", ["react", "langgraph", "openai_agents"])
@pytest.mark.parametrize("breaks_off", [True, False])
async def test_a_call_that_did_not_reach_the_environment_is_not_the_policys_fault(name: str, breaks_off: bool) -> None:
    numbers = itertools.count(1)
    app = build([counter()], MemoryBuffer(TrigramEncoder()), MemoryEpisodeStore())

    async def proxy(scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on but the second call of a tool."""
        is_call = scope["type"] == "http" and (b"mcp-method", b"tools/call") in scope["headers"]
        if not is_call or next(numbers) != 2:
            return await app(scope, receive, send)
        if not breaks_off:
            return await PlainTextResponse("no upstream", 503)(scope, receive, send)
        head = [(b"content-type", b"application/json"), (b"content-length", b"9")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        return await send({"type": "http.response.body", "body": b"{", "more_body": True})

    async with running(proxy) as url:
        player = AgentPlayer(load_agent(name), Speaker(lambda _: call("add", n=1)), CODEC, url=url, env="counter")
        (rollout,) = await player.play([COUNTER.tasks[0]], groups=[""], seeds=[0], version=0, sampling_seed=0)
    assert rollout.reward in {None, 1.0}  # an agent that makes the call again reaches 10
    assert next(numbers) > 2


async def test_a_request_that_was_refused_gives_no_reward() -> None:
    async def confused(task: str, mcp_url: str, policy_url: str) -> str:
        said = await ask(policy_url, user(task))
        return await ask(policy_url, user(task), {"role": "oracle", "content": said})  # type: ignore[misc, arg-type]

    async with at(echo()) as play:
        rollout = await play(confused, "well")
    assert rollout.reward is None
    assert "got role 'oracle'" in str(rollout.error)


async def test_a_failure_of_the_agents_own_resources_gives_no_reward() -> None:
    async def with_a_database(task: str, mcp_url: str, policy_url: str) -> str:
        await ask(policy_url, user(task))
        try:
            raise ConnectionRefusedError("the vector store is gone")
        except OSError as error:
            raise ValueError("no documents") from error

    async with at(echo()) as play:
        rollout = await play(with_a_database, "well")
    assert rollout.error == "the agent failed before its episode was over: ValueError: no documents"
    assert rollout.reward is None


async def test_an_agent_that_hangs_gives_no_reward_however_it_reacts_to_being_stopped() -> None:
    async def stubborn(task: str, mcp_url: str, policy_url: str) -> str:
        await ask(policy_url, user(task))
        try:
            await asyncio.Event().wait()
            return ""
        finally:
            raise ValueError("I was not done")

    async with at(echo(), limit_s=2) as play:
        rollout = await play(stubborn, "well")
    assert rollout.error == "the agent was stopped after 2 s, before its episode was over"
    assert rollout.reward is None


async def test_the_error_of_an_agent_that_crashed_does_not_contain_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DREAMGYM_HOME", str(tmp_path))
    agent = tmp_path / "own.py"
    agent.write_text("async def run(task, mcp_url):\n    raise ValueError('no mailbox ann.lee@corp.net')\n")
    spec = SPEC.model_copy(update={"redact": RedactionRules()})
    worlds = RealWorlds(spec, Echo)
    async with player_in(worlds, Speaker(lambda _: "hello"), CODEC, agent=f"{agent}:run") as player:
        (rollout,) = await player.play(SPEC.tasks[:1], groups=[""], seeds=[0], version=0, sampling_seed=0)
    mail = Redactor(RedactionRules(), key=load_key()).text("ann.lee@corp.net")
    assert rollout.error == f"the agent failed before its episode was over: ValueError: no mailbox {mail}"


async def test_each_kind_of_crash_that_counts_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    numbers = itertools.count()
    async with served(echo()) as url:
        player = AgentPlayer(strict, Speaker(lambda _: f"who {next(numbers)}?"), CODEC, url=url, env="echo")
        with caplog.at_level(logging.WARNING, "dreamgym_integrations.trainers.policy.agent_player"):
            await player.play(SPEC.tasks[:2], groups=["", ""], seeds=[0, 0], version=0, sampling_seed=0)
    assert next(numbers) == 2
    (told,) = [record.getMessage() for record in caplog.records if "count as failures" in record.getMessage()]
    assert "ValueError: no answer: who" in told
