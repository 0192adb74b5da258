"""Tool calls in a policy's text: how they are written, and read.

A policy whose chat template knows tools writes `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as Hermes and
Qwen do. A policy whose template does not know tools can act only if there is one tool that takes one text: whatever it
writes is that text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from pydantic import JsonValue

from dreamgym.environment import text_argument_of
from dreamgym.errors import InvalidInput
from dreamgym.training.rollout import MAX_DEPTH, is_too_deep
from dreamgym.types import JsonObject, ToolCall
from dreamgym_integrations.models.chat_server import Reply

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
_END = "</tool_call>"
_ESCAPED_END = "\\u003c/tool_call>"
"""`_END` as it is written inside a JSON string."""


def check_tools(tools: Sequence[JsonObject], *, knows_tools: bool) -> None:
    """Raise InvalidInput if the policy has no way to call these tools."""
    if tools and not knows_tools and _text_argument(tools) is None:
        names = ", ".join(str(_function(tool).get("name")) for tool in tools)
        raise InvalidInput(
            "the policy's chat template does not support tools written as <tool_call>{JSON}</tool_call>, so the policy "
            f"can call only a single tool whose only argument is a text, not {names}: use a policy with such a template"
        )


def reply_of(words: str, tools: Sequence[JsonObject], *, knows_tools: bool) -> Reply:
    """The reply to the agent for a policy's text. A malformed call stays text, as in vLLM, and the agent reads it."""
    if not tools:
        return Reply(text=words)
    if knows_tools:
        try:
            return _called(words)
        except (ValueError, RecursionError):
            return Reply(text=words)
    named = _text_argument(tools)
    assert named is not None, "the tools were checked"
    tool, argument = named
    return Reply(tool_calls=(ToolCall(name=tool, arguments={argument: words}),))


def calls_nobody_can_run(words: str, reply: Reply, tools: Sequence[JsonObject]) -> int:
    """Number of calls in a policy's text that cannot be run: malformed, or of a tool that was not offered.

    If one call is malformed, the whole answer is text, and none of its calls is run.
    """
    names = {_function(tool).get("name") for tool in tools}
    if tools and not reply.tool_calls:
        return words.count("<tool_call>")
    return sum(call.name not in names for call in reply.tool_calls)


def call_as_text(call: ToolCall, *, knows_tools: bool) -> str:
    """The text that makes this call, as the templates of Hermes and Qwen write it; `reply_of` reads it back."""
    if not knows_tools:
        return " ".join(str(value) for value in call.arguments.values())
    worded = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"<tool_call>\n{worded.replace(_END, _ESCAPED_END)}\n{_END}"


def without_tool_calls(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """A conversation for a template that does not know tools: calls become text, their answers user messages."""
    return [_as_text(message) for message in messages]


def _as_text(message: JsonObject) -> JsonObject:
    if message["role"] == "tool":
        return {"role": "user", "content": message["content"]}
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    said = [message["content"]]
    for call in calls:
        arguments = _function(call).get("arguments")
        said += arguments.values() if isinstance(arguments, dict) else [arguments]
    return {"role": message["role"], "content": " ".join(str(text) for text in said if text)}


def _called(words: str) -> Reply:
    """The reply for a text with calls. Raises ValueError if a call is malformed."""
    calls = tuple(_call(found.group(1)) for found in _CALL.finditer(words))
    if not calls:
        return Reply(text=words)
    return Reply(text=words[: words.index("<tool_call>")].strip() or None, tool_calls=calls)


def _call(text: str) -> ToolCall:
    call = json.loads(text, parse_constant=_no_constant)
    if not isinstance(call, dict) or not isinstance(call.get("arguments", {}), dict):
        raise ValueError("expected an object with a name and arguments")
    if is_too_deep(call):
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels, which every server refuses")
    # raises for what cannot be sent: 1e999, and half a surrogate pair
    json.dumps(call, ensure_ascii=False, allow_nan=False).encode()
    return ToolCall(name=call.get("name") or "", arguments=call.get("arguments", {}))


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _text_argument(tools: Sequence[JsonObject]) -> tuple[str, str] | None:
    return text_argument_of([(str(_function(tool).get("name")), _function(tool).get("parameters")) for tool in tools])


def _function(tool: JsonValue) -> JsonObject:
    function = tool.get("function") if isinstance(tool, dict) else None
    return function if isinstance(function, dict) else {}
