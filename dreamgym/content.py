"""Converts between MCP tool results and StepResult: an observation as text, and content that text cannot hold.

A block that is not text becomes one line of the observation, such as `[image image/png]`; the text of an embedded
resource follows its line. If a model predicts the same, a recorded block takes its place, since a model cannot predict
a picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dreamgym.types import JsonObject, StepResult

BEFORE, AFTER = "dreamgym/before", "dreamgym/state"
"""Keys in the `_meta` of a real server's answer: the state of its world before and after the call."""
TOLD_KEYS = frozenset({BEFORE, AFTER})
_NOT_KEPT = ("dreamgym/", "io.modelcontextprotocol/")
"""Beginnings of the keys of a result's `_meta` that are not kept: ours, and those that the protocol itself writes."""
_KNOWN = frozenset({"content", "isError", "structuredContent", "_meta", "resultType", "inputRequests", "requestState"})
"""Fields of a result that have a place of their own, or that the protocol itself writes."""


def observation_of(content: Sequence[JsonObject]) -> str:
    """The content blocks as one text, joined by line breaks."""
    return "\n".join(_shown(block) for block in content)


def result_of(answer: Mapping[str, Any]) -> StepResult:
    """A raw `tools/call` result as a StepResult without reward and end. `tool_result` converts it back."""
    blocks = answer.get("content")
    content = [block for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
    info: JsonObject = {}
    if [set(block) for block in content] != [{"type", "text"}] or content[0]["type"] != "text":
        info["content"] = list(content)
    structured = answer.get("structuredContent")
    if structured is not None:
        info["structured"] = structured
    if fields := {name: value for name, value in answer.items() if name not in _KNOWN}:
        info["fields"] = fields
    meta = answer.get("_meta")
    if isinstance(meta, dict) and (own := {key: said for key, said in meta.items() if not key.startswith(_NOT_KEPT)}):
        info["meta"] = own
    return StepResult(observation=observation_of(content), is_error=answer.get("isError") is True, info=info)


def told(answer: Mapping[str, object], key: str) -> JsonObject | None:
    """The state in an answer's `_meta` under `key` (BEFORE or AFTER); None if there is none. No agent may see it."""
    meta = answer.get("_meta")
    state = meta.get(key) if isinstance(meta, dict) else None
    return state if isinstance(state, dict) else None


def tool_result(result: StepResult) -> JsonObject:
    """The `tools/call` result of a step, without `_meta`."""
    fields = result.info.get("fields")
    own = fields if isinstance(fields, dict) else {}
    answer: JsonObject = {**own, "content": list(result.content), "isError": result.is_error}
    if result.info.get("structured") is not None:
        answer["structuredContent"] = result.info["structured"]
    return answer


def storable(text: str) -> str:
    """The text as PostgreSQL can store it: NUL characters and lone surrogates are replaced."""
    return text.replace("\x00", "\ufffd").encode(errors="replace").decode()


def storable_answer(result: StepResult) -> StepResult:
    """The answer of an environment as PostgreSQL can store it. A real server may answer with any bytes of a file."""
    observation, info = storable_json([result.observation, result.info])
    if (observation, info) == (result.observation, result.info):
        return result
    return result.model_copy(update={"observation": observation, "info": info})


def storable_json(value: Any) -> Any:
    """The value with each text, and each name of a field, as PostgreSQL can store it."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable(name): storable_json(inner) for name, inner in value.items()}
    return [storable_json(inner) for inner in value] if isinstance(value, list) else value


def with_stand_ins(observation: str, recorded: Iterable[JsonObject]) -> list[JsonObject] | None:
    """Content blocks of a predicted observation, with recorded blocks in the place of their lines.

    Args:
        observation: the predicted text.
        recorded: blocks of recorded answers; the first block that is shown in the same lines replaces them.

    Returns:
        The blocks, or None if the observation is text alone.
    """
    stand_ins: dict[str, dict[tuple[str, ...], JsonObject]] = {}
    for block in recorded:
        if block.keys() != {"type", "text"}:  # also text blocks with annotations
            first, *more = _shown(block).split("\n")
            stand_ins.setdefault(first, {}).setdefault((first, *more), block)
    lines = observation.split("\n")
    content: list[JsonObject] = []
    text: list[str] = []
    at = 0
    while at < len(lines):
        alike = [shown for shown in stand_ins.get(lines[at], {}) if shown == tuple(lines[at : at + len(shown)])]
        if alike:
            shown = max(alike, key=len)
            content += [*_as_text(text), stand_ins[lines[at]][shown]]
            text = []
            at += len(shown)
        else:
            text.append(lines[at])
            at += 1
    return content + _as_text(text) if content else None


def _as_text(lines: list[str]) -> list[JsonObject]:
    return [{"type": "text", "text": "\n".join(lines)}] if lines else []


def _shown(block: JsonObject) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    resource = block.get("resource")
    described = resource if isinstance(resource, dict) else block
    parts = [str(part) for part in (kind, described.get("mimeType"), described.get("uri")) if part]
    text = described.get("text")
    return "\n".join([f"[{' '.join(parts)}]", *([text] if isinstance(text, str) else [])])
