"""Turns conversations into episodes; all message formats share this part.

Words of the agent beside a tool call are its thoughts and are left out: an episode contains only what the environment
was asked and what it answered. A call is answered by a result that follows it before the agent's next message. Results
are matched by id (ids may be used again later), else by name, else in order.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard

from pydantic import JsonValue

from dreamgym.content import result_of
from dreamgym.recordings.importers.base import (
    AgentMessage,
    ImportedEpisode,
    ImportedStep,
    Skipped,
    parse_json,
    text,
)
from dreamgym.state import objects
from dreamgym.types import JsonObject, StepResult, StopReason, ToolCall

_IN_PYTHON = {
    "structured_content": "structuredContent",
    "is_error": "isError",
    "meta": "_meta",
    "result_type": "resultType",
}
"""Fields of an MCP result as the Python SDK names them, and their names in the protocol."""
_MCP_FIELDS = {"content", *_IN_PYTHON, *_IN_PYTHON.values()}
_TEXTS = ("text", "input_text", "output_text")
_BLOCKS = frozenset({
    *_TEXTS, "image", "audio", "resource", "resource_link", "image_url", "input_image", "input_audio", "input_file",
    "document", "search_result", "tool_reference", "file", "refusal",
})  # fmt: skip
"""Types of content blocks, in MCP and in the messages of models."""


@dataclass(frozen=True)
class ToolRequest:
    """A tool call in a message."""

    name: str
    arguments: object
    """An object, or a text that should be the JSON of one."""
    id: str | None = None
    fault: str | None = None
    """A fault of the call that the format itself reports."""


@dataclass(frozen=True)
class ChatMessage:
    """One message, independent of its format."""

    role: str
    """user, assistant, tool or system."""
    text: str = ""
    calls: tuple[ToolRequest, ...] = ()
    answers: tuple[ToolAnswer, ...] = ()


@dataclass(frozen=True)
class ToolAnswer:
    """A tool result in a message."""

    result: StepResult
    id: str | None = None
    name: str | None = None


class _Turn:
    """The calls that the agent made since the last result or reply, and the results that belong to them.

    Each call waits in one queue per way to find it, so that a turn of many calls is matched in linear time.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[int, ToolRequest]] = []
        """Each call with the index of its message."""
        self.results: dict[int, StepResult] = {}
        """Results by position of their call in `calls`."""
        self._waiting: dict[tuple[str, str | None], deque[int]] = {}

    def add(self, index: int, call: ToolRequest) -> None:
        """Add a call of the message at `index`."""
        keys = [("any", None), ("any", call.name)]
        keys += [("no id", None), ("no id", call.name)] if call.id is None else [("id", call.id)]
        for key in keys:
            self._waiting.setdefault(key, deque()).append(len(self.calls))
        self.calls.append((index, call))

    def answer(self, answer: ToolAnswer) -> bool:
        """Give a result to the waiting call with its id, else to the first it may belong to; False if there is none.

        A result without an id may belong to any call, and one with an id to any call without an id. Either way, the
        call must be of the tool that the result names, if it names one.
        """
        keys = [("any", answer.name)] if answer.id is None else [("id", answer.id), ("no id", answer.name)]
        position = next((found for key in keys if (found := self._first(key)) is not None), None)
        if position is None:
            return False
        self.results[position] = answer.result
        return True

    def _first(self, key: tuple[str, str | None]) -> int | None:
        waiting = self._waiting.get(key, deque())
        while waiting and waiting[0] in self.results:
            waiting.popleft()
        return waiting[0] if waiting else None


@dataclass
class _Reader:
    """Reads one conversation, message by message."""

    where: str
    asked: list[str] = field(default_factory=list)
    steps: list[ImportedStep] = field(default_factory=list)
    left_out: list[Skipped] = field(default_factory=list)
    turn: _Turn = field(default_factory=_Turn)
    said: list[str] = field(default_factory=list)
    """The agent's words that no call, no result and no reply has followed yet."""
    acted: bool = False

    def take(self, index: int, message: ChatMessage) -> None:
        for answer in message.answers:
            if self.turn.answer(answer):
                self.said = []
            else:
                self.skip(index, f"a tool result without its call (id {answer.id!r}, tool {answer.name!r})")
        if message.role == "assistant":
            self._assistant(index, message)
        elif message.role == "user" and message.text:
            self._user(index, message.text)

    def _assistant(self, index: int, message: ChatMessage) -> None:
        if self.turn.results:
            self.close_turn()
        self.acted = True
        for call in message.calls:
            self.turn.add(index, call)
        if message.calls:
            self.said = []
        elif message.text:
            self.said.append(message.text)

    def _user(self, index: int, words: str) -> None:
        self.close_turn()
        if not self.acted:
            self.asked.append(words)
        elif self.said:
            self.steps.append(ImportedStep(AgentMessage("\n".join(self.said)), StepResult(observation=words)))
        else:
            self.skip(index, "a user message that does not follow a message of the agent")
        self.said = []

    def close_turn(self) -> None:
        """Turn the answered calls into steps, in the order in which they were made."""
        for position, (index, call) in enumerate(self.turn.calls):
            action = action_of(call)
            if not isinstance(action, ToolCall):
                self.skip(index, action)
            elif position not in self.turn.results:
                self.skip(index, f"the call of {call.name!r} has no result")
            else:
                self.steps.append(ImportedStep(action, self.turn.results[position]))
        self.turn = _Turn()

    def skip(self, index: int, reason: str) -> None:
        self.left_out.append(Skipped(f"{self.where}, message {index}", reason))


def episode_of(messages: Sequence[ChatMessage], where: str) -> ImportedEpisode:
    """Turn a conversation into an episode.

    The user's words before the agent's first message are the instruction. The agent's last words are its answer if
    neither a call nor a reply follows them.
    """
    reader = _Reader(where)
    for index, message in enumerate(messages):
        reader.take(index, message)
    reader.close_turn()
    answer = "\n".join(reader.said) or None
    return ImportedEpisode(
        where=where,
        instruction="\n\n".join(reader.asked),
        steps=tuple(reader.steps),
        stop_reason=StopReason.CLOSED if answer is None else StopReason.FINISHED,
        answer=answer,
        left_out=tuple(reader.left_out),
    )


def with_last_terminated(episode: ImportedEpisode) -> ImportedEpisode:
    """A copy of the episode whose last step is terminated by the environment."""
    if not episode.steps:
        return replace(episode, stop_reason=StopReason.TERMINATED)
    *others, last = episode.steps
    ended = ImportedStep(last.action, last.result.model_copy(update={"terminated": True}))
    return replace(episode, steps=(*others, ended), stop_reason=StopReason.TERMINATED)


def action_of(call: ToolRequest) -> ToolCall | str:
    """The call as an action, or the reason why it cannot be used."""
    if call.fault is not None:
        return f"the call of {call.name!r} cannot be used: {call.fault}"
    if not call.name:
        return "a call without the name of a tool"
    arguments = call.arguments
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments) if arguments.strip() else {}
        except ValueError as error:
            return f"the arguments of the call of {call.name!r} are not valid JSON: {error}"
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return f"the arguments of the call of {call.name!r} are not a JSON object, but {type(arguments).__name__}"
    return ToolCall(name=call.name, arguments=arguments)


def result_from(content: object, *, is_error: bool = False, structured: object = None) -> StepResult:
    """Make a StepResult from a tool result: a text, a list of content blocks, an MCP result, or any JSON value."""
    if is_mcp_result(content):
        said = {_IN_PYTHON.get(name, name): value for name, value in content.items() if value is not None}
        return result_of({**said, "isError": is_error or said.get("isError") is True})
    if isinstance(content, str):
        blocks: list[JsonObject] = [{"type": "text", "text": content}]
    elif is_content(content):
        blocks = [_block(block) for block in objects(content)]
    else:
        blocks = [{"type": "text", "text": "" if content is None else json.dumps(content, ensure_ascii=False)}]
    return result_of({"content": blocks, "isError": is_error, "structuredContent": structured})


def is_mcp_result(value: object) -> TypeGuard[JsonObject]:
    """True for an MCP result: an object with content and its other fields alone, or with `isError`.

    Another object may have a field of its own named `content`, and no answer may lose its other fields.
    """
    if not isinstance(value, dict) or not is_content(value.get("content")):
        return False
    return value.keys() <= _MCP_FIELDS or isinstance(value.get("isError", value.get("is_error")), bool)


def is_content(value: object) -> bool:
    """True if a value is a list of content blocks, at least one of them of a type that MCP or another format has."""
    if not isinstance(value, list):
        return False
    blocks = [block for block in value if isinstance(block, dict) and isinstance(block.get("type"), str)]
    return len(blocks) == len(value) and (not blocks or any(map(_is_known, blocks)))


def text_of(content: object) -> str:
    """The words of a message: a text, or the text blocks of a list."""
    if isinstance(content, list):
        return "\n".join(filter(None, (_words(block) for block in content)))
    return text(content)


def text_or_none(value: object) -> str | None:
    """A string as it is, None for everything else."""
    return value if isinstance(value, str) else None


def openai_tools(definitions: object) -> tuple[JsonObject, ...]:
    """Convert function definitions of chat completions, responses and OpenTelemetry to MCP tool definitions.

    A schema may also be called `input_schema`, as in `mcp_list_tools` and in Anthropic's definitions. A function
    without a schema takes no arguments; nothing else is filled in.
    """
    tools: list[JsonObject] = []
    for definition in objects(definitions):
        inner = definition.get("function")
        function = inner if isinstance(inner, dict) else definition
        name, schema = function.get("name"), function.get("parameters", function.get("input_schema"))
        if not isinstance(name, str) or not name or function.get("type") == "custom":
            continue
        tool: JsonObject = {"name": name}
        if isinstance(function.get("description"), str):
            tool["description"] = function["description"]
        if isinstance(function.get("annotations"), dict):
            tool["annotations"] = function["annotations"]
        tool["inputSchema"] = schema if isinstance(schema, dict) else {"type": "object", "properties": {}}
        tools.append(tool)
    return tuple(tools)


def _words(block: object) -> str:
    if isinstance(block, dict):
        return text(block.get("text")) if block.get("type") in _TEXTS else ""
    return text(block)


def _is_known(block: JsonObject) -> bool:
    return block["type"] in _BLOCKS and (block["type"] not in _TEXTS or isinstance(block.get("text"), str))


def _block(block: JsonObject) -> JsonObject:
    """A block as an MCP block, if MCP has the same thing under another name; else the block itself."""
    data: JsonValue = block.get("base64", block.get("data"))
    if block.get("type") in ("image", "audio") and isinstance(data, str):
        return {"type": block["type"], "data": data, "mimeType": block.get("mime_type", block.get("mimeType", ""))}
    if block["type"] in _TEXTS and isinstance(block.get("text"), str):
        return {"type": "text", "text": block["text"]}
    return block
