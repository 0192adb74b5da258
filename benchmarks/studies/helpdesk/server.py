"""The helpdesk as an MCP server over stdio: `python benchmarks/studies/helpdesk/server.py [--world N] [--quiet]`.

Each answer contains the whole world before and after it in `_meta` (`dreamgym/before`, `dreamgym/state`), so that a
recording contains explicit states. With `--quiet` the server does not show its state, like any other server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

import jsonschema
from desk import PRIORITIES, Desk, Refusal
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

from dreamgym.types import JsonObject, ToolCall

TEXT: JsonObject = {"type": "string"}
TEXTS: JsonObject = {"type": "array", "items": {"type": "string"}}


def _tool(name: str, description: str, /, *optional: str, reads: bool = False, **arguments: JsonObject) -> JsonObject:
    required = [argument for argument in arguments if argument not in optional]
    schema: JsonObject = {
        "type": "object",
        "properties": {**arguments},
        "required": [*required],
        "additionalProperties": False,
    }
    return {"name": name, "description": description, "inputSchema": schema, "annotations": {"readOnlyHint": reads}}


TOOLS: tuple[JsonObject, ...] = (
    _tool("show_ticket", "A ticket with its comments.", reads=True, ticket=TEXT),
    _tool("find_tickets", "Tickets by tag, by status.", "tag", "status", reads=True, tag=TEXT, status=TEXT),
    _tool("show_queue", "The tickets that nobody has, the earliest due first.", reads=True),
    _tool("agent_workload", "What an agent works on.", reads=True, agent=TEXT),
    _tool("read_article", "An article of the knowledge base; its views are counted.", slug=TEXT),
    _tool("add_comment", "Comment on a ticket.", ticket=TEXT, author=TEXT, text=TEXT),
    _tool("tag_ticket", "Add and remove tags.", "remove", ticket=TEXT, add=TEXTS, remove=TEXTS),
    _tool("escalate", "Raise a ticket's priority by one; it is due earlier.", ticket=TEXT),
    _tool("put_on_hold", "Wait for the requester, who opens it again with a comment.", ticket=TEXT),
    _tool("assign", "Give a ticket to an agent, or to who has the fewest open ones.", "agent", ticket=TEXT, agent=TEXT),
    _tool(
        "open_ticket",
        "A new ticket.",
        requester=TEXT,
        subject=TEXT,
        priority={"type": "string", "enum": list(PRIORITIES)},
        tags=TEXTS,
    ),
    _tool("close_ticket", "Close a ticket that somebody has.", ticket=TEXT, resolution=TEXT),
    _tool("merge_tickets", "Merge a ticket into another one of the same trouble.", source=TEXT, target=TEXT),
    _tool("close_by_tag", "Close all tickets with a tag that somebody has.", tag=TEXT, resolution=TEXT),
    _tool("pass_hours", "Let time pass.", hours={"type": "integer"}),
)
_CHECKS = {str(tool["name"]): jsonschema.Draft202012Validator(tool["inputSchema"]) for tool in TOOLS}


def call(desk: Desk, action: ToolCall) -> JsonObject:
    """A `tools/call` result without `_meta`. Raises KeyError for an unknown tool."""
    fault = jsonschema.exceptions.best_match(_CHECKS[action.name].iter_errors(action.arguments))
    if fault is not None:
        return _said(f"Invalid arguments for {action.name}: {fault.message}", isError=True)
    try:
        answer = desk.act(action.name, action.arguments)
    except Refusal as refusal:
        return _said(str(refusal), isError=True)
    if isinstance(answer, str):
        return _said(answer, isError=False)
    return _said(json.dumps(answer, indent=2), structuredContent=answer, isError=False)


def _said(text: str, **more: JsonObject | bool) -> JsonObject:
    return {"content": [{"type": "text", "text": text}], **more}


def server(desk: Desk, *, quiet: bool = False) -> Server[Any]:
    """An MCP server in front of a desk."""
    listed = ListToolsResult(tools=[Tool.model_validate(tool) for tool in TOOLS])

    async def list_tools(_: object, params: PaginatedRequestParams | None) -> ListToolsResult:
        return listed

    async def call_tool(_: object, params: CallToolRequestParams) -> CallToolResult:
        if params.name not in _CHECKS:
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {params.name}")
        before = desk.state()
        answer = call(desk, ToolCall(name=params.name, arguments=params.arguments or {}))
        if not quiet:
            answer["_meta"] = {"dreamgym/before": before, "dreamgym/state": desk.state()}
        return CallToolResult.model_validate(answer)

    return Server("helpdesk", version="1", on_list_tools=list_tools, on_call_tool=call_tool)


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--world", type=int, default=0, help="number of the start world of the desk")
    parser.add_argument("--quiet", action="store_true", help="do not show the state in answers")
    given = parser.parse_args()
    front = server(Desk(given.world), quiet=given.quiet)
    async with stdio_server() as (read, write):
        await front.run(read, write, front.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
