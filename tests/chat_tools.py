"""Tools in the type that the openai client expects."""

from __future__ import annotations

from openai.types.chat import ChatCompletionFunctionToolParam
from pydantic import TypeAdapter

from dreamgym.types import JsonObject

_TOOL = TypeAdapter(ChatCompletionFunctionToolParam)


def openai_tool(tool: JsonObject) -> ChatCompletionFunctionToolParam:
    """Convert an MCP tool to that type."""
    return _TOOL.validate_python(tool)
