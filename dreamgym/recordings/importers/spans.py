"""Reads spans from OTLP/JSON exports and from the Python SDK's own JSON, with their attributes as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from pydantic import JsonValue

from dreamgym.recordings.importers.base import Document, parse_json, text
from dreamgym.state import objects
from dreamgym.types import JsonObject


@dataclass(frozen=True)
class Span:
    """The parts of a span that an importer needs."""

    where: str
    trace: str
    id: str
    parent: str
    started_ns: int
    ended_ns: int
    failed: bool
    """True if the span's status is an error, or if it has an `error.type`."""
    fault: str
    """The error message, from the recorded exception or the status."""
    attributes: JsonObject

    @property
    def operation(self) -> str:
        """The attribute `gen_ai.operation.name`; "" for spans of other kinds."""
        return text(self.attributes.get("gen_ai.operation.name"))

    def value(self, name: str) -> JsonValue:
        """The value of an attribute, parsed if it is JSON in a text."""
        value = self.attributes.get(name)
        if not isinstance(value, str):
            return value
        try:
            return parse_json(value)
        except ValueError:
            return value


def has_spans(value: JsonValue) -> bool:
    """True for an export, a part of one, or a span."""
    if not isinstance(value, dict):
        return False
    context = value.get("context")
    return (
        any(isinstance(value.get(name), list) for name in ("resourceSpans", "resource_spans", "scopeSpans"))
        or ("traceId" in value and "spanId" in value)
        or (isinstance(context, dict) and "trace_id" in context)
    )


def spans_of(document: Document) -> Iterator[Span]:
    """All spans of a document."""
    for row in _rows(document.value):
        context = row.get("context")
        ids = context if isinstance(context, dict) else row
        attributes = _attributes(row.get("attributes"))
        failed = _failed(row.get("status")) or bool(attributes.get("error.type"))
        yield Span(
            where=document.where,
            trace=_id(ids.get("traceId", ids.get("trace_id"))),
            id=_id(ids.get("spanId", ids.get("span_id"))),
            parent=_id(row.get("parentSpanId", row.get("parent_span_id", row.get("parent_id")))),
            started_ns=_time(row, "start"),
            ended_ns=_time(row, "end"),
            failed=failed,
            fault=_fault(row) if failed else "",
            attributes=attributes,
        )


def _rows(value: JsonValue) -> Iterator[JsonObject]:
    if not isinstance(value, dict):
        return
    if "spanId" in value or "context" in value:
        yield value
    for name in ("resourceSpans", "resource_spans", "scopeSpans", "scope_spans", "spans"):
        for part in objects(value.get(name)):
            if name == "spans":
                yield part
            else:
                yield from _rows(part)


def _attributes(value: JsonValue) -> JsonObject:
    if isinstance(value, dict):
        return value
    return {text(pair.get("key")): _any_value(pair.get("value")) for pair in objects(value)}


def _any_value(value: JsonValue) -> JsonValue:
    """OTLP's AnyValue as a plain value."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    ((kind, inner),) = value.items()
    if kind == "arrayValue" and isinstance(inner, dict):
        return [_any_value(item) for item in objects(inner.get("values"))]
    if kind == "kvlistValue" and isinstance(inner, dict):
        return _attributes(inner.get("values"))
    if kind == "intValue" and isinstance(inner, str):
        return int(inner) if inner.removeprefix("-").isdecimal() and len(inner) < 20 else inner
    return inner


def _id(value: JsonValue) -> str:
    return text(value).removeprefix("0x").lower()


def _time(row: JsonObject, edge: str) -> int:
    """The start or end of a span in nanoseconds since the epoch; 0 if the span does not have it."""
    nanoseconds = row.get(f"{edge}TimeUnixNano", row.get(f"{edge}_time_unix_nano"))
    digits = str(nanoseconds)
    if isinstance(nanoseconds, int | str) and digits.isdecimal():
        return int(digits[:25])
    try:
        moment = datetime.fromisoformat(text(row.get(f"{edge}_time")))
        return round(moment.timestamp() * 1_000_000) * 1000
    except (ValueError, OverflowError, OSError):
        return 0


def _failed(status: JsonValue) -> bool:
    if not isinstance(status, dict):
        return False
    return status.get("code", status.get("status_code")) in (2, "STATUS_CODE_ERROR", "ERROR")


def _fault(row: JsonObject) -> str:
    for event in objects(row.get("events")):
        message = _attributes(event.get("attributes")).get("exception.message")
        if isinstance(message, str) and message:
            return message
    status = row.get("status")
    return text(status.get("message", status.get("description"))) if isinstance(status, dict) else ""
