"""The shop as an MCP server over stdio: `python benchmarks/studies/shop/server.py [--db FILE] [--world N] [--quiet]`.

Each answer contains the whole world before and after it in `_meta` (`dreamgym/before`, `dreamgym/state`), so that a
recording contains explicit states. With `--quiet` the server does not show its state, like any other server.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
)
from shop import Shop
from tools import TOOLS, UnknownTool, call, told

from dreamgym.types import ToolCall


def server(shop: Shop, *, quiet: bool = False) -> Server[Any]:
    """An MCP server in front of a shop."""
    listed = ListToolsResult(tools=[Tool.model_validate(tool) for tool in TOOLS])

    async def list_tools(_: object, params: PaginatedRequestParams | None) -> ListToolsResult:
        return listed

    async def call_tool(_: object, params: CallToolRequestParams) -> CallToolResult:
        before = shop.state()
        try:
            answer = call(shop, ToolCall(name=params.name, arguments=params.arguments or {}))
        except UnknownTool as unknown:
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {unknown}") from unknown
        if not quiet:
            answer["_meta"] = told(before, shop.state())
        return CallToolResult.model_validate(answer)

    return Server("shop", version="1", on_list_tools=list_tools, on_call_tool=call_tool)


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--db", default=":memory:", help="SQLite file; an existing one keeps its data")
    parser.add_argument("--world", type=int, default=0, help="number of the start world of a new shop")
    parser.add_argument("--quiet", action="store_true", help="do not show the state in answers")
    given = parser.parse_args()
    shop = Shop(given.db, given.world)
    async with stdio_server() as (read, write):
        front = server(shop, quiet=given.quiet)
        await front.run(read, write, front.create_initialization_options())
    shop.close()


if __name__ == "__main__":
    asyncio.run(main())
