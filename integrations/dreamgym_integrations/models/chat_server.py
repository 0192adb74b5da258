"""A chat-completions endpoint over a function or over one of our language models, on a real socket.

It stands where an agent expects its model: behind LangGraph, the OpenAI Agents SDK or the built-in agent, none of which
is changed for it. One answer per request; nothing is remembered between requests. It listens on this machine only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pydantic import JsonValue

from dreamgym.errors import DreamGymError, EnvironmentUnavailable, MissingPackage
from dreamgym.types import JsonObject, ToolCall

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route
except ImportError as missing:
    raise MissingPackage("a chat endpoint", "server") from missing

MODEL = "policy"
"""The one model it lists; requests may name any."""


@dataclass(frozen=True)
class Reply:
    """What the model says: a text, tool calls, or both."""

    text: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


ChatPolicy = Callable[[list[JsonObject], list[JsonObject]], Reply | Awaitable[Reply]]
"""From the request's `messages` and `tools`, as OpenAI words them, to the reply."""


@asynccontextmanager
async def chat_server(policy: ChatPolicy) -> AsyncIterator[str]:
    """Serve the policy on a free port and yield its base URL, which ends in `/v1`."""
    # named TCP, or asyncio leaves Nagle's algorithm on and every answer waits 40 ms
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(_app(policy), log_level="warning", access_log=False, timeout_graceful_shutdown=5)
        server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        ready = asyncio.create_task(server.ready.wait())
        try:
            await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
            if not server.started:
                raise EnvironmentUnavailable("the chat endpoint did not start; its log says why")
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            ready.cancel()
            server.should_exit = True
            await serving


class _Server(uvicorn.Server):
    """Says when it listens, and leaves the process's signals alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _app(policy: ChatPolicy) -> Starlette:
    async def complete(request: Request) -> Response:
        try:
            body = await request.json()
        except ValueError as error:
            return _refused(400, f"the body is not JSON: {error}")
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
            return _refused(400, "expected a JSON object with a non-empty list 'messages'")
        try:
            reply = policy(body["messages"], body.get("tools") or [])
            said = await reply if isinstance(reply, Awaitable) else reply
        except DreamGymError as error:
            return _refused(503, str(error))
        model = str(body.get("model") or MODEL)
        calls = _calls(said, turn=len(body["messages"]))
        if body.get("stream"):
            with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
            chunks = _chunks(said, calls, model, with_usage=with_usage)
            return StreamingResponse(chunks, media_type="text/event-stream")
        return JSONResponse(_completion(said, calls, model))

    async def models(_: Request) -> Response:
        listed = {"id": MODEL, "object": "model", "created": 0, "owned_by": "dreamgym"}
        return JSONResponse({"object": "list", "data": [listed]})

    return Starlette(
        routes=[
            Route("/v1/chat/completions", complete, methods=["POST"]),
            Route("/v1/models", models, methods=["GET"]),
        ]
    )


def _refused(status: int, message: str) -> Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind, "code": None, "param": None}}, status_code=status)


def _calls(reply: Reply, *, turn: int) -> list[JsonObject]:
    """The calls as OpenAI words them; ids are unique in a conversation."""
    return [
        {
            "id": f"call_{turn}_{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for number, call in enumerate(reply.tool_calls)
    ]


def _finish_reason(reply: Reply) -> str:
    return "tool_calls" if reply.tool_calls else "stop"


def _completion(reply: Reply, calls: list[JsonObject], model: str) -> JsonObject:
    message: JsonObject = {"role": "assistant", "content": reply.text}
    if calls:
        message["tool_calls"] = [*calls]
    return {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": _finish_reason(reply)}],
        "usage": _usage(),
    }


def _chunks(reply: Reply, calls: list[JsonObject], model: str, *, with_usage: bool) -> Iterator[str]:
    """The same answer as server-sent events: who speaks, the text, each call, the reason of the end."""
    deltas: list[JsonObject] = [{"role": "assistant", "content": reply.text or ""}]
    deltas += [{"tool_calls": [{"index": index, **call}]} for index, call in enumerate(calls)]
    choices: list[list[JsonValue]] = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
    choices.append([{"index": 0, "delta": {}, "finish_reason": _finish_reason(reply)}])
    head: JsonObject = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 0, "model": model}
    for choice in choices:
        yield f"data: {json.dumps({**head, 'choices': choice})}\n\n"
    if with_usage:
        yield f"data: {json.dumps({**head, 'choices': [], 'usage': _usage()})}\n\n"
    yield "data: [DONE]\n\n"


def _usage() -> JsonObject:
    """Not counted: the policy may be no model at all."""
    return {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
