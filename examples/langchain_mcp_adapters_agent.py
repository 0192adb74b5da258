"""A LangChain agent (`create_agent`) with the tools of an MCP server through langchain-mcp-adapters.

The adapters need mcp 1.x, so install them in a virtual environment of their own, with the versions of
constraints-mcp1.txt. They open an MCP session for every call. This does no harm, because the URL names the episode.

python langchain_mcp_adapters_agent.py MCP_URL CHAT_URL TASK
"""

import asyncio
import os
import sys

from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_openai import ChatOpenAI
from pydantic import SecretStr


async def play(task: str, mcp_url: str, policy_url: str) -> str:
    model = ChatOpenAI(
        model=os.environ.get("MODEL", "policy"),
        base_url=policy_url,
        api_key=SecretStr(os.environ.get("OPENAI_API_KEY", "none")),
    )
    client = MultiServerMCPClient({"environment": {"transport": "http", "url": mcp_url}})
    agent = create_agent(model, await client.get_tools())
    result = await agent.ainvoke({"messages": [{"role": "user", "content": task}]})
    return str(result["messages"][-1].text)


if __name__ == "__main__":
    url, chat_url, text = sys.argv[1:]
    print(asyncio.run(play(text, url, chat_url)))
