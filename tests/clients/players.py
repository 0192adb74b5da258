"""Clients used as in their own documentation, each an `async (numbers, url, headers, chat_url) -> Played`.

The clients of mcp and fastmcp add the numbers themselves. An agent is asked to add them, and a scripted model decides
its calls. This program runs in either virtual environment, in a process of its own, and does not import dreamgym. Each
function imports the packages that it needs. stdin: {player: [[numbers, url, headers, chat_url], ...]}; stdout: what
each player saw, in the same order. The episodes of one player are played all at once.
"""

import asyncio
import json
import sys
import warnings
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypedDict


class Played(TypedDict):
    """One episode as the client saw it."""

    seen: list[str]
    """The answers, as the model or the caller reads them."""
    structured: list[Any]
    """Structured content, as the client gives it to the code around the model."""


Numbers = Sequence[int]
Headers = dict[str, str]
Player = Callable[[Numbers, str, Headers, str], Awaitable[Played]]


def task(numbers: Numbers) -> str:
    """Return the instruction of an agent."""
    return f"Add these, one after another: {json.dumps(list(numbers))}"


def _texts(results: Sequence[Any]) -> list[str]:
    return [result.content[0].text for result in results]


async def _mcp(mode: str, numbers: Numbers, url: str, headers: Headers) -> Played:
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        results = [await client.call_tool("add", {"n": number}) for number in numbers]
    return Played(
        seen=_texts(results),
        structured=[result.structured_content for result in results],
    )


async def mcp_legacy(numbers: Numbers, url: str, headers: Headers, chat_url: str) -> Played:
    return await _mcp("legacy", numbers, url, headers)


async def mcp_auto(numbers: Numbers, url: str, headers: Headers, chat_url: str) -> Played:
    return await _mcp("auto", numbers, url, headers)


async def mcp_modern(numbers: Numbers, url: str, headers: Headers, chat_url: str) -> Played:
    return await _mcp("2026-07-28", numbers, url, headers)


async def mcp_1(numbers: Numbers, url: str, headers: Headers, chat_url: str) -> Played:
    """The client of mcp 1.x."""
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    async with (
        create_mcp_http_client(headers=headers) as http,
        streamable_http_client(url, http_client=http) as streams,
        ClientSession(streams[0], streams[1]) as session,
    ):
        await session.initialize()
        # Any: a type checker sees mcp 2, whose results have other names
        results: list[Any] = [await session.call_tool("add", {"n": number}) for number in numbers]
    return Played(
        seen=_texts(results),
        structured=[result.structuredContent for result in results],
    )


async def fastmcp(numbers: Numbers, url: str, headers: Headers, chat_url: str) -> Played:
    from fastmcp import Client
    from fastmcp.client.transports import StreamableHttpTransport

    async with Client(StreamableHttpTransport(url, headers=headers)) as client:
        results = [await client.call_tool("add", {"n": number}, raise_on_error=False) for number in numbers]
    return Played(
        seen=_texts(results),
        structured=[result.structured_content for result in results],
    )


def _chat_model(chat_url: str) -> Any:
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    return ChatOpenAI(model="policy", base_url=chat_url, api_key=SecretStr("none"))


def _read(messages: Sequence[Any]) -> Played:
    answers = [message for message in messages if message.type == "tool"]
    artifacts = [message.artifact for message in answers]
    return Played(
        seen=[message.text for message in answers],
        structured=[artifact and artifact["structured_content"] for artifact in artifacts],
    )


def _create_agent(model: Any, tools: Any) -> Any:
    from langchain.agents import create_agent

    return create_agent(model, tools)


def _create_react_agent(model: Any, tools: Any) -> Any:
    from langgraph.prebuilt import create_react_agent

    return create_react_agent(model, tools)


def _state_graph(model: Any, tools: Any) -> Any:
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    async def call_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.bind_tools(tools).ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", call_model)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


async def _langgraph(build: Callable[[Any, Any], Any], tools: Any, numbers: Numbers, chat_url: str) -> Played:
    agent = build(_chat_model(chat_url), tools)
    result = await agent.ainvoke({"messages": [{"role": "user", "content": task(numbers)}]})
    return _read(result["messages"])


def _with_langchain_mcp(build: Callable[[Any, Any], Any]) -> Player:
    async def play(numbers: Numbers, url: str, headers: Headers, chat_url: str) -> Played:
        from fastmcp.client.transports import StreamableHttpTransport
        from langchain.mcp import MCPAdapter

        async with MCPAdapter(StreamableHttpTransport(url, headers=headers)) as adapter:
            return await _langgraph(build, await adapter.list_tools(), numbers, chat_url)

    return play


def _with_adapters(build: Callable[[Any, Any], Any]) -> Player:
    async def play(numbers: Numbers, url: str, headers: Headers, chat_url: str) -> Played:
        from langchain_mcp_adapters.client import MultiServerMCPClient

        client = MultiServerMCPClient({"world": {"url": url, "transport": "http", "headers": headers}})
        return await _langgraph(build, await client.get_tools(), numbers, chat_url)

    return play


async def adapters_session(numbers: Numbers, url: str, headers: Headers, chat_url: str) -> Played:
    """langchain-mcp-adapters with the session that it documents for servers that keep state."""
    from langchain_mcp_adapters.client import MultiServerMCPClient
    from langchain_mcp_adapters.tools import load_mcp_tools

    client = MultiServerMCPClient({"world": {"url": url, "transport": "http", "headers": headers}})
    async with client.session("world") as session:
        return await _langgraph(_create_agent, await load_mcp_tools(session), numbers, chat_url)


async def openai_agents(numbers: Numbers, url: str, headers: Headers, chat_url: str) -> Played:
    from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
    from agents.mcp import MCPServerStreamableHttp
    from openai import AsyncOpenAI

    set_tracing_disabled(disabled=True)
    async with (
        AsyncOpenAI(base_url=chat_url, api_key="none") as policy,
        MCPServerStreamableHttp(
            {"url": url, "headers": headers}, client_session_timeout_seconds=60, use_structured_content=True
        ) as server,
    ):
        model = OpenAIChatCompletionsModel(model="policy", openai_client=policy)
        agent = Agent(name="Assistant", model=model, mcp_servers=[server])
        result = await Runner.run(agent, task(numbers), max_turns=20)
    outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    texts = [output["text"] if isinstance(output, dict) else output for output in outputs]
    return Played(seen=texts, structured=[json.loads(text) if text.startswith("{") else None for text in texts])


async def pydantic_ai(numbers: Numbers, url: str, headers: Headers, chat_url: str) -> Played:
    from pydantic_ai import Agent
    from pydantic_ai.mcp import MCPToolset
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("policy", provider=OpenAIProvider(base_url=chat_url, api_key="none"))
    agent = Agent(model, toolsets=[MCPToolset(url, headers=headers)])
    result = await agent.run(task(numbers))
    parts = [part for message in result.all_messages() for part in message.parts]
    answers = [part.content for part in parts if part.part_kind in {"tool-return", "retry-prompt"}]
    return Played(
        seen=[answer if isinstance(answer, str) else json.dumps(answer) for answer in answers],
        structured=[answer if isinstance(answer, dict) else None for answer in answers],
    )


PLAYERS: dict[str, Player] = {
    "mcp_legacy": mcp_legacy,
    "mcp_auto": mcp_auto,
    "mcp_modern": mcp_modern,
    "mcp_1": mcp_1,
    "fastmcp": fastmcp,
    "langchain_create_agent": _with_langchain_mcp(_create_agent),
    "langchain_prebuilt": _with_langchain_mcp(_create_react_agent),
    "langchain_graph": _with_langchain_mcp(_state_graph),
    "adapters_create_agent": _with_adapters(_create_agent),
    "adapters_prebuilt": _with_adapters(_create_react_agent),
    "adapters_graph": _with_adapters(_state_graph),
    "adapters_session": adapters_session,
    "openai_agents": openai_agents,
    "pydantic_ai": pydantic_ai,
}


async def _outcome(player: Player, episode: tuple[Numbers, str, Headers, str]) -> Played | str:
    try:
        return await player(*episode)
    except Exception as error:  # noqa: BLE001  # whatever the client throws is what the test is about
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        return f"{type(error).__name__}: {error}"


async def main() -> None:
    """Play the episodes listed on stdin."""
    warnings.simplefilter("ignore")  # beta and deprecation notices of the frameworks
    played = {}
    for name, episodes in json.load(sys.stdin).items():
        played[name] = await asyncio.gather(*(_outcome(PLAYERS[name], tuple(episode)) for episode in episodes))
    ours = [name for name in sys.modules if name.startswith("dreamgym")]
    print(json.dumps({"played": played, "ours": ours}))


if __name__ == "__main__":
    asyncio.run(main())
