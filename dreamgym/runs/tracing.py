"""Export of a server's OpenTelemetry spans, configured only by the standard OTEL_* variables."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from dreamgym.errors import InvalidInput, MissingPackage

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

WANTED = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Spans are sent if one of these is set."""
PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
"""OTLP exporter for each value of OTEL_EXPORTER_OTLP_PROTOCOL."""


@contextmanager
def exported_spans() -> Iterator[None]:
    """Send the spans of this process as the OTEL_* variables specify; do nothing if none of WANTED is set.

    A process that has a tracer provider already (`opentelemetry-instrument`) keeps it.

    Raises:
        MissingPackage: the SDK or the exporter is not installed.
        InvalidInput: the variables ask for a protocol that is not in PROTOCOLS.
    """
    names = _exporters()
    if not names:
        yield
        return
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingPackage("OTEL_TRACES_EXPORTER", "otel") from error
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        yield
        return
    if "service.name" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        os.environ.setdefault("OTEL_SERVICE_NAME", "dreamgym")
    provider = TracerProvider()  # resource, sampler and limits are read from the environment
    for name in names:
        provider.add_span_processor(BatchSpanProcessor(_exporter(name)))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()  # sends what is left


def _exporters() -> list[str]:
    """Names of the exporters that the variables ask for."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or not any(map(os.environ.get, WANTED)):
        return []
    names = [name.strip() for name in (os.environ.get("OTEL_TRACES_EXPORTER") or "otlp").split(",")]
    return [name for name in names if name not in {"", "none"}]


def _exporter(name: str) -> SpanExporter:
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if name == "otlp":
        if (protocol or "http/protobuf") not in PROTOCOLS:
            raise InvalidInput(f"OTEL_EXPORTER_OTLP_PROTOCOL: expected {' or '.join(PROTOCOLS)}, got {protocol!r}")
        name = PROTOCOLS[protocol or "http/protobuf"]
    for point in entry_points(group="opentelemetry_traces_exporter", name=name):
        try:
            exporter: SpanExporter = point.load()()
        except ImportError as error:
            raise MissingPackage(f"the exporter {name!r} of OTEL_TRACES_EXPORTER", "otel") from error
        return exporter
    raise MissingPackage(f"the exporter {name!r} of OTEL_TRACES_EXPORTER", "otel")
