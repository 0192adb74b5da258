"""Tools in the type that the openai client wants them in."""

from __future__ import annotations

from openai.types.chat import ChatCompletionFunctionToolParam
from pydantic import TypeAdapter

from dreamgym.types import JsonObject

_TOOL = TypeAdapter(ChatCompletionFunctionToolParam)


def openai_tool(tool: JsonObject) -> ChatCompletionFunctionToolParam:
    """The same tool."""
    return _TOOL.validate_python(tool)
