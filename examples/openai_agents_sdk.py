"""An agent of the OpenAI Agents SDK with the tools of an MCP server.

python openai_agents_sdk.py MCP_URL CHAT_URL TASK
"""

import asyncio
import os
import sys

from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from agents.mcp import MCPServerStreamableHttp
from openai import AsyncOpenAI

set_tracing_disabled(disabled=True)


async def play(task: str, mcp_url: str, policy_url: str) -> str:
    # The default of 5 seconds is too short for a step that a language model simulates.
    async with (
        AsyncOpenAI(base_url=policy_url, api_key=os.environ.get("OPENAI_API_KEY", "none")) as client,
        MCPServerStreamableHttp(params={"url": mcp_url}, client_session_timeout_seconds=60) as server,
    ):
        agent = Agent(
            name="Assistant",
            instructions="Use the tools to do the task.",
            model=OpenAIChatCompletionsModel(model=os.environ.get("MODEL", "policy"), openai_client=client),
            mcp_servers=[server],
        )
        result = await Runner.run(agent, task, max_turns=50)
    return str(result.final_output)


if __name__ == "__main__":
    url, chat_url, text = sys.argv[1:]
    print(asyncio.run(play(text, url, chat_url)))
