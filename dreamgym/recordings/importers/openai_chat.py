"""Importer for OpenAI chat messages: a list of messages, or an object with `messages` and perhaps `tools`.

Requests for chat completions have this form, and so do fine-tuning files, one object per line. Both `tool_calls` and
the older `function_call` are read. The format has no mark for a tool error and no reward, so none is made up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pydantic import JsonValue

from dreamgym.recordings.importers.base import Document, Found, ImportedEpisode, Importer, Skipped, each, text
from dreamgym.recordings.importers.messages import (
    ChatMessage,
    ToolAnswer,
    ToolRequest,
    episode_of,
    openai_tools,
    result_from,
    text_of,
    text_or_none,
)
from dreamgym.state import as_object, objects
from dreamgym.types import JsonObject

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def matches(value: JsonValue) -> bool:
    """True for a list of messages that each have a role, alone or under `messages`."""
    messages = _messages(value)
    return bool(messages) and all(isinstance(message.get("role"), str) for message in messages)


def read(document: Document) -> Iterator[Found]:
    """The episode of one conversation."""
    messages = _messages(document.value)
    blocks = {text(block.get("type")) for message in messages for block in objects(message.get("content"))}
    if blocks & {"tool_use", "tool_result"} and not any(calls_of(message) for message in messages):
        yield Skipped(
            document.where,
            "its calls are content blocks of Anthropic's Messages API (tool_use, tool_result), which are not read: "
            "give them as OpenAI's tool_calls and tool messages, or in the format 'steps'",
        )
        return
    episode = chat_episode(messages, document.where)
    if isinstance(episode, ImportedEpisode) and isinstance(document.value, dict):
        definitions = document.value.get("tools", document.value.get("functions"))
        episode = replace(episode, tools=openai_tools(definitions))
    yield episode


def chat_episode(messages: list[JsonObject], where: str) -> ImportedEpisode | Skipped:
    """Turn chat messages into an episode."""
    if not messages:
        return Skipped(where, "has no list of messages")
    return episode_of([message_of(message) for message in messages], where)


def message_of(message: JsonObject) -> ChatMessage:
    """Convert one chat message."""
    role = text(message.get("role"))
    if role in ("tool", "function"):
        answer = ToolAnswer(
            result_from(message.get("content")),
            id=text_or_none(message.get("tool_call_id")),
            name=text_or_none(message.get("name")),
        )
        return ChatMessage("tool", answers=(answer,))
    return ChatMessage(_ROLES.get(role, role), text_of(message.get("content")), tuple(calls_of(message)))


def calls_of(message: JsonObject) -> list[ToolRequest]:
    """The calls of a message: its `tool_calls`, or else its `function_call`."""
    calls = [_call(call) for call in objects(message.get("tool_calls"))]
    legacy = message.get("function_call")
    if isinstance(legacy, dict) and not calls:
        calls.append(_call({"function": legacy}))
    return calls


def _call(call: JsonObject) -> ToolRequest:
    function, kind = as_object(call.get("function")), call.get("type", "function")
    if kind == "tool_call":  # LangChain's form, which Langfuse keeps in messages of this format
        function, kind = {"name": call.get("name"), "arguments": call.get("args")}, "function"
    return ToolRequest(
        text(function.get("name")),
        function.get("arguments"),
        text_or_none(call.get("id")),
        None if kind == "function" else f"it is of type {kind!r}, not a function with JSON arguments",
    )


def _messages(value: JsonValue) -> list[JsonObject]:
    return objects(value.get("messages") if isinstance(value, dict) else value)


OPENAI = Importer("openai", "OpenAI chat messages with tool calls", matches, each(read))
