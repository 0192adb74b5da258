"""Turns traces of tracing products into episodes. A trace is a tree of runs; some are tool calls, some model calls.

The importers of LangSmith and Langfuse map their rows to `TracedRun`; the rest is the same for both. A call that
another tool made is left out and reported, since the agent did not make it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import JsonValue

from dreamgym.recordings.importers.base import ImportedEpisode, number, parse_json
from dreamgym.recordings.importers.langchain import langchain_message
from dreamgym.recordings.importers.messages import ChatMessage, ToolRequest, result_from
from dreamgym.recordings.importers.openai_chat import message_of
from dreamgym.recordings.importers.openai_responses import is_item, messages_of
from dreamgym.recordings.importers.traces import ModelCall, TracedCall, episode_of_trace
from dreamgym.types import JsonObject, StepResult

_WRAPPERS = ("messages", "generations", "choices", "message", "input", "output")
"""Keys under which model calls and chains keep messages."""

OUTERMOST = -math.inf
"""Start of a run that is always the first of its trace."""


@dataclass(frozen=True)
class TracedRun:
    """One row of a trace."""

    where: str
    trace: str
    """Empty if the row does not have it; its outermost parent then identifies the trace."""
    id: str
    parent: str
    started: float | None
    """The start, see `moment`; None if it cannot be read."""
    is_tool: bool | None
    """None: the run is a tool call only if its name is that of a tool."""
    is_model: bool
    name: str
    given: JsonValue
    """The arguments of a tool, or the messages to a model."""
    gave: JsonValue
    error: str | None = None
    """The error message in the trace; None if the run did not fail."""
    call_id: str | None = None
    fault: str | None = None
    """The reason why `given` cannot be used as arguments."""
    tools: tuple[JsonObject, ...] = ()
    """MCP tool definitions."""
    order: str = ""
    """A text that sorts the runs of a trace; empty if the format has none."""


def episodes_of(runs: Sequence[TracedRun]) -> Iterator[ImportedEpisode]:
    """One episode per trace. If a run occurs twice, as in pages that overlap, its last occurrence counts."""
    known = {run.id: run for run in runs if run.id}
    roots: dict[str, str] = {}
    traces: dict[str, dict[str, TracedRun]] = {}
    for index, run in enumerate(runs):
        members = traces.setdefault(run.trace or _root(run, known, roots), {})
        members[run.id or f"run {index} without an id"] = run
    for trace, members in traces.items():
        yield _episode(trace, _in_order([*members.values()]))


def parsed(value: JsonValue) -> JsonValue:
    """Parse a JSON text that is an object or a list; return any other value as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return parse_json(value)
        except ValueError:
            return value
    return value


def moment(value: JsonValue) -> float | None:
    """A time as a number: an ISO text in seconds since the epoch, a number as it is; None for anything else.

    A text without a time zone is in UTC.
    """
    if not isinstance(value, str):
        return number(value)
    try:
        time = datetime.fromisoformat(value)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def messages_in(value: JsonValue, role: str) -> list[ChatMessage]:
    """The messages in the input or output of a model or a chain, in any format.

    Args:
        value: messages, at any depth of the usual wrappers; a text alone is a message too.
        role: role of a text alone.
    """
    found: list[ChatMessage] = []
    items: list[JsonObject] = []
    waiting: list[JsonValue] = [parsed(value)]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict) and is_item(one):
            items.append(one)
            continue
        found += messages_of(items)
        items = []
        if isinstance(one, list):
            waiting += reversed(one)
        elif isinstance(one, str) and one:
            found.append(ChatMessage(role, one))
        elif isinstance(one, dict):
            message = langchain_message(one) or (message_of(one) if isinstance(one.get("role"), str) else None)
            inner = next((one[name] for name in _WRAPPERS if name in one), None)
            if message is not None:
                found.append(message)
            elif inner is not None:
                waiting.append(inner)
            elif len(one) == 1:
                waiting += [text for text in one.values() if isinstance(text, str)]
    return [*found, *messages_of(items)]


def _in_order(runs: list[TracedRun]) -> list[TracedRun]:
    """The runs by their start, else by their `order`; as they are in the file if some of the runs lack both."""
    if all(run.started is not None for run in runs):
        return sorted(runs, key=lambda run: (run.started or 0.0, run.order))
    if all(run.order for run in runs):
        return sorted(runs, key=lambda run: run.order)
    return sorted(runs, key=lambda run: run.started != OUTERMOST)


def _root(run: TracedRun, known: dict[str, TracedRun], roots: dict[str, str]) -> str:
    """The id of a run's outermost known parent. `roots` stores the ids, so that long chains are climbed once."""
    climbed: list[str] = []
    while run.id not in roots:
        roots[run.id] = run.id  # ends the climb in a ring of parents
        climbed.append(run.id)
        run = known.get(run.parent, run)
    root = roots[run.id]
    roots.update(dict.fromkeys(climbed, root))
    return root


def _episode(trace: str, runs: list[TracedRun]) -> ImportedEpisode:
    where = f"{runs[0].where}, trace {trace}"
    tools = {str(tool["name"]): tool for run in reversed(runs) for tool in run.tools}
    models = [run for run in runs if run.is_model] or [run for run in runs[:1] if not run.is_tool]
    ends = [
        ModelCall(tuple(messages_in(run.given, "user")), tuple(messages_in(run.gave, "assistant")))
        for run in (models[:1] + models[-1:])
    ]
    calls = [run for run in runs if run.is_tool]
    if not calls:
        named = {call.name for end in ends for message in end.conversation for call in message.calls}
        calls = [run for run in runs if run.is_tool is None and (run.name in named or run.name in tools)]
    inner = _below(calls, runs)
    traced = [_traced(run, is_inner=run.id in inner) for run in calls]
    return episode_of_trace(where, traced, ends, tuple(tools.values()))


def _below(outer: list[TracedRun], runs: list[TracedRun]) -> set[str]:
    """Ids of the runs inside the `outer` ones."""
    children: dict[str, list[str]] = {}
    for run in runs:
        children.setdefault(run.parent, []).append(run.id)
    below: set[str] = set()
    waiting = [run.id for run in outer if run.id]
    while waiting:
        inner = [child for child in children.pop(waiting.pop(), ()) if child]
        below.update(inner)
        waiting += inner
    return below


def _traced(run: TracedRun, *, is_inner: bool) -> TracedCall:
    request = ToolRequest(run.name, run.given, run.call_id, run.fault)
    return TracedCall(f"{run.where}, run {run.id}", request, _result(run), run.error or "", is_inner)


def _result(run: TracedRun) -> StepResult | None:
    failed = run.error is not None
    if run.gave is None or (failed and run.gave == {}):
        return None
    message = langchain_message(run.gave) if isinstance(run.gave, dict) else None
    if message is None or not message.answers:
        return result_from("[]" if run.gave == [] else run.gave, is_error=failed)
    answer = message.answers[0].result
    return answer.model_copy(update={"is_error": True}) if failed else answer
