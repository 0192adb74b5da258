"""A Pydantic AI agent with the tools of an MCP server.

python pydantic_ai_agent.py MCP_URL CHAT_URL TASK
"""

import asyncio
import os
import sys

from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


async def play(task: str, mcp_url: str, policy_url: str) -> str:
    provider = OpenAIProvider(base_url=policy_url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    model = OpenAIChatModel(os.environ.get("MODEL", "policy"), provider=provider)
    agent = Agent(model, toolsets=[MCPToolset(mcp_url)])
    result = await agent.run(task)
    return result.output


if __name__ == "__main__":
    url, chat_url, text = sys.argv[1:]
    print(asyncio.run(play(text, url, chat_url)))
