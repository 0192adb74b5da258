"""Lets any of our language models call tools: what it does next and with which arguments are two small JSON answers.

No model needs a tool-calling format of its own for it, so the small local one can stand behind an agent too.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from pydantic import JsonValue

from dreamgym.errors import PredictionError
from dreamgym.llm import LLM, Message
from dreamgym.types import JsonObject, ToolCall
from dreamgym_integrations.models.chat_server import Reply

FINAL = "final_answer"
MAX_TOKENS = 256


def chat_policy(llm: LLM) -> Callable[[list[JsonObject], list[JsonObject]], Awaitable[Reply]]:
    """A policy for `chat_server` that asks the model what to do next. Raises PredictionError on an unusable answer."""

    async def reply(messages: list[JsonObject], tools: list[JsonObject]) -> Reply:
        schemas = dict(_schema(tool) for tool in tools)
        asked = [_system(messages, tools), *(turn for message in messages for turn in _turns(message))]
        reasoning, chosen = "", FINAL
        if schemas:
            # a small model would rather answer at once, from nothing
            choices = [*schemas, FINAL] if any(message.get("role") == "tool" for message in messages) else [*schemas]
            first = await _answer(llm, asked, _next_schema(choices))
            reasoning, chosen = str(first.get("reasoning", "")), str(first.get("next"))
            if chosen != FINAL and chosen not in schemas:
                raise PredictionError(f"model {llm.name!r} chose {chosen!r}; there is {', '.join([*schemas, FINAL])}")
            asked += [_said({"reasoning": reasoning, "next": chosen}), _for_arguments(chosen)]
        if chosen == FINAL:
            final = await _answer(llm, asked, _FINAL_SCHEMA)
            return Reply(text=str(final.get("answer", "")))
        arguments = await _answer(llm, asked, schemas[chosen])
        return Reply(text=reasoning or None, tool_calls=(ToolCall(name=chosen, arguments=arguments),))

    return reply


_FINAL_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}


def _next_schema(choices: list[str]) -> JsonObject:
    return {
        "type": "object",
        "properties": {"reasoning": {"type": "string"}, "next": {"type": "string", "enum": [*choices]}},
        "required": ["reasoning", "next"],
        "additionalProperties": False,
    }


def _schema(tool: JsonObject) -> tuple[str, JsonObject]:
    function = tool.get("function")
    if not isinstance(function, dict):
        raise PredictionError(f"only function tools can be called, got {tool.get('type')!r}")
    parameters = function.get("parameters")
    return str(function["name"]), parameters if isinstance(parameters, dict) else {"type": "object", "properties": {}}


async def _answer(llm: LLM, messages: list[Message], schema: JsonObject) -> JsonObject:
    if schema.get("properties") == {}:
        return {}
    completion = await llm.complete(messages, schema=schema, max_tokens=MAX_TOKENS)
    try:
        value = json.loads(completion.text)
    except ValueError as error:
        raise PredictionError(f"model {llm.name!r} answered no JSON: {completion.text[:200]!r}") from error
    if not isinstance(value, dict):
        raise PredictionError(f"model {llm.name!r} answered no JSON object: {completion.text[:200]!r}")
    return value


def _system(messages: list[JsonObject], tools: list[JsonObject]) -> Message:
    given = [_text(message.get("content")) for message in messages if message.get("role") in ("system", "developer")]
    listed = [json.dumps(tool.get("function"), ensure_ascii=False) for tool in tools]
    how = (
        "You work on the user's task by calling tools, one call at a time, and read each result before the next call. "
        f'Say the tool to call next; say "{FINAL}" only after a result has shown that the task is done. Tools:'
        if tools
        else "Answer."
    )
    return Message(role="system", content="\n".join([*given, how, *listed]))


def _turns(message: JsonObject) -> list[Message]:
    """A message of the agent's conversation as this policy would have had it."""
    role, text = message.get("role"), _text(message.get("content"))
    if role == "user":
        return [Message(role="user", content=text)]
    if role == "tool":
        return [Message(role="user", content=f"Result: {text}")]
    if role != "assistant":
        return []
    turns: list[Message] = []
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            name = str(function.get("name"))
            turns += [_said({"reasoning": text, "next": name}), _for_arguments(name)]
            turns.append(Message(role="assistant", content=str(function.get("arguments") or "{}")))
    return turns or [Message(role="assistant", content=text)]


def _said(answer: JsonObject) -> Message:
    return Message(role="assistant", content=json.dumps(answer, ensure_ascii=False))


def _for_arguments(chosen: str) -> Message:
    what = "your answer" if chosen == FINAL else f"the arguments of {chosen}"
    return Message(role="user", content=f"Now give {what}.")


def _text(content: JsonValue) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
