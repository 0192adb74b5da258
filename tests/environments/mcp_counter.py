"""A counter as an MCP server, with the SDK's low-level API; over stdio: `python mcp_counter.py`."""

import asyncio
import os
from typing import Any

from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent, Tool

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
COUNT: dict[str, Any] = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
PAGES = {
    None: ListToolsResult(tools=[Tool(name="add", input_schema=SCHEMA, output_schema=COUNT)], next_cursor="2"),
    "2": ListToolsResult(tools=[Tool(name="secret", input_schema={"type": "object"})]),
}


def counter() -> Server[Any]:
    """A new counter at 0."""
    count = 0

    async def list_tools(_: object, params: PaginatedRequestParams | None) -> ListToolsResult:
        return PAGES[params.cursor if params else None]

    async def call_tool(_: object, params: CallToolRequestParams) -> CallToolResult:
        nonlocal count
        if params.name == "secret":
            return said(os.environ.get("COUNTER_SECRET", "not set"))
        if params.name != "add":
            raise MCPError(-32602, f"no tool {params.name}")
        n = (params.arguments or {})["n"]
        if n < 0:
            return said("only up", is_error=True)
        count += n
        return said(f"count {count}", structured_content={"count": count})

    return Server("counter", on_list_tools=list_tools, on_call_tool=call_tool)


def said(text: str, **more: Any) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], **more)


async def main() -> None:
    async with stdio_server() as (read, write):
        server = counter()
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
