"""OpenEnv's own clients, used as in its documentation.

Arguments: base URL and token. Prints what the clients saw, as JSON.
"""

import asyncio
import json
import sys
from typing import Any

from openenv.core import GenericEnvClient, MCPToolClient
from openenv.core.env_server.mcp_types import CallToolAction


async def generic(base_url: str, headers: dict[str, str]) -> dict[str, Any]:
    """Play two episodes over one websocket, with rewards."""
    async with GenericEnvClient(base_url=base_url, headers=headers) as env:
        before = await env.state()
        first = await env.reset(task_id="counter-1", seed=7, prompt="a column of the data set")
        steps = [await env.step({"tool_name": "add", "arguments": {"n": n}}) for n in (4, -1, 5, 1)]
        state = await env.state()
        second = await env.reset(task_id="counter-2")
        again = await env.step({"type": "call_tool", "tool_name": "add", "arguments": {"n": 1}})
        try:
            await env.step({"tool_name": ""})
            refused = ""
        except RuntimeError as error:
            refused = str(error)
    return {
        "before": before,
        "first": first.observation,
        "steps": [[step.observation["result"]["data"], step.reward, step.done] for step in steps],
        "state": state,
        "second": second.observation["text"],
        "again": again.observation["result"]["data"],
        "refused": refused,
    }


async def tools(base_url: str, headers: dict[str, str]) -> dict[str, Any]:
    """Call tools by their names, and take steps in the same episode."""
    async with MCPToolClient(base_url=base_url, headers=headers) as env:
        names = [tool.name for tool in await env.list_tools()]
        unreset = await env.call_tool("add", n=3)
        await env.reset(task_id="counter-2")
        called = await env.call_tool("add", n=1)
        stepped = await env.step(CallToolAction(tool_name="add", arguments={"n": 7}))
        state = await env.state()
    return {
        "names": names,
        "unreset": unreset,
        "called": called,
        "stepped": [stepped.observation.result["data"], stepped.reward, stepped.done],
        "count": state.step_count,
    }


async def parallel(base_url: str, headers: dict[str, str]) -> list[list[str]]:
    """Run eight clients at once, each with its own episode."""

    async def life(number: int) -> list[str]:
        async with GenericEnvClient(base_url=base_url, headers=headers) as env:
            await env.reset(task_id=f"counter-{number % 3}")
            seen = [await env.step({"tool_name": "add", "arguments": {"n": n}}) for n in (1, 2)]
        return [step.observation["result"]["data"] for step in seen]

    return list(await asyncio.gather(*(life(number) for number in range(8))))


async def main(base_url: str, token: str) -> None:
    """Run all clients and print what they saw."""
    headers = {"Authorization": f"Bearer {token}"}
    try:
        async with GenericEnvClient(base_url=base_url) as env:
            await env.reset()
        stranger = "came in"
    except ConnectionError as error:
        stranger = str(error)
    seen = {
        "stranger": stranger,
        "generic": await generic(base_url, headers),
        "tools": await tools(base_url, headers),
        "parallel": await parallel(base_url, headers),
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
