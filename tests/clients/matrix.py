"""The expected behaviour of each client, an environment with structured content, and a function that runs clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server_stage import ADD_TOOL, CounterEnvironment, counter_spec

from dreamgym.types import JsonObject, StepResult, ToolCall

ROOT = Path(__file__).parents[2]
MCP_1 = ROOT / ".venv-mcp1" / "bin" / "python"

KEPT, RESET, REFUSED = "yes", "**a new episode with every call**", "refused, with the reason"
"""Cells of the table: whether an episode is kept from call to call."""


@dataclass(frozen=True)
class Client:
    """One row of the table."""

    name: str
    package: str
    player: str
    at_bare_url: str = KEPT
    needs_mcp_1: bool = False


CLIENTS = (
    Client("`Client`, handshake", "mcp 2.3", "mcp_legacy"),
    Client("`Client`, default", "mcp 2.3", "mcp_auto"),
    Client("`Client`, pinned to 2026-07-28", "mcp 2.3", "mcp_modern", at_bare_url=REFUSED),
    Client("`ClientSession`", "mcp 1.30", "mcp_1", needs_mcp_1=True),
    Client("`Client`", "fastmcp 4.1", "fastmcp"),
    Client("`create_agent`", "langchain.mcp 1.4", "langchain_create_agent"),
    Client("`create_react_agent`", "langchain.mcp 1.4, LangGraph 1.2", "langchain_prebuilt"),
    Client("`StateGraph` with `ToolNode`", "langchain.mcp 1.4, LangGraph 1.2", "langchain_graph"),
    Client("`create_agent`", "langchain-mcp-adapters 0.3", "adapters_create_agent", RESET, needs_mcp_1=True),
    Client("`create_react_agent`", "langchain-mcp-adapters 0.3", "adapters_prebuilt", RESET, needs_mcp_1=True),
    Client("`StateGraph` with `ToolNode`", "langchain-mcp-adapters 0.3", "adapters_graph", RESET, needs_mcp_1=True),
    Client("`create_agent`, `client.session()`", "langchain-mcp-adapters 0.3", "adapters_session", needs_mcp_1=True),
    Client("`Agent`", "openai-agents 0.24", "openai_agents"),
    Client("`Agent`", "pydantic-ai 2.68", "pydantic_ai"),
)


def table() -> str:
    """Return the table in Markdown. test_every_client.py asserts every cell."""
    head = "| client | of | episode in the URL | in the header | bare URL | tool errors | structured content |"
    rows = [f"| {row.name} | {row.package} | {KEPT} | {KEPT} | {row.at_bare_url} | yes | yes |" for row in CLIENTS]
    return "\n".join([head, "|---|---|---|---|---|---|---|", *rows])


STRUCTURED_TOOL: JsonObject = {
    **ADD_TOOL,
    "outputSchema": {"type": "object", "required": ["count"], "properties": {"count": {"type": "integer"}}},
}


class StructuredCounter(CounterEnvironment):
    """A counter whose answers have structured content."""

    async def step(self, action: ToolCall) -> StepResult:
        result = await super().step(action)
        count = int(result.observation.split()[-1])
        return result.model_copy(update={"info": {"structured": {"count": count}}})


structured_spec = counter_spec("structured", tools_list={"tools": [STRUCTURED_TOOL]})


Order = tuple[Sequence[int], str, dict[str, str], str]
"""Numbers to add, MCP URL, headers and chat URL of one episode."""


async def run_clients(python: str, orders: Mapping[str, Sequence[Order]]) -> dict[str, list[Any]]:
    """Let players play their episodes in a process that must not import dreamgym. Returns what each saw."""
    process = await asyncio.create_subprocess_exec(
        python,
        str(Path(__file__).with_name("players.py")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, said = await process.communicate(json.dumps(orders).encode())
    assert process.returncode == 0, said.decode()
    result = json.loads(out)
    assert result["ours"] == []
    played: dict[str, list[Any]] = result["played"]
    return played
