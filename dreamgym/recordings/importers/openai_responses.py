"""Importer for items of OpenAI's Responses API (its reference of November 2026; Python package openai 3.52).

A document is a list of items, a request with `input`, a response with `output`, both in one object, or a page of a
conversation's items. A stored response contains only its own turn. One with a `previous_response_id` continues that
response if both are in one file. A call of an MCP tool contains its own result and error. Results of functions have no
mark for an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from pydantic import JsonValue

from dreamgym.recordings.importers.base import Document, Found, Importer, Skipped, text
from dreamgym.recordings.importers.messages import (
    ChatMessage,
    ToolAnswer,
    ToolRequest,
    episode_of,
    openai_tools,
    result_from,
    text_or_none,
)
from dreamgym.recordings.importers.openai_chat import message_of
from dreamgym.state import objects
from dreamgym.types import JsonObject, StepResult

_CALLS = ("_call", "_call_output")
_OTHER_ITEMS = ("reasoning", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "item_reference")


def is_item(item: JsonObject) -> bool:
    """True for an item that chat messages do not have: a call, its output, a list of tools, reasoning."""
    kind = text(item.get("type"))
    return "role" not in item and (kind in _OTHER_ITEMS or (kind.endswith(_CALLS) and kind != "tool_call"))


def matches(value: JsonValue) -> bool:
    """True for a response, or for items that are not all chat messages, alone or as `input` or `output`."""
    items = _items(value)
    if not all(is_item(item) or isinstance(item.get("role"), str) for item in items):
        return False
    is_response = isinstance(value, dict) and value.get("object") == "response"
    return is_response or any(is_item(item) for item in items)


def read(documents: Sequence[Document]) -> Iterator[Found]:
    """The episode of each conversation; responses that continue each other are one conversation."""
    for chain in _chains(documents):
        where = chain[0].where
        items = [item for document in chain for item in _items(document.value)]
        if items:
            yield replace(episode_of(messages_of(items), where), tools=_definitions(chain, items))
        else:
            yield Skipped(where, "is not a list of items and has no such list as input or output")


def messages_of(items: Iterable[JsonObject]) -> list[ChatMessage]:
    """Convert items to messages, one for each.

    An MCP call contains its result. The result is moved to the next item that is not a call, so that calls that the
    agent made at once stay one turn.
    """
    messages: list[ChatMessage] = []
    results: list[ToolAnswer] = []
    for item in items:
        message = _message(item)
        if message.role in ("user", "assistant", "tool") and not message.calls:
            message = replace(message, answers=(*results, *message.answers))
            results = []
        messages.append(message)
        result = _mcp_result(item) if item.get("type") == "mcp_call" else None
        if result is not None:
            results.append(ToolAnswer(result, id=message.calls[0].id, name=message.calls[0].name))
    return [*messages, ChatMessage("tool", answers=tuple(results))] if results else messages


def _message(item: JsonObject) -> ChatMessage:
    kind = text(item.get("type"))
    if isinstance(item.get("role"), str):
        return message_of(item)
    if kind == "function_call_output":
        answer = ToolAnswer(result_from(item.get("output")), id=text_or_none(item.get("call_id")))
        return ChatMessage("tool", answers=(answer,))
    if kind.endswith("_call"):
        is_ours = kind in ("function_call", "mcp_call")
        call = ToolRequest(
            text(item.get("name")) if is_ours else kind,
            item.get("arguments"),
            text_or_none(item.get("call_id")) or text_or_none(item.get("id")),
            None if is_ours else "it is neither a call of a function nor of an MCP tool",
        )
        return ChatMessage("assistant", calls=(call,))
    return ChatMessage("")


def _mcp_result(item: JsonObject) -> StepResult | None:
    """The result of an MCP call; None if it was not answered.

    An error is a text, a protocol error, or the content of a tool error.
    """
    error, output = item.get("error"), item.get("output")
    if error is not None:
        told = error.get("content", error.get("message")) if isinstance(error, dict) else error
        return result_from(told, is_error=True)
    return None if output is None else result_from(output, is_error=item.get("status") == "failed")


def _chains(documents: Sequence[Document]) -> list[list[Document]]:
    """The documents in groups: each response follows the one that it continues, whatever their order in the file.

    If several continue the same response, the first of them follows it, and each other one is a group of its own. If
    several have the same id, the nearest one before the response is continued.
    """
    after: dict[int, int] = {}
    open_: dict[str, list[int]] = {}
    """The responses that nothing continues yet, by id."""
    early: list[tuple[str, int]] = []
    """The responses that no earlier one precedes, each with the id that it continues."""
    for number, document in enumerate(documents):
        fields = document.value if isinstance(document.value, dict) else {}
        if before := text(fields.get("previous_response_id")):
            if open_.get(before):
                after[open_[before].pop()] = number
            else:
                early.append((before, number))
        if response := text(fields.get("id")):
            open_.setdefault(response, []).append(number)
    for before, number in early:
        if open_.get(before) and open_[before][-1] != number:
            after[open_[before].pop()] = number
    continuing = set(after.values())
    firsts = [number for number in range(len(documents)) if number not in continuing]
    chains, seen = list[list[Document]](), set[int]()
    for first in (*firsts, *range(len(documents))):  # those of a circle have no first one
        at: int | None = first
        chain: list[Document] = []
        while at is not None and at not in seen:
            seen.add(at)
            chain.append(documents[at])
            at = after.get(at)
        chains += [chain] if chain else []
    return chains


def _definitions(chain: Sequence[Document], items: Sequence[JsonObject]) -> tuple[JsonObject, ...]:
    """Functions of the requests and tools that MCP servers listed; the first definition of each name."""
    sources = [document.value.get("tools") for document in chain if isinstance(document.value, dict)]
    sources += [item.get("tools") for item in items if item.get("type") == "mcp_list_tools"]
    tools: dict[str, JsonObject] = {}
    for source in sources:
        for tool in openai_tools(source):
            tools.setdefault(str(tool["name"]), tool)
    return tuple(tools.values())


def _items(value: JsonValue) -> list[JsonObject]:
    if not isinstance(value, dict):
        return objects(value)
    asked = value.get("input")
    given: JsonValue = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    page = value.get("data") if value.get("object") == "list" else None
    return [*objects(given), *objects(value.get("output")), *objects(page)]


OPENAI_RESPONSES = Importer("openai-responses", "items of OpenAI's Responses API", matches, read)
