"""Decoding by skeleton: the program writes the names of the fields, the model only their values, one line each.

The result is always valid JSON, which a small model might get wrong. It costs nothing per token, while a grammar halves
the speed. Earlier JSON answers of a conversation are shown to the model in the same lines.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol

from pydantic import JsonValue

from dreamgym.llm import Message
from dreamgym.types import JsonObject


class Writer(Protocol):
    """A model that is writing an answer."""

    def feed(self, text: str) -> None:
        """Continue the answer with a given text."""

    def line(self) -> str:
        """Let the model write up to the end of the line."""

    def choose(self, texts: Sequence[str]) -> tuple[str, float]:
        """Feed the text that the model is likeliest to write next; return it and its probability among these texts."""


def fill(schema: JsonObject, writer: Writer) -> tuple[JsonObject, dict[str, float]]:
    """Let the model fill in the fields of a flat object schema, in its order; only the required ones if it lists any.

    `if`, `then` and `else` of the schema apply to later fields once the earlier ones are known. If they leave a field
    only one value, the program writes it.

    Returns:
        The object, and the probability of true for each boolean field.
    """
    properties, required = schema.get("properties"), schema.get("required")
    assert isinstance(properties, dict)
    answer: JsonObject = {}
    probabilities: dict[str, float] = {}
    for number, (name, definition) in enumerate(properties.items()):
        if isinstance(required, list) and required and name not in required:
            continue
        assert isinstance(definition, dict)
        writer.feed(f"\n{name}:" if number else f"{name}:")
        settled = _settled(schema, answer).get(name)
        if isinstance(settled, dict) and "const" in settled:
            answer[name] = settled["const"]
            writer.feed(f" {_written(answer[name])}")
        elif definition.get("type") == "boolean":
            chosen, probability = writer.choose(["no", "yes"])
            answer[name] = chosen == "yes"
            probabilities[name] = probability if chosen == "yes" else 1 - probability
        else:
            answer[name] = _value(definition, writer)
    return answer, probabilities


def _settled(schema: JsonObject, answer: JsonObject) -> JsonObject:
    """The definitions that follow from the schema's condition, if the fields that it tests are already written."""
    condition = schema.get("if")
    tested = condition.get("properties") if isinstance(condition, dict) else None
    if not isinstance(tested, dict) or not tested.keys() <= answer.keys():
        return {}
    holds = all(isinstance(one, dict) and answer[name] == one.get("const") for name, one in tested.items())
    branch = schema.get("then" if holds else "else")
    found = branch.get("properties") if isinstance(branch, dict) else None
    return found if isinstance(found, dict) else {}


def _value(definition: JsonObject, writer: Writer) -> JsonValue:
    choices, kind = definition.get("enum"), definition.get("type")
    if isinstance(choices, list):
        texts = {str(choice): choice for choice in choices}
        return texts[writer.choose(list(texts))[0]]
    text = writer.line().strip()
    if kind == "array" and text in ("", "-", "none"):
        return []
    if kind == "string":
        return _unescaped(text)
    if kind == ["string", "null"]:
        return None if text in ("", "-", "null") else _unescaped(text)
    try:
        value: JsonValue = None if text == "-" else json.loads(text)
    except ValueError:
        value = text  # of the wrong type: the caller's validation has the better message
    return value


def as_lines(messages: Sequence[Message]) -> list[Message]:
    """The conversation with every JSON answer replaced by the lines of its skeleton."""
    return [
        message.model_copy(update={"content": _lines(message.content)}) if message.role == "assistant" else message
        for message in messages
    ]


def _lines(content: str) -> str:
    try:
        answer = json.loads(content)
    except ValueError:
        return content
    if not isinstance(answer, dict):
        return content
    return "\n".join(f"{name}: {_written(value)}" for name, value in answer.items())


def _written(value: JsonValue) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "-"
    if isinstance(value, str):
        return value.replace("\\", "\\\\").replace("\n", "\\n")
    return json.dumps(value, ensure_ascii=False)


def _unescaped(text: str) -> str:
    halves = text.split("\\\\")
    return "\\".join(half.replace("\\n", "\n") for half in halves)
