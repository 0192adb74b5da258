"""A newcomer's own agent: it shows a chat model the tools of an MCP server, and makes the calls of the model."""

import json
from typing import Any

from mcp import Client
from mcp.types import TextContent
from openai import AsyncOpenAI


async def play(task: str, mcp_url: str, policy_url: str) -> str:
    messages: list[Any] = [{"role": "user", "content": task}]
    async with Client(mcp_url) as environment, AsyncOpenAI(base_url=policy_url, api_key="none") as chat:
        tools: list[Any] = [
            {"type": "function", "function": {"name": tool.name, "parameters": tool.input_schema}}
            for tool in (await environment.list_tools()).tools
        ]
        for _ in range(3):
            completion = await chat.chat.completions.create(model="policy", messages=messages, tools=tools)
            message = completion.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return message.content or ""
            for call in message.tool_calls:
                if call.type != "function":
                    continue
                result = await environment.call_tool(call.function.name, json.loads(call.function.arguments))
                text = " ".join(part.text for part in result.content if isinstance(part, TextContent))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
                if "opens" in text:
                    return "The door is open."
    return "All doors are locked."
