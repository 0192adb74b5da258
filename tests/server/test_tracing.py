"""The OpenTelemetry spans of a step: its parts and their durations, without any text of the episode."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from dreamgym_server.running import running
from dreamgym_server.sources import DreamWorlds
from mcp import Client
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from server_stage import Stage, counter_spec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dreamgym.dream.language_model import LanguageModel
from dreamgym.errors import EnvironmentUnavailable, InvalidInput
from dreamgym.llm import Message, ScriptedLLM
from dreamgym.replay.postgres import Store
from dreamgym.runs.tracing import exported_spans
from dreamgym.spans import TimedSpan

pytestmark = pytest.mark.anyio

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
SECRET = "hunter2"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Collect the spans that our code ends while the test runs."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # only our code may see this provider: the MCP SDK would trace its client too
    monkeypatch.setattr("dreamgym.spans._IS_NAMED", True)
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: provider)
    return exporter


def test_a_provider_that_is_set_later_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with TimedSpan("before"):
        pass
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    with TimedSpan("after"):
        pass
    assert [span.name for span in exporter.get_finished_spans()] == ["dreamgym.after"]


def ours(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    """Return the spans by name, in the order in which they ended. Of several with one name, the last is kept."""
    return {span.name: span for span in exporter.get_finished_spans()}


def parents(spans: dict[str, ReadableSpan]) -> dict[str, str | None]:
    """Name of each span's parent."""
    names = {span.context.span_id: name for name, span in spans.items() if span.context}
    return {name: names.get(span.parent.span_id) if span.parent else None for name, span in spans.items()}


def predicted(messages: Sequence[Message]) -> str:
    """Return a prediction that claims a success. As a judge, return that the task is not accomplished."""
    if "accomplished" in messages[0].content:
        return json.dumps({"reasoning": SECRET, "accomplished": False})
    said = {"reasoning": SECRET, "observation": f"count 1 {SECRET}", "state": None}
    return json.dumps({**said, "error": False, "terminated": True, "success": True})


async def test_a_step_is_a_tree_of_spans_from_the_call_to_the_store(
    exporter: InMemorySpanExporter, store: Store
) -> None:
    stage = Stage(store.buffer, store.episodes)
    spec = counter_spec(redact={"secrets": True})
    worlds = DreamWorlds(spec, LanguageModel(ScriptedLLM(predicted)), stage.buffer)
    async with stage.serve(worlds) as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        exporter.clear()
        async with Client(made["mcp_url"]) as client:
            await client.call_tool("add", {"n": 1})
        spans = ours(exporter)
    tree = parents(spans)
    assert {name: tree[name] for name in tree if name != "dreamgym.store"} == {
        "dreamgym.call": None,
        "dreamgym.redaction": "dreamgym.call",
        "dreamgym.step": "dreamgym.call",
        "dreamgym.retrieval": "dreamgym.step",
        "dreamgym.tier": "dreamgym.step",
        "dreamgym.judge": "dreamgym.step",
        "dreamgym.model_call": "dreamgym.judge",
    }
    stored = [span for span in exporter.get_finished_spans() if span.name == "dreamgym.store"]
    assert {str((span.attributes or {})["dreamgym.operation"]) for span in stored} >= {"nearest", "append"}
    call, model = spans["dreamgym.call"].attributes or {}, spans["dreamgym.model_call"].attributes or {}
    assert dict(call) == {
        "dreamgym.env": "counter",
        "dreamgym.episode": made["episode"],
        "dreamgym.outcome": "step",
        "dreamgym.tier": "model",
        "dreamgym.step": 1,
    }
    assert model["gen_ai.request.model"] == "scripted"
    assert "gen_ai.usage.input_tokens" in model


async def test_no_span_contains_a_text_of_the_episode_or_an_error_message(
    exporter: InMemorySpanExporter, stage: Stage
) -> None:
    def fail(messages: Sequence[Message]) -> str:
        if len(model.asked) > 3:
            raise EnvironmentUnavailable(SECRET)
        return predicted(messages)

    model = ScriptedLLM(fail)
    async with stage.serve(DreamWorlds(counter_spec(), LanguageModel(model), stage.buffer)) as (_, http):
        task = {"id": "t", "env": "counter", "instruction": SECRET, "initial_state": SECRET}
        for _ in range(2):
            made = (await http.post("/envs/counter/episodes", json={"task": task})).json()
            async with Client(made["mcp_url"]) as client:
                await client.call_tool("add", {"n": 1})
                await client.call_tool(SECRET, {"n": 1})
    spans = exporter.get_finished_spans()
    assert [span for span in spans if span.status.status_code is StatusCode.ERROR]
    assert all(SECRET not in span.to_json() for span in spans)


@pytest.mark.parametrize("place", ["header", "meta"])
async def test_a_step_belongs_to_the_trace_that_the_agent_names(
    exporter: InMemorySpanExporter, stage: Stage, place: str
) -> None:
    async with stage.serve() as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        headers = {"accept": "application/json", **({"traceparent": TRACEPARENT} if place == "header" else {})}
        meta = {"_meta": {"traceparent": TRACEPARENT}} if place == "meta" else {}
        params = {"name": "add", "arguments": {"n": 1}, **meta}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        assert (await http.post(made["mcp_url"], json=call, headers=headers)).status_code == 200
    span = ours(exporter)["dreamgym.call"]
    assert span.context
    assert span.parent
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)


@asynccontextmanager
async def collector() -> AsyncIterator[tuple[str, list[bytes]]]:
    """Run a receiver of OTLP over HTTP. Yields its URL and the list of the bodies that it gets."""
    bodies: list[bytes] = []

    async def take(request: Request) -> Response:
        bodies.append(await request.body())
        return Response(status_code=200, media_type="application/x-protobuf")

    async with running(Starlette(routes=[Route("/v1/traces", take, methods=["POST"])])) as url:
        yield url, bodies


async def test_an_empty_variable_for_the_exporter_is_as_if_it_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "pigeons")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "")
    with pytest.raises(InvalidInput, match="OTEL_EXPORTER_OTLP_PROTOCOL: expected"), exported_spans():
        pass


async def test_the_otel_variables_alone_make_a_server_send_its_spans(tmp_path: Path, dsn: str) -> None:
    folder = Path(__file__).parents[2] / "examples" / "coin"
    async with collector() as (endpoint, bodies):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dreamgym.cli.serve", str(folder), "--port", "0", "--model", "nearest"),
            stdout=PIPE,
            env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "DREAMGYM_ENCODER": "trigram"},
        )
        assert process.stdout is not None
        try:
            url = (await process.stdout.readline()).decode().strip().removesuffix("/mcp")
            async with httpx2.AsyncClient() as http:
                made = (await http.post(f"{url}/episodes", json={})).json()
            async with Client(made["mcp_url"]) as client:
                await client.call_tool("act", {"command": "move west"})
            process.terminate()
            assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    sent = b"".join(bodies)
    for known in (b"dreamgym.step", b"dreamgym.tier", b"RecordedTier", b"service.name", b"dreamgym"):
        assert known in sent, known
    assert b"move west" not in sent
