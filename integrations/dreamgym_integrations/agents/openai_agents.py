"""An agent of the OpenAI Agents SDK with an MCP server, as its documentation builds one.

By default the SDK gives up a tool call after five seconds, although the step still happens. A simulator that asks a
large model takes longer, so the limit is STEP_TIMEOUT_S here.
"""

from __future__ import annotations

import os

from dreamgym.errors import MissingPackage

MAX_TURNS = 100
STEP_TIMEOUT_S = 930.0
"""Slightly longer than the server's limit for a step."""


async def play(task: str, mcp_url: str, policy_url: str) -> str:
    """Work on the task with the tools at `mcp_url`, asking the model at `policy_url`. Returns the final answer."""
    try:
        from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner
        from agents.mcp import MCPServerStreamableHttp
        from openai import AsyncOpenAI
    except ImportError as error:
        raise MissingPackage("the agent 'openai_agents'", "openai-agents") from error
    base_url, _, name = policy_url.partition("#")
    key = os.environ.get("OPENAI_API_KEY") or "none"
    async with (
        AsyncOpenAI(base_url=base_url, api_key=key) as client,
        MCPServerStreamableHttp(
            {"url": mcp_url, "sse_read_timeout": STEP_TIMEOUT_S}, client_session_timeout_seconds=STEP_TIMEOUT_S
        ) as server,
    ):
        agent = Agent(
            name="agent",
            instructions="Solve the user's task with the tools.",
            model=OpenAIChatCompletionsModel(model=name or "policy", openai_client=client),
            mcp_servers=[server],
        )
        config = RunConfig(tracing_disabled=True)  # traces would be sent to OpenAI
        result = await Runner.run(agent, task, max_turns=MAX_TURNS, run_config=config)
    return str(result.final_output)
