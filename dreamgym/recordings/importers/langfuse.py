"""Importer for Langfuse traces and observations, from its public API and blob storage export of November 2026.

A document is a trace with its observations, a single observation (camelCase from the API, snake_case from the export,
where input and output are texts), or a page of either. TOOL observations are the steps. If a trace has none, its steps
are the spans that are named like a tool that its generations know, or else the calls in the messages. People choose
the names of scores themselves, so they give no reward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import JsonValue

from dreamgym.recordings.importers.base import Document, Found, Importer, Skipped, text
from dreamgym.recordings.importers.langchain import langchain_message
from dreamgym.recordings.importers.messages import is_content, is_mcp_result, openai_tools
from dreamgym.recordings.importers.traced_runs import OUTERMOST, TracedRun, episodes_of, moment, parsed
from dreamgym.state import objects
from dreamgym.types import JsonObject

_KINDS = frozenset({
    "SPAN", "GENERATION", "EVENT", "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL",
})  # fmt: skip


def matches(value: JsonValue) -> bool:
    """True for a trace with observations, an observation, or a page of either."""
    return any(_is_trace(row) or _is_observation(row) for row in _page(value))


def read(documents: Sequence[Document]) -> Iterator[Found]:
    """One episode per trace."""
    runs: list[TracedRun] = []
    for document in documents:
        found = [run for row in _page(document.value) for run in _runs(row, document.where)]
        if not found:
            yield Skipped(document.where, "has no observations: export each trace together with its observations")
        runs += found
    yield from episodes_of(runs)


def _runs(row: JsonObject, where: str) -> Iterator[TracedRun]:
    if _is_observation(row):
        yield _run(row, "", where)
    elif _is_trace(row):
        inner = row.get("trace")
        trace = inner if isinstance(inner, dict) else row
        name = text(trace.get("id"))
        waiting = [(child, "") for child in reversed(objects(row.get("observations")))]
        if waiting:
            # the trace is the outermost run: its input contains the task if no generation does
            yield _run({**trace, "type": "TRACE", "id": ""}, name, where)
        while waiting:
            child, parent = waiting.pop()
            run = _run(child, name, where, parent)
            yield run
            waiting += [(one, run.id) for one in reversed(objects(child.get("children")))]


def _run(row: JsonObject, trace: str, where: str, parent: str = "") -> TracedRun:
    """An observation as a run; `trace` and `parent` are those around it."""
    kind = text(row.get("type")).upper()
    given = parsed(row.get("input"))
    fields = given if isinstance(given, dict) else {}
    messages = objects(given if isinstance(given, list) else fields.get("messages"))
    listed = [message["content"] for message in messages if _defines(message)]
    if set(fields) == {"args", "kwargs"}:  # Langfuse's decorator of Python functions
        given = fields["kwargs"]
    has_failed = text(row.get("level")).upper() == "ERROR"
    return TracedRun(
        where=where,
        trace=_either(row, "traceId", "trace_id") or trace,
        id=text(row.get("id")),
        parent=_either(row, "parentObservationId", "parent_observation_id") or parent,
        started=OUTERMOST if kind == "TRACE" else moment(row.get("startTime", row.get("start_time"))),
        is_tool={"TOOL": True, "GENERATION": False, "TRACE": False}.get(kind),
        is_model=kind == "GENERATION",
        name=text(row.get("name")),
        given=[message for message in messages if not _defines(message)] if listed else given,
        gave=_gave(row.get("output")),
        error=_either(row, "statusMessage", "status_message") if has_failed else None,
        fault="its arguments were recorded without their names" if fields.get("args") and "kwargs" in fields else None,
        tools=openai_tools([*objects(fields.get("tools", fields.get("functions"))), *objects(listed)]),
    )


def _gave(output: JsonValue) -> JsonValue:
    """The output. The export writes it as text, which is parsed if it has one of the forms in which results are told.

    Any other text stays as it is: a tool may answer with JSON, and the agent read what the tool wrote.
    """
    value = parsed(output)
    message = langchain_message(value) if isinstance(value, dict) else None
    is_message = message is not None and bool(message.answers)
    is_told = is_message or is_mcp_result(value) or (value != [] and is_content(value)) or value == {}
    return value if is_told else output


def _defines(message: JsonObject) -> bool:
    """True for the definition of a tool, which Langfuse's handler for LangChain puts between the messages."""
    content = message.get("content")
    return message.get("role") == "tool" and isinstance(content, dict) and isinstance(content.get("function"), dict)


def _either(row: JsonObject, camel: str, snake: str) -> str:
    return text(row.get(camel)) or text(row.get(snake))


def _is_observation(row: JsonObject) -> bool:
    is_named = text(row.get("type")).upper() in _KINDS
    return is_named and bool(_either(row, "traceId", "trace_id") or _either(row, "startTime", "start_time"))


def _is_trace(row: JsonObject) -> bool:
    return isinstance(row.get("observations"), list) and ("id" in row or isinstance(row.get("trace"), dict))


def _page(value: JsonValue) -> list[JsonObject]:
    if not isinstance(value, dict):
        return []
    return objects(value["data"]) if isinstance(value.get("data"), list) else [value]


LANGFUSE = Importer("langfuse", "traces and observations of Langfuse", matches, read)
