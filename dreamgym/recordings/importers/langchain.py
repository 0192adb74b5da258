"""LangChain and LangGraph messages: `messages_to_dict`, `dumps` (the `lc` form), `model_dump`, or a graph's state.

A ToolMessage with status "error" is a tool error, and the structured content that langchain-mcp-adapters keeps in its
artifact stays structured content.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import JsonValue

from dreamgym.recordings.importers.base import Document, Found, Importer, Skipped, each, text
from dreamgym.recordings.importers.messages import (
    ChatMessage,
    ToolAnswer,
    ToolRequest,
    episode_of,
    result_from,
    text_of,
    text_or_none,
)
from dreamgym.recordings.importers.openai_chat import calls_of
from dreamgym.state import as_object, objects
from dreamgym.types import JsonObject

_ROLES = {
    "human": "user",
    "ai": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "tool",
    "remove": "system",
    "chat": "",
}


def matches(value: JsonValue) -> bool:
    """True for a list of messages that all have a LangChain type, alone or under `messages` or `values.messages`."""
    messages = _messages(value)
    return bool(messages) and all(_kind_and_fields(message)[0] in _ROLES for message in messages)


def read(document: Document) -> Iterator[Found]:
    """The episode of one conversation."""
    messages = _messages(document.value)
    if not messages:
        yield Skipped(document.where, "has no list of messages")
        return
    yield episode_of([_message(*_kind_and_fields(message)) for message in messages], document.where)


def langchain_message(fields: JsonObject) -> ChatMessage | None:
    """Convert one message in any of the three forms; None if it is not a LangChain message."""
    kind, inner = _kind_and_fields(fields)
    return _message(kind, inner) if kind in _ROLES else None


def _messages(value: JsonValue) -> list[JsonObject]:
    if isinstance(value, dict) and isinstance(value.get("values"), dict):
        value = value["values"]
    return objects(value.get("messages") if isinstance(value, dict) else value)


def _kind_and_fields(message: JsonObject) -> tuple[str, JsonObject]:
    """The message's type (human, ai, tool, …) and its fields, whichever of the three forms it has."""
    if message.get("lc") == 1:
        path, fields = message.get("id"), as_object(message.get("kwargs"))
        kind = fields.get("type") or (path[-1] if isinstance(path, list) and path else "")
    else:
        data = message.get("data")
        fields = data if isinstance(data, dict) else message
        kind = message.get("type")
    if "content" not in fields:
        return "", {}
    short = text(kind).removesuffix("Chunk").removesuffix("Message")
    return short.lower(), fields


def _message(kind: str, fields: JsonObject) -> ChatMessage:
    role = _ROLES.get(kind) or {"user": "user", "assistant": "assistant"}.get(text(fields.get("role")), "system")
    if role == "tool":
        return ChatMessage("tool", answers=(_answer(fields),))
    calls = [_call(call) for call in objects(fields.get("tool_calls"))]
    calls += [_invalid_call(call) for call in objects(fields.get("invalid_tool_calls"))]
    extra = fields.get("additional_kwargs")
    if not calls and isinstance(extra, dict):
        calls = calls_of(extra)
    return ChatMessage(role, text_of(fields.get("content")), tuple(calls))


def _answer(fields: JsonObject) -> ToolAnswer:
    content: JsonValue = fields.get("content")
    if isinstance(content, list):
        content = [{"type": "text", "text": block} if isinstance(block, str) else block for block in content]
    structured = as_object(fields.get("artifact")).get("structured_content")
    return ToolAnswer(
        result_from(content, is_error=fields.get("status") == "error", structured=structured),
        id=text_or_none(fields.get("tool_call_id")),
        name=text_or_none(fields.get("name")),
    )


def _call(call: JsonObject, fault: str | None = None) -> ToolRequest:
    return ToolRequest(text(call.get("name")), call.get("args"), text_or_none(call.get("id")), fault)


def _invalid_call(call: JsonObject) -> ToolRequest:
    reason = text(call.get("error")) or "its arguments are not valid JSON"
    return _call(call, f"LangChain marked it invalid: {reason}")


LANGCHAIN = Importer("langchain", "LangChain and LangGraph messages", matches, each(read))
