"""Converts between MCP tool results and StepResult: an observation as text, and content that text cannot hold.

A block that is not text becomes one line of the observation, such as `[image image/png]`. If a model predicts such a
line, a recorded block with the same line takes its place, since a model cannot predict a picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dreamgym.types import JsonObject, StepResult

BEFORE, AFTER = "dreamgym/before", "dreamgym/state"
"""Keys in the `_meta` of a real server's answer: the state of its world before and after the call."""
TOLD_KEYS = frozenset({BEFORE, AFTER})


def observation_of(content: Sequence[JsonObject]) -> str:
    """The content blocks as one text, joined by line breaks."""
    return "\n".join(_line(block) for block in content)


def result_of(answer: Mapping[str, object]) -> StepResult:
    """A raw `tools/call` result as a StepResult without reward and end. `tool_result` converts it back."""
    blocks = answer.get("content")
    content = [block for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
    info: JsonObject = {}
    if [set(block) for block in content] != [{"type", "text"}] or content[0]["type"] != "text":
        info["content"] = list(content)
    structured = answer.get("structuredContent")
    if isinstance(structured, dict):
        info["structured"] = structured
    return StepResult(observation=observation_of(content), is_error=answer.get("isError") is True, info=info)


def told(answer: Mapping[str, object], key: str) -> JsonObject | None:
    """The state in an answer's `_meta` under `key` (BEFORE or AFTER); None if there is none. No agent may see it."""
    meta = answer.get("_meta")
    state = meta.get(key) if isinstance(meta, dict) else None
    return state if isinstance(state, dict) else None


def tool_result(result: StepResult) -> JsonObject:
    """The `tools/call` result of a step, without `_meta`."""
    answer: JsonObject = {"content": list(result.content), "isError": result.is_error}
    if result.structured is not None:
        answer["structuredContent"] = result.structured
    return answer


def with_stand_ins(observation: str, recorded: Iterable[JsonObject]) -> list[JsonObject] | None:
    """Content blocks of a predicted observation, with recorded blocks in the place of their lines.

    Args:
        observation: the predicted text.
        recorded: blocks of recorded answers; the first block with a line replaces that line.

    Returns:
        The blocks, or None if the observation is text alone.
    """
    stand_ins: dict[str, JsonObject] = {}
    for block in recorded:
        if block.keys() != {"type", "text"}:  # also text blocks with annotations
            stand_ins.setdefault(_line(block), block)
    lines = observation.split("\n")
    if not stand_ins.keys() & set(lines):
        return None
    content: list[JsonObject] = []
    text: list[str] = []
    for line in lines:
        if line in stand_ins:
            content += _as_text(text)
            content.append(stand_ins[line])
            text = []
        else:
            text.append(line)
    return content + _as_text(text)


def _as_text(lines: list[str]) -> list[JsonObject]:
    return [{"type": "text", "text": "\n".join(lines)}] if lines else []


def _line(block: JsonObject) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    resource = block.get("resource")
    described = resource if isinstance(resource, dict) else block
    parts = [str(part) for part in (kind, described.get("mimeType"), described.get("uri")) if part]
    return f"[{' '.join(parts)}]"
