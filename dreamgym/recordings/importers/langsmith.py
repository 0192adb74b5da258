"""Importer for LangSmith runs, in its run data format of November 2026 and that of the Python package langsmith 0.14.

Runs are flat, as in the API and the bulk export (JSON lines, whose columns may contain JSON as text), or nested with
`child_runs`. Tool runs are the steps. People choose the names of feedback themselves, so it gives no reward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import JsonValue

from dreamgym.recordings.importers.base import Document, Found, Importer, Skipped, text
from dreamgym.recordings.importers.messages import openai_tools
from dreamgym.recordings.importers.traced_runs import TracedRun, episodes_of, moment, parsed
from dreamgym.state import as_object, objects
from dreamgym.types import JsonObject

_TRACEBACK = "Traceback (most recent call last)"
_PYTHON = "its arguments were recorded as Python text, not as JSON"


def matches(value: JsonValue) -> bool:
    """True for a run, or a page of runs."""
    return bool(_rows(value))


def read(documents: Sequence[Document]) -> Iterator[Found]:
    """One episode per trace."""
    runs: list[TracedRun] = []
    for document in documents:
        rows = _rows(document.value)
        if not rows:
            yield Skipped(document.where, "is not a run: expected 'id' and 'run_type'")
        waiting = [(row, "", "") for row in reversed(rows)]
        while waiting:
            row, trace, parent = waiting.pop()
            run = _run(row, trace, parent, document.where)
            runs.append(run)
            waiting += [(child, run.trace or run.id, run.id) for child in reversed(objects(row.get("child_runs")))]
    yield from episodes_of(runs)


def _run(row: JsonObject, trace: str, parent: str, where: str) -> TracedRun:
    """A row as a run; `trace` and `parent` are those of the row around it."""
    kind, order = row.get("run_type"), text(row.get("dotted_order"))
    extra, given, gave = (as_object(parsed(row.get(name))) for name in ("extra", "inputs", "outputs"))
    parameters = as_object(extra.get("invocation_params"))
    definitions = parameters.get("tools", parameters.get("functions", given.get("tools", given.get("functions"))))
    error = text(row.get("error"))
    arguments = parsed(given["input"]) if set(given) == {"input"} else given
    is_text = isinstance(arguments, str)
    return TracedRun(
        where=where,
        trace=text(row.get("trace_id")) or order.split(".")[0][-36:] or trace,
        id=text(row.get("id")),
        parent=text(row.get("parent_run_id")) or parent,
        started=moment(row.get("start_time")),
        order=order,
        is_tool=kind == "tool",
        is_model=kind == "llm",
        name=text(row.get("name")),
        given=given if is_text or kind != "tool" else arguments,
        gave=gave["output"] if set(gave) == {"output"} else gave or None,
        error=_untraced(error) if error or row.get("status") == "error" else None,
        call_id=text(extra.get("tool_call_id")) or None,
        fault=_PYTHON if is_text and text(arguments).startswith("{") else None,
        tools=openai_tools(definitions) if kind == "llm" else (),
    )


def _untraced(error: str) -> str:
    """The error without the traceback that follows it, which no agent read."""
    told, traceback, _ = error.partition(_TRACEBACK)
    return told.rstrip() or error if traceback else error


def _rows(value: JsonValue) -> list[JsonObject]:
    if not isinstance(value, dict):
        return []
    rows = objects(value["runs"]) if isinstance(value.get("runs"), list) else [value]
    return [row for row in rows if isinstance(row.get("run_type"), str) and isinstance(row.get("id"), str)]


LANGSMITH = Importer("langsmith", "runs of LangSmith, flat or nested", matches, read)
