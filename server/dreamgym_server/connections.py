"""Limits on a server's connections (number and time) and on its requests (size and depth).

Without limits on connections uvicorn waits forever for the rest of a request, and beyond the limit of open files
asyncio logs every connection that it cannot accept, thousands a second. A body is checked before it is parsed: deeply
nested JSON overflows the stack of recursive parsers, and of code that copies or checks the value afterwards.

A server with the maximum number of connections is healthy. It answers `/healthz` over connections beyond the bound;
otherwise an orchestrator would restart it and end all connections.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

ARRIVAL_S = 30.0
"""Time for a request to arrive, from the opening of the connection, or from the first byte of a later request."""
PROBE_ARRIVAL_S = 1.0
"""Time for a request to arrive over a connection beyond the bound."""
FILES_FOR_OTHERS = 96
"""Open files reserved for the database, environments, logs and connections beyond the bound."""
MOST_CONNECTIONS = 16_384
PROBES_PER_ACCEPTED = 3
"""Connections beyond the bound that may be open before their request arrives, per connection accepted at a time."""

MAX_BODY_BYTES = 2**20
"""Maximum size of a body. Some megabytes of small keys would block the event loop for more than 0.1 s."""
MAX_HEAD_BYTES = 64 * 1024
"""Maximum size of a request's first line and headers, if they arrive in pieces; in memory, headers are much larger."""
MAX_DEPTH = 64
"""Maximum nesting of arrays and objects, the envelope of the request included."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string up to its end or the end of the body. Possessive quantifiers make it linear: no byte is read twice."""
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_AS_ONE_KIND = bytes.maketrans(b"{}", b"[]")


CLIENT = "dreamgym.client"
"""Name of the `Sender` in the scope of a request."""
TOO_MANY = {"error": "too many connections are open: try again later"}
TOO_LONG_HEAD = {"error": f"the request's first line and headers exceed {MAX_HEAD_BYTES} bytes"}
STOPS = {"error": "the server stops and has not finished this request: send it again later, or to another server"}


class BoundedConnection(HttpToolsProtocol):
    """One connection. It is closed if its request takes too long, and refused if too many are open.

    A connection beyond the bound may request `/healthz` once. If too many of them have not sent their request yet, the
    oldest is refused, because a probe sends its request as soon as it is connected.
    """

    _arriving: asyncio.TimerHandle | None = None
    _is_begun = False
    """True while only a part of a request has arrived."""
    _head_bytes: int | None = None
    """Number of bytes so far of a request whose headers are not complete; None if there is none."""
    _beyond_bound = False
    _silent: ClassVar[dict[BoundedConnection, None]]
    """Connections of one server beyond the bound whose request has not arrived, the oldest first."""

    @classmethod
    def of_one_server(cls) -> type[BoundedConnection]:
        """A class for the connections of one server."""
        return type(cls.__name__, (cls,), {"_silent": {}})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock for the first request."""
        super().connection_made(cast("asyncio.Transport", InOnePiece(transport)))
        # with this limit uvicorn itself would also refuse requests of connections that are already open
        limit, self.limit_concurrency = self.limit_concurrency, None
        if limit is None or len(self.connections) < limit:
            self._wait()
            return
        if len(self._silent) >= PROBES_PER_ACCEPTED * self.config.backlog:
            next(iter(self._silent))._refuse()
        self._beyond_bound = True
        self._silent[self] = None
        self._arriving = self.loop.call_later(PROBE_ARRIVAL_S, self._refuse)
        self.app = _HealthOnly(self.app)

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data, and start the clock if only a part of a request has arrived."""
        super().data_received(data)
        if self._is_begun and self._arriving is None:
            self._wait()
        if self._head_bytes is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._close_with("431 Request Header Fields Too Large", TOO_LONG_HEAD)

    def on_message_begin(self) -> None:
        self._is_begun, self._head_bytes = True, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header. Trailers come after the headers; nobody reads them, and there may be any number."""
        if self._head_bytes is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        super().on_headers_complete()
        if self.cycle is None:  # a websocket
            return
        cast("Scope", self.scope)[CLIENT] = Sender(self.cycle)
        if self._beyond_bound:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        self._arrived()
        super().on_message_complete()
        if not self.pipeline:  # uvicorn stops reading within a long body and would not notice that the client leaves
            self.flow.resume_reading()

    def handle_websocket_upgrade(self) -> None:
        """The request has arrived, and the websocket protocol takes over the connection."""
        if self._beyond_bound:
            self._refuse()
            return
        self._arrived()
        super().handle_websocket_upgrade()

    def _refuse(self) -> None:
        self._close_with("503 Service Unavailable\r\nRetry-After: 5", TOO_MANY)

    def _close_with(self, status: str, error: dict[str, str]) -> None:
        self._arrived()
        said = json.dumps(error).encode()
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(said)}\r\n"
        self.transport.write(head.encode() + b"Content-Type: application/json\r\nConnection: close\r\n\r\n" + said)
        self.transport.close()

    def _wait(self) -> None:
        self._arriving = self.loop.call_later(ARRIVAL_S, self.transport.abort)

    def _arrived(self) -> None:
        self._is_begun = False
        if self._beyond_bound:
            self._silent.pop(self, None)
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None


@dataclass(frozen=True)
class Sender:
    """The client that waits for the answer to a request. Asking `receive`, as Starlette does, is ten times slower."""

    cycle: RequestResponseCycle

    async def is_disconnected(self) -> bool:
        """True if it has gone, so that an answer would reach nobody."""
        return self.cycle.disconnected


class InOnePiece:
    """A transport that sends two pieces by one system call if both are written in one turn of the event loop.

    uvicorn writes the head and the body of an answer one after the other. Each system call takes as long as all Python
    code for both.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._held: list[bytes] = []

    def __getattr__(self, name: str) -> Any:  # all other attributes are the transport's
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send this with the held piece, or hold it for the next. Only one is held, so backpressure works as usual."""
        self._held.append(data)
        if len(self._held) == 1:
            self._loop.call_soon(self._send)
        else:
            self._send()

    def close(self) -> None:
        """Close the connection after what was written is sent."""
        self._send()
        self._transport.close()

    def _send(self) -> None:
        if self._held:
            held, self._held = self._held, []
            self._transport.write(b"".join(held))


class _HealthOnly:
    """Passes requests for `/healthz` on and refuses all others."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/healthz":
            await self._app(scope, receive, send)
        else:
            await JSONResponse(TOO_MANY, 503, {"Retry-After": "5"})(scope, receive, send)


def files_allowed() -> int:
    """Number of files that this process may open, after raising its soft limit to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return MOST_CONNECTIONS if hard == resource.RLIM_INFINITY else hard


def most_connections(files: int) -> int:
    """Number of connections that may be open at once, given the number of files."""
    return max(16, min(MOST_CONNECTIONS, files - _spare(files)))


def accepted_at_once(files: int) -> int:
    """Backlog for asyncio: the number of connections that it accepts at a time.

    Up to three times as many connections may wait to be refused. As many again may be open beyond the bound until their
    requests have arrived. Both together take half of the spare files.
    """
    return min(2048, _spare(files) // (4 * PROBES_PER_ACCEPTED))


def _spare(files: int) -> int:
    return max(FILES_FOR_OTHERS, files // 8)


class BoundedBody:
    """Reads each body to its end, refuses those that are too large or too deep, and passes on the others.

    A request that the server gives up because it stops is answered with 503.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it with 413 (too large) or 400 (too deep)."""
        if scope["type"] != "http" or scope["method"] in {"GET", "HEAD", "OPTIONS"}:
            await self._app(scope, receive, send)
            return
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if len(body) > MAX_BODY_BYTES:
                refusal = JSONResponse({"error": f"the request body exceeds {MAX_BODY_BYTES} bytes"}, 413)
                await refusal(scope, receive, send)
                return
            if not message.get("more_body"):
                break
        if is_too_deep(body):
            refusal = JSONResponse({"error": f"the request body is nested deeper than {MAX_DEPTH} levels"}, 400)
            await refusal(scope, receive, send)
            return
        whole: Message | None = {"type": "http.request", "body": bytes(body), "more_body": False}

        async def replay() -> Message:
            nonlocal whole
            message, whole = whole, None
            return message if message is not None else await receive()

        try:
            await self._app(scope, replay, send)
        except asyncio.CancelledError:  # uvicorn gives up a request that delays the shutdown too long
            if CLIENT not in scope or scope[CLIENT].cycle.response_started:
                raise
            await JSONResponse(STOPS, 503, {"Retry-After": "5"})(scope, receive, send)


def is_too_deep(body: bytes | bytearray) -> bool:
    """True if JSON is nested deeper than MAX_DEPTH. For bytes that are not JSON the result means nothing."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return False
    if b"\x00" in body:  # UTF-16 or UTF-32, which would hide brackets; MCP is UTF-8
        return True
    brackets = _STRING.sub(b"", body).translate(_AS_ONE_KIND, _ALL_BUT_BRACKETS)
    for _ in range(MAX_DEPTH):
        flatter = brackets.replace(b"[]", b"")
        if len(flatter) == len(brackets):
            break
        brackets = flatter
    return b"[]" in brackets or brackets.count(b"[") > MAX_DEPTH
