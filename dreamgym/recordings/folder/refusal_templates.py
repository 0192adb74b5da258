"""In which words a server refuses: learnt from its recorded refusals, with gaps for the tool and for the reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from dreamgym.errors import InvalidInput
from dreamgym.recordings.folder.trajectories import refused
from dreamgym.schema import fault_under
from dreamgym.types import JsonObject, StepResult, ToolCall

_REFUSES = re.compile(r"invalid|validation|required|expected", re.IGNORECASE)

Call = tuple[ToolCall, StepResult]


def unknown_tool(calls: Iterable[Call], tools: Mapping[str, JsonObject]) -> str | None:
    """The first refusal of a tool that the server has not, with `{tool}` for its name."""
    for action, result in calls:
        if action.name not in tools and refused(action, result):
            return result.observation.replace(action.name, "{tool}")
    return None


def invalid_arguments(calls: Iterable[Call], tools: Mapping[str, JsonObject]) -> str | None:
    """The first refusal of arguments that the tool's schema forbids, with `{tool}` and `{reason}`.

    The reason is what the schema library says, where the server uses the same one; else all that follows the tool's
    name and a colon, which is how the public SDKs begin.
    """
    for action, result in calls:
        reason = _fault(tools.get(action.name), action) if result.is_error else None
        if reason is None or not _REFUSES.search(result.observation):
            continue
        said = result.observation
        gap = next((end for end in (reason, reason.partition(": ")[2]) if end and end in said), None)
        if gap is None:
            _, name, rest = said.partition(action.name)
            gap = re.sub(r"^['\"]?:\s*", "", rest) if name and re.match(r"['\"]?:", rest) else None
        if gap:
            before, _, after = said.partition(gap)
            return f"{before.replace(action.name, '{tool}')}{{reason}}{after.replace(action.name, '{tool}')}"
    return None


def _fault(tool: JsonObject | None, action: ToolCall) -> str | None:
    schema = (tool or {}).get("inputSchema")
    if not isinstance(schema, dict):
        return None
    try:
        return fault_under(schema, action.arguments)
    except InvalidInput:
        return None
