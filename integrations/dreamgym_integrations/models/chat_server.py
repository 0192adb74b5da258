"""A chat-completions endpoint over a function or over one of our language models, on a real socket.

An agent uses it in place of its model's endpoint: LangGraph, the OpenAI Agents SDK and the built-in agent need no
change. Each request has one answer, and nothing is kept between requests. It listens on this machine only. The policy
endpoint, which does keep conversations, uses the HTTP functions of this module too.
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

from dreamgym.errors import DreamGymError, EnvironmentUnavailable, InvalidInput, MissingPackage
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
"""The only model in the list; a request may name any other."""
IDLE_S = 75
"""Seconds that an unused connection is kept: agents wait for their environment longer than uvicorn's default of 5."""
MAX_BODY_BYTES = 32 * 2**20
"""Maximum size of a request: a long conversation with some images in it."""
BACKLOG = 4096
"""Connections that may wait to be accepted: hundreds of agents connect at the same moment."""


@dataclass(frozen=True)
class Reply:
    """The answer of a model: a text, tool calls, or both."""

    text: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


ChatPolicy = Callable[[list[JsonObject], list[JsonObject]], Reply | Awaitable[Reply]]
"""Function from a request's `messages` and `tools`, in OpenAI's format, to the reply."""


@dataclass(frozen=True)
class Ask:
    """The parts of a completion request that the endpoint uses."""

    messages: list[JsonObject]
    tools: list[JsonObject]
    model: str
    stream: bool
    with_usage: bool


@dataclass(frozen=True)
class Usage:
    """Token counts of one answer; zero if nobody counts, since a policy need not be a model."""

    prompt: int = 0
    completion: int = 0

    @property
    def worded(self) -> JsonObject:
        """The counts in OpenAI's format."""
        total = self.prompt + self.completion
        return {"prompt_tokens": self.prompt, "completion_tokens": self.completion, "total_tokens": total}


@asynccontextmanager
async def chat_server(policy: ChatPolicy) -> AsyncIterator[str]:
    """Serve the policy on a free port and yield its base URL, which ends in `/v1`."""

    async def complete(request: Request) -> Response:
        try:
            ask = await read_ask(request)
            reply = policy(ask.messages, ask.tools)
            said = await reply if isinstance(reply, Awaitable) else reply
        except InvalidInput as error:
            return refused(400, str(error))
        except DreamGymError as error:
            return refused(503, str(error))
        return answered(ask, said, name=str(len(ask.messages)))

    routes = [
        Route("/v1/chat/completions", complete, methods=["POST"]),
        Route("/v1/models", listed_models, methods=["GET"]),
    ]
    async with serving(Starlette(routes=routes)) as url:
        yield f"{url}/v1"


@asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[str]:
    """Serve an app in this event loop, on a free port of this machine, and yield its base URL."""
    # without the explicit TCP, asyncio leaves Nagle's algorithm on and every answer waits 40 ms
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=5,
            timeout_keep_alive=IDLE_S,
            backlog=BACKLOG,
        )
        server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        ready = asyncio.create_task(server.ready.wait())
        try:
            await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
            if not server.started:
                raise EnvironmentUnavailable("the chat endpoint did not start; its log says why")
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ready.cancel()
            server.should_exit = True
            await serving


class _Server(uvicorn.Server):
    """A uvicorn server that sets `ready` when it listens, and leaves the process's signal handlers alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def read_ask(request: Request) -> Ask:
    """Parse a request. Raises InvalidInput."""
    try:
        body = json.loads(await _bounded_body(request))
        json.dumps(body, ensure_ascii=False, allow_nan=False).encode()  # refuses half a surrogate and 1e999
    except (ValueError, RecursionError) as error:  # RecursionError: it is nested too deeply
        raise InvalidInput(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
        raise InvalidInput("expected a JSON object with a non-empty list 'messages'")
    tools, options = body.get("tools") or [], body.get("stream_options") or {}
    if not isinstance(tools, list) or not isinstance(options, dict):
        raise InvalidInput("expected 'tools' to be a list and 'stream_options' a JSON object")
    if not all(isinstance(one, dict) for one in [*body["messages"], *tools]):
        raise InvalidInput("expected each of 'messages' and 'tools' to be a JSON object")
    if body.get("n") not in (None, 1):
        raise InvalidInput(f"expected 'n' to be 1, got {body['n']}: one request has one answer here")
    return Ask(
        messages=body["messages"],
        tools=tools,
        model=str(body.get("model") or MODEL),
        stream=bool(body.get("stream")),
        with_usage=bool(options.get("include_usage")),
    )


async def _bounded_body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise InvalidInput(
                f"expected a body of at most {MAX_BODY_BYTES:,} bytes, got more: shorten the conversation"
            )
    return bytes(body)


async def listed_models(_: Request) -> Response:
    """List the only model."""
    listed = {"id": MODEL, "object": "model", "created": 0, "owned_by": "dreamgym"}
    return JSONResponse({"object": "list", "data": [listed]})


def refused(status: int, message: str, *, retry: bool = True) -> Response:
    """An error in OpenAI's format. OpenAI's clients repeat a request after a server error, unless `retry` is False."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": message, "type": kind, "code": None, "param": None}}
    return JSONResponse(body, status, headers=None if retry else {"x-should-retry": "false"})


def answered(ask: Ask, reply: Reply, *, name: str, usage: Usage = Usage(), cut: bool = False) -> Response:
    """A reply in OpenAI's format, streamed if the request asks for it.

    Args:
        ask: the request.
        reply: the model's answer.
        name: name of this answer, unique in its conversation: the ids of its tool calls contain it.
        usage: token counts of the answer.
        cut: True if the answer was cut off at the model's token limit.
    """
    calls: list[JsonObject] = [
        {
            "id": f"call_{name}_{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for number, call in enumerate(reply.tool_calls)
    ]
    reason = "tool_calls" if calls else "length" if cut else "stop"
    if ask.stream:
        chunks = _chunks(reply, calls, reason, ask, usage)
        return StreamingResponse(chunks, media_type="text/event-stream")
    message: JsonObject = {"role": "assistant", "content": reply.text}
    if calls:
        message["tool_calls"] = [*calls]
    completion: JsonObject = {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 0,
        "model": ask.model,
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": usage.worded,
    }
    return JSONResponse(completion)


def _chunks(reply: Reply, calls: list[JsonObject], reason: str, ask: Ask, usage: Usage) -> Iterator[str]:
    """An answer as server-sent events: the role, the text, each call, the finish reason."""
    deltas: list[JsonObject] = [{"role": "assistant", "content": reply.text or ""}]
    deltas += [{"tool_calls": [{"index": index, **call}]} for index, call in enumerate(calls)]
    choices: list[list[JsonValue]] = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
    choices.append([{"index": 0, "delta": {}, "finish_reason": reason}])
    head: JsonObject = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 0, "model": ask.model}
    for choice in choices:
        yield f"data: {json.dumps({**head, 'choices': choice})}\n\n"
    if ask.with_usage:
        yield f"data: {json.dumps({**head, 'choices': [], 'usage': usage.worded})}\n\n"
    yield "data: [DONE]\n\n"
