"""Make three tool calls at the URL of an MCP server."""

import asyncio
import sys

from mcp import Client
from mcp.types import TextContent


async def main(url: str) -> None:
    """Make the calls and print the answers."""
    async with Client(url) as client:
        calls: list[tuple[str, dict[str, object]]] = [
            ("count", {"item": "rope"}),
            ("take", {"item": "rope", "number": 2}),
            ("count", {"item": "rope"}),
        ]
        for name, arguments in calls:
            result = await client.call_tool(name, arguments)
            print(name, arguments, *(part.text for part in result.content if isinstance(part, TextContent)))


asyncio.run(main(sys.argv[1]))
