"""Parts of the results that an MCP client gets."""

from __future__ import annotations

from typing import Any

from mcp_types import CallToolResult, Result, TextContent


def text_of(result: CallToolResult) -> str:
    """The first content block, which is text."""
    block = result.content[0]
    assert isinstance(block, TextContent)
    return block.text


def meta_of(result: Result) -> dict[str, Any]:
    """The `_meta` that came with the result."""
    assert result.meta is not None
    return result.meta
