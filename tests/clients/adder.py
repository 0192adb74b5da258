"""The scripted model that the agents of all clients ask."""

import json

from dreamgym_integrations.models.chat_server import Reply
from pydantic import JsonValue

from dreamgym.types import JsonObject, ToolCall


def adds(messages: list[JsonObject], tools: list[JsonObject]) -> Reply:
    """Call `add` with the numbers in the user's message, one after another, whatever the tool answers."""
    user = next(_text(message["content"]) for message in messages if message["role"] == "user")
    numbers: list[int] = json.loads(user.partition(": ")[2])
    done = sum(message["role"] == "tool" for message in messages)
    if done == len(numbers):
        return Reply("All added.")
    return Reply(tool_calls=(ToolCall(name="add", arguments={"n": numbers[done]}),))


def _text(content: JsonValue) -> str:
    if isinstance(content, list):
        return "".join(str(part["text"]) for part in content if isinstance(part, dict))
    return str(content)
