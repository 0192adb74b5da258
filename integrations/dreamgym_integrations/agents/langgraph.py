"""A LangGraph agent as LangChain's documentation builds one: `create_agent` with the tools of an MCP server.

`langchain.mcp` is used because langchain-mcp-adapters cannot be imported together with mcp 2.
"""

from __future__ import annotations

import os
import warnings

from pydantic import SecretStr

from dreamgym.errors import MissingPackage

MAX_TURNS = 100
STEP_TIMEOUT_S = 930.0
"""Slightly longer than the server's limit for a step."""


async def play(task: str, mcp_url: str, policy_url: str) -> str:
    """Work on the task with the tools at `mcp_url`, asking the model at `policy_url`. Returns the final answer."""
    try:
        from langchain.agents import create_agent
        from langchain_core._api import LangChainBetaWarning
        from langchain_openai import ChatOpenAI
        from openai import DefaultAsyncHttpxClient

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LangChainBetaWarning)
            from fastmcp import Client
            from langchain.mcp import MCPAdapter
    except ImportError as error:
        raise MissingPackage("the agent 'langgraph'", "langgraph") from error
    base_url, _, name = policy_url.partition("#")
    key = SecretStr(os.environ.get("OPENAI_API_KEY") or "none")
    # An HTTP client of its own: ChatOpenAI would share one between event loops, and never close it.
    async with DefaultAsyncHttpxClient() as http, MCPAdapter(Client(mcp_url, timeout=STEP_TIMEOUT_S)) as adapter:
        model = ChatOpenAI(model=name or "policy", base_url=base_url, api_key=key, http_async_client=http)
        agent = create_agent(model, await adapter.list_tools())
        result = await agent.ainvoke(
            {"messages": [{"role": "user", "content": task}]}, {"recursion_limit": 2 * MAX_TURNS + 1}
        )
    return str(result["messages"][-1].text)
