"""The built-in agent: it reasons, calls a tool and reads the answer, until the model answers without a call.

It knows nothing of episodes or rewards, so it would run unchanged against the real system's own MCP server.
The policy is any chat-completions endpoint, `http://host/v1` or `http://host/v1#model`.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from dreamgym.errors import EnvironmentUnavailable, MissingPackage

if TYPE_CHECKING:
    from mcp import Client
    from openai.types.chat import ChatCompletionMessageToolCallUnion

MAX_TURNS = 100
"""Limit for a model that never stops calling tools; environments have far lower limits of their own."""
MAX_PAGES = 100
"""Limit for a server that never stops listing tools."""
STEP_TIMEOUT_S = 930.0
"""Slightly longer than the server's limit for a step."""
SYSTEM = (
    "Solve the user's task with the tools, one call at a time. Say in a few words what you think before each call. "
    "When the task is done or cannot be done, answer without a call."
)


async def play(task: str, mcp_url: str, policy_url: str) -> str:
    """Work on the task with the tools at `mcp_url`, asking the model at `policy_url`. Returns the final answer."""
    try:
        import httpx2
        from mcp import Client
        from mcp.client.streamable_http import streamable_http_client
        from openai import AsyncOpenAI
    except ImportError as error:
        raise MissingPackage("the agent 'react'", "client,openai") from error
    base_url, _, model = policy_url.partition("#")
    key = os.environ.get("OPENAI_API_KEY") or "none"
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task}]
    async with (
        httpx2.AsyncClient(timeout=STEP_TIMEOUT_S) as http,  # that of the SDK gives up after five minutes
        Client(streamable_http_client(mcp_url, http_client=http), read_timeout_seconds=STEP_TIMEOUT_S) as environment,
        AsyncOpenAI(base_url=base_url, api_key=key) as policy,
    ):
        listed = await environment.list_tools()
        offered = list(listed.tools)
        for _ in range(MAX_PAGES - 1):
            if listed.next_cursor is None:
                break
            listed = await environment.list_tools(cursor=listed.next_cursor)
            offered += listed.tools
        tools: list[Any] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description or "",
                    "parameters": tool.input_schema,
                },
            }
            for tool in offered
        ]
        for _ in range(MAX_TURNS):
            completion = await policy.chat.completions.create(model=model or "policy", messages=messages, tools=tools)
            if not completion.choices:  # some endpoints report an error with status 200
                got = completion.model_dump_json(exclude_unset=True)[:300]
                raise EnvironmentUnavailable(f"{base_url}: expected a chat completion with a message, got {got}")
            said = completion.choices[0].message
            messages.append(said.model_dump(exclude_none=True))
            if not said.tool_calls:
                return said.content or ""
            for call in said.tool_calls:
                seen = await _observe(environment, call)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": seen})
    return ""


async def _observe(environment: Client, call: ChatCompletionMessageToolCallUnion) -> str:
    """Text of the tool's answer. If the call cannot be made: the reason, which lets the model correct the call."""
    from mcp import MCPError
    from mcp.types import TextContent

    if call.type != "function":
        return f"There are only function tools, no {call.type!r} tools."
    try:
        given = json.loads(call.function.arguments or "{}")
        # A connection would break on half a surrogate pair, and would carry NaN as null.
        json.dumps([call.function.name, given], ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        return f"The arguments are not JSON: {error}"
    if not isinstance(given, dict):
        return f"The arguments must be a JSON object, not {type(given).__name__}."
    try:
        result = await environment.call_tool(call.function.name, given)
    except MCPError as error:
        return f"The call was refused: {error}"
    return "\n".join(part.text for part in result.content if isinstance(part, TextContent))
