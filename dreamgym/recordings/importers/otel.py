"""OpenTelemetry GenAI spans: one episode per outermost agent run, else per conversation, else per trace.

Arguments and results of tools are opt-in in these conventions. They are taken from the `execute_tool` spans, or else
from the messages on the model's spans. A tool span inside another one of the same tool is the same call, recorded by
the framework and by its MCP client. One inside another tool's span is left out and reported, since the agent did not
make this call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pydantic import JsonValue

from dreamgym.recordings.importers.base import (
    Document,
    Found,
    ImportedEpisode,
    Importer,
    Skipped,
    text,
)
from dreamgym.recordings.importers.messages import (
    ChatMessage,
    ToolAnswer,
    ToolRequest,
    is_content,
    is_mcp_result,
    openai_tools,
    result_from,
    text_or_none,
)
from dreamgym.recordings.importers.spans import Span, has_spans, spans_of
from dreamgym.recordings.importers.traces import ModelCall, TracedCall, episode_of_trace
from dreamgym.state import objects
from dreamgym.types import JsonObject, StepResult, StopReason

_RUNS = ("invoke_agent", "invoke_workflow")
NESTED = 64
"""Most spans around a span that are searched."""
_ID, _ARGUMENTS, _RESULT = "gen_ai.tool.call.id", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"
_INPUT, _OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
_OPT_IN = (
    f"its tool calls carry no content: switch on the recording of {_ARGUMENTS} and {_RESULT} (an opt-in of your "
    "instrumentation), or of the messages"
)


def read(documents: Sequence[Document]) -> Iterator[Found]:
    """The episodes of all spans of a file."""
    found = [span for document in documents for span in spans_of(document)]
    # an exporter that tries again sends a span twice: the last one counts
    spans = [*{(span.trace, span.id or number): span for number, span in enumerate(found)}.values()]
    known = {(span.trace, span.id): span for span in spans}
    # often only the calls of the model name the conversation
    conversations = {span.trace: name for span in spans if (name := _conversation(span))}
    runs: dict[tuple[str, str], list[Span]] = {}
    for span in sorted(spans, key=lambda span: span.started_ns):
        if any(name.startswith("gen_ai.") for name in span.attributes):
            runs.setdefault(_run_of(span, known, conversations), []).append(span)
    for group in runs.values():
        yield _episode(group, known)
    if not runs and documents:
        yield Skipped(documents[0].where, f"none of its {len(spans)} spans has gen_ai attributes")


def _episode(spans: list[Span], known: dict[tuple[str, str], Span]) -> ImportedEpisode | Skipped:
    where = f"{spans[0].where}, trace {spans[0].trace}"
    around = {span.id: _tools_around(span, known) for span in spans if span.operation == "execute_tool"}
    tools = [span for span in spans if span.id in around and _tool(span) not in around[span.id]]
    models = [span for span in spans if _has(span, _INPUT) and span.operation != "execute_tool"]
    spoken = [span for span in spans if _has(span, _OUTPUT) and span.operation != "execute_tool"]
    listed = (openai_tools(span.value("gen_ai.tool.definitions")) for span in reversed(spans))
    definitions = next((tools for tools in listed if tools), ())
    ends = [ModelCall(_messages(span, _INPUT), _messages(span, _OUTPUT)) for span in _first_and_last(models)]
    calls = [_traced(span, where, is_inner=bool(around[span.id])) for span in tools]
    episode = episode_of_trace(where, calls, ends, definitions)
    if tools and not episode.steps and all(_lacks_content(span) for span in tools):
        return Skipped(where, _OPT_IN)
    last = _last_of([*models, *spoken]) if spoken else None
    return episode if last is None or _has(last, _INPUT) else _ended_with(episode, _messages(last, _OUTPUT))


def _ended_with(episode: ImportedEpisode, said: tuple[ChatMessage, ...]) -> ImportedEpisode:
    """The episode with its answer from a last model call whose input was not recorded; one with calls has no answer."""
    words = "\n".join(message.text for message in said if message.role == "assistant" and message.text)
    answer = None if any(message.calls for message in said) else words or None
    return replace(episode, answer=answer, stop_reason=StopReason.CLOSED if answer is None else StopReason.FINISHED)


def _traced(span: Span, where: str, *, is_inner: bool) -> TracedCall:
    fault = f"it has no {_ARGUMENTS}, or no {_RESULT}" if _lacks_content(span) else None
    call_id = text(span.attributes.get(_ID)) or None
    request = ToolRequest(_tool(span), span.attributes.get(_ARGUMENTS), call_id, fault)
    return TracedCall(f"{where}, span {span.id}", request, _result(span), span.fault, is_inner)


def _tool(span: Span) -> str:
    return text(span.attributes.get("gen_ai.tool.name"))


def _result(span: Span) -> StepResult | None:
    if _RESULT not in span.attributes:
        return None
    value = span.value(_RESULT)
    if not (is_mcp_result(value) or isinstance(value, str) or (value and is_content(value))):
        value = span.attributes[_RESULT]
    return result_from(value, is_error=span.failed)


def _lacks_content(span: Span) -> bool:
    return _ARGUMENTS not in span.attributes or not (_RESULT in span.attributes or (span.failed and span.fault))


def _tools_around(span: Span, known: dict[tuple[str, str], Span]) -> set[str]:
    """Names of the tools in whose calls the span is."""
    return {_tool(outer) for outer in _ancestors(span, known) if outer.operation == "execute_tool"}


def _conversation(span: Span) -> str:
    return text(span.attributes.get("gen_ai.conversation.id"))


def _run_of(span: Span, known: dict[tuple[str, str], Span], conversations: dict[str, str]) -> tuple[str, str]:
    runs = [outer for outer in (span, *_ancestors(span, known)) if outer.operation in _RUNS]
    if runs:
        return runs[-1].trace, runs[-1].id
    return "conversation", _conversation(span) or conversations.get(span.trace, span.trace)


def _ancestors(span: Span, known: dict[tuple[str, str], Span]) -> Iterator[Span]:
    """At most NESTED spans around a span, the nearest first: a chain may be as long as the file, or a ring."""
    for _ in range(NESTED):
        parent = known.get((span.trace, span.parent))
        if parent is None:
            return
        yield parent
        span = parent


def _first_and_last(models: list[Span]) -> list[Span]:
    """The first span with words of the user, and the model call that ended last."""
    if not models:
        return []
    asked = (span for span in models if any(one.role == "user" and one.text for one in _messages(span, _INPUT)))
    return [next(asked, models[0]), _last_of(models)]


def _last_of(models: list[Span]) -> Span:
    """The model call that ended last; if there are only runs, the run that did."""
    calls = [span for span in models if span.operation not in _RUNS] or models
    return max(calls, key=lambda span: span.ended_ns)


def _has(span: Span, name: str) -> bool:
    """True if the span has these messages."""
    return isinstance(span.value(name), list)


def _messages(span: Span, name: str) -> tuple[ChatMessage, ...]:
    return tuple(_message(message) for message in objects(span.value(name)))


def _message(message: JsonObject) -> ChatMessage:
    words, calls, answers = [], [], []
    for part in objects(message.get("parts")):
        call_id, name = text_or_none(part.get("id")), text(part.get("name"))
        if part.get("type") == "text":
            words.append(text(part.get("content")))
        elif part.get("type") == "tool_call":
            fault = None if "arguments" in part else "its arguments were not recorded"
            calls.append(ToolRequest(name, part.get("arguments"), call_id, fault))
        elif part.get("type") == "tool_call_response" and ("response" in part or "result" in part):
            content: JsonValue = part.get("response", part.get("result"))
            answers.append(ToolAnswer(result_from(content), id=call_id, name=name or None))
    return ChatMessage(text(message.get("role")), "\n".join(filter(None, words)), tuple(calls), tuple(answers))


OTEL = Importer("otel", "OpenTelemetry GenAI spans, OTLP/JSON or the SDK's JSON", has_spans, read)
