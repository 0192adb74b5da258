"""A pydantic-ai agent and its spans. Only the tests that need a traced run import this, because it takes seconds."""

import asyncio

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai import Agent, InstrumentationSettings, ModelRetry
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel


def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if any(isinstance(message, ModelResponse) for message in messages[-2:]):
        return ModelResponse(parts=[TextPart("Mia is number 7.")])
    calls = [ToolCallPart("find", {"name": name}, tool_call_id=f"call-{name}") for name in ("Mia", "Bob")]
    return ModelResponse(parts=[TextPart("let me look"), *calls])


def find(name: str) -> dict[str, int]:
    """Find a person."""
    if name != "Mia":
        raise ModelRetry("no such person")
    return {"id": 7}


def traced(*, content: bool) -> list[ReadableSpan]:
    """The spans of one real run of a pydantic-ai agent with a scripted model."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    Agent.instrument_all(InstrumentationSettings(tracer_provider=provider, include_content=content))
    try:
        asyncio.run(Agent(FunctionModel(scripted), name="crm", tools=[find]).run("Who is Mia?"))
    finally:
        Agent.instrument_all(False)
        provider.shutdown()
    return list(exporter.get_finished_spans())
