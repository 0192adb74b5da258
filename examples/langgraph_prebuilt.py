"""A LangGraph agent (`langgraph.prebuilt.create_react_agent`) with the tools of an MCP server.

LangGraph 1.0 moved it to `langchain.agents.create_agent`, but many agents still use this one.

python langgraph_prebuilt.py MCP_URL CHAT_URL TASK
"""

import asyncio
import os
import sys

from langchain.mcp import MCPAdapter
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent
from pydantic import SecretStr


async def play(task: str, mcp_url: str, policy_url: str) -> str:
    model = ChatOpenAI(
        model=os.environ.get("MODEL", "policy"),
        base_url=policy_url,
        api_key=SecretStr(os.environ.get("OPENAI_API_KEY", "none")),
    )
    async with MCPAdapter(mcp_url) as adapter:
        agent = create_react_agent(model, await adapter.list_tools())
        result = await agent.ainvoke(
            {"messages": [{"role": "user", "content": task}]},
            {"recursion_limit": 100},
        )
    return str(result["messages"][-1].text)


if __name__ == "__main__":
    url, chat_url, text = sys.argv[1:]
    print(asyncio.run(play(text, url, chat_url)))
