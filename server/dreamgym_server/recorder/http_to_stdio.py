"""HTTP in front of a stdio server. Each run has a server process of its own, which all agents of the run share.

Messages pass through unchanged, except for the state that a server adds (see strip_state.py) and for what the
transports demand. Request ids and progress tokens are numbered anew, because agents of a run may use the same ones, and
put back in the answer. `initialize` returns a session id. A server accepts one handshake only. If another agent of the
run makes the same handshake, as clients do that open a session per call, it gets the answer to the first one. A message
that the server sends unasked goes to the newest request under way, else to an open stream, else it waits for one.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeGuard

from pydantic import JsonValue
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from dreamgym.types import JsonObject
from dreamgym_server.recorder.child import Child
from dreamgym_server.recorder.http_to_http import answer, read_body, refuse, until_left
from dreamgym_server.recorder.strip_state import shown, without_state
from dreamgym_server.recorder.writer import Tape

SESSION_HEADER = "mcp-session-id"
SUBSCRIPTION_META_KEY = "io.modelcontextprotocol/subscriptionId"
HANDSHAKES = ("initialize", "server/discover")
KEEPALIVE_S = 15.0
MAX_WAITING = 1000
MAX_SERVERS = 64
"""Number of runs that may have a live server process at once."""

_TOKENS = re.compile(rb'"id"\s*:\s*(?P<id>\d{1,18})|"(?:[^"\\]|\\.)*+"|[\[\]{}]')
Line = tuple[bytes, bool]
"""A message for the agent, and whether it is the last one of its stream."""


@dataclass(eq=False)
class _Asked:
    """A request of an agent that the server has not answered."""

    run: str
    id: JsonValue
    session: str
    handshake: str | None = None
    """Parameters of `initialize` as text, to compare; None for other requests."""
    token: JsonValue = None
    """The agent's progress token."""
    left: bool = False
    """True if the agent no longer waits."""
    followers: list[_Asked] = field(default_factory=list)
    """Requests of other agents with the same handshake."""
    out: asyncio.Queue[Line] = field(default_factory=asyncio.Queue)

    def answer(self, said: JsonObject) -> None:
        """Send the answer to the agent, and to the followers."""
        for asked in (self, *self.followers):
            asked.out.put_nowait((_line({**said, "jsonrpc": "2.0", "id": asked.id}), True))


class Wire:
    """One server process and its open requests."""

    def __init__(self, run: str, child: Child) -> None:
        self.run = run
        self.child = child
        self.sessions: set[str] = set()
        self.over = False
        """True if the run is finished: the process ends with its last session."""
        self.death: str | None = None
        self.streams: dict[str, asyncio.Queue[Line]] = {}
        self._asked: dict[int, _Asked] = {}
        self._number = 0
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING)
        self._handshake: tuple[str, JsonObject] | None = None
        self._is_initialized = False
        self._reading = asyncio.create_task(self._read())

    async def close(self) -> None:
        """End the process and everything that waits for it."""
        await self.child.close()
        await asyncio.wait({self._reading})

    def hang_up(self) -> None:
        """End the streams of messages that the server sends unasked."""
        for stream in self.streams.values():
            stream.put_nowait((b"", True))

    def ask(self, run: str, session: str, message: JsonObject) -> _Asked:
        """Send a request on. Its answer and the server's other messages meanwhile come out of its queue `out`."""
        asked = _Asked(run, message["id"], session)
        if self.death is not None:
            asked.answer(_closed(self.death))
            return asked
        if message["method"] == "initialize" and self._follows(asked, message):
            return asked
        self._number += 1
        number = self._number
        params = message.get("params")
        meta = params.get("_meta") if isinstance(params, dict) else None
        if isinstance(params, dict) and isinstance(meta, dict) and "progressToken" in meta:
            asked.token = meta["progressToken"]
            message = {**message, "params": {**params, "_meta": {**meta, "progressToken": number}}}
        self._asked[number] = asked
        while self._waiting:
            asked.out.put_nowait((self._waiting.popleft(), False))
        self.child.send(run, _line({**message, "id": number}))
        return asked

    def tell(self, run: str, session: str, message: JsonObject) -> None:
        """Send on a notification, or an answer to a request of the server."""
        params = message.get("params")
        if message.get("method") == "notifications/initialized":
            if self._is_initialized:
                return
            self._is_initialized = True
        if message.get("method") == "notifications/cancelled" and isinstance(params, dict):
            number = self._number_of(session, params.get("requestId"))
            if number is None:
                return
            message = {**message, "params": {**params, "requestId": number}}
            # servers do not answer a cancelled request; without an end its run would never be idle
            asked = self._asked[number]
            asked.left = True
            asked.out.put_nowait((b"", True))
        self.child.send(run, _line(message))

    def listen(self, session: str) -> asyncio.Queue[Line]:
        """Open a stream of messages that the server sends unasked."""
        stream: asyncio.Queue[Line] = asyncio.Queue()
        self.streams[session] = stream
        while self._waiting:
            stream.put_nowait((self._waiting.popleft(), False))
        return stream

    def cancel(self, asked: _Asked) -> None:
        """Notify the server that an agent cancelled its request: in the newest revision the agent only closes it."""
        number = next((number for number, other in self._asked.items() if other is asked), None)
        if number is not None:
            params: JsonObject = {"requestId": number, "reason": "the agent closed its request"}
            self.child.send(asked.run, _line({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}))

    def _follows(self, asked: _Asked, message: JsonObject) -> bool:
        """True if the same handshake was made before, or is under way; then this request gets the same answer."""
        asked.handshake = json.dumps(message.get("params"), sort_keys=True)
        if self._handshake is not None and self._handshake[0] == asked.handshake:
            asked.answer(self._handshake[1])
            return True
        for other in self._asked.values():
            if other.handshake == asked.handshake:
                other.followers.append(asked)
                return True
        return False

    def _number_of(self, session: str, request_id: JsonValue) -> int | None:
        same = (number for number, asked in self._asked.items() if asked.session == session)
        return next((number for number in same if self._asked[number].id == request_id), None)

    async def _read(self) -> None:
        too_long = None
        try:
            async for line in self.child.lines():
                try:
                    run = self._deliver(line)
                except RecursionError:
                    run = self._refuse(line, "is nested too deeply to be passed on")
                except ValueError:
                    run = self._refuse(line, "cannot be passed on: it has a number of too many digits or is not UTF-8")
                self.child.hear(run, line)
        except ValueError as error:
            too_long = str(error)
        end = await self.child.ended(self.run)
        self.death = too_long or end
        for asked in self._asked.values():
            asked.answer(_closed(self.death))
        self._asked.clear()
        self.hang_up()

    def _deliver(self, line: bytes) -> str:
        """Pass a message of the server to its receiver; return the run that it belongs to.

        Raises:
            RecursionError: it is nested too deeply to be read.
            ValueError: it has a number of more digits than Python reads, or is not UTF-8.
        """
        try:
            message = json.loads(line)
        except json.JSONDecodeError:
            return self.run  # not a message, so it has no receiver; the tape reports it
        if not isinstance(message, dict):
            return self.run
        number = _number(message.get("id"))
        if "method" not in message and number in self._asked:
            asked = self._asked[number]
            if asked.handshake is not None and "result" in message:
                self._handshake = self._handshake or (asked.handshake, {"result": message["result"]})
            asked.answer(without_state(message))
            del self._asked[number]
            return asked.run
        target, text = self._target(message, shown(line.rstrip()))
        if target is None:
            self._waiting.append(text)
        else:
            target.put_nowait((text, False))
        return self.run

    def _refuse(self, line: bytes, why: str) -> str:
        """Answer the request of a message that cannot be read with an error; return its run."""
        asked = self._asked.pop(_outer_id(line), None)
        if asked is None:
            return self.run
        asked.answer({"error": {"code": -32000, "message": f"the server's answer {why}"}})
        return asked.run

    def _target(self, message: JsonObject, line: bytes) -> tuple[asyncio.Queue[Line] | None, bytes]:
        """The queue for a message that is not an answer, and the message's text with the agent's own id or token."""
        params = message.get("params")
        if isinstance(params, dict):
            asked = self._asked.get(_number(params.get("progressToken")))
            if asked is not None and message.get("method") == "notifications/progress":
                return asked.out, _line({**message, "params": {**params, "progressToken": asked.token}})
            meta = params.get("_meta")
            if isinstance(meta, dict) and SUBSCRIPTION_META_KEY in meta:
                asked = self._asked.get(_number(meta[SUBSCRIPTION_META_KEY]))
                if asked is not None:
                    named = {**meta, SUBSCRIPTION_META_KEY: asked.id}
                    return asked.out, _line({**message, "params": {**params, "_meta": named}})
        waiting = [asked for asked in self._asked.values() if not asked.left]
        streams = [asked.out for asked in waiting[-1:]] or list(self.streams.values())[-1:]
        return (streams[0] if streams else None), line


class Bridge:
    """A stdio upstream.

    Args:
        command: starts the real server.
        tape: gets a copy of the input and output of each process.
        environ: environment variables of the processes.
    """

    def __init__(self, command: Sequence[str], tape: Tape, environ: Mapping[str, str]) -> None:
        self._command, self._tape, self._environ = command, tape, environ
        self._wires: dict[str, Wire] = {}
        self._sessions: dict[str, Wire] = {}
        self._starting = asyncio.Lock()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Context manager inside which requests are served."""
        try:
            yield
        finally:
            wires = {*self._wires.values(), *self._sessions.values()}
            await asyncio.gather(*(wire.close() for wire in wires))

    async def finish(self, run: str) -> None:
        """End the run's process, at the latest when its last session is closed."""
        wire = self._wires.pop(run, None)
        if wire is not None:
            wire.over = True
            await self._close_unused(wire)

    def stop(self) -> None:
        """End the streams of messages that the server sends unasked, but not the calls under way."""
        for wire in {*self._wires.values(), *self._sessions.values()}:
            wire.hang_up()

    async def serve(self, run: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request: a message to the server, or a stream from it."""
        headers = Headers(scope=scope)
        session = headers.get(SESSION_HEADER, "")
        wire = self._sessions.get(session)
        if session and wire is None:
            await refuse(send, 404, "this session is closed or unknown: initialize again")
        elif scope["method"] == "GET" and wire is not None:
            await self._listen(wire, session, receive, send)
        elif scope["method"] == "DELETE" and wire is not None:
            await self._leave(wire, session, send)
        elif scope["method"] == "POST":
            await self._post(
                run, wire, session, receive, send, takes_events="event-stream" in headers.get("accept", "")
            )
        else:
            await answer(send, 405, b"", [(b"allow", b"POST")])

    async def _post(
        self, run: str, wire: Wire | None, session: str, receive: Receive, send: Send, *, takes_events: bool
    ) -> None:
        body = await read_body(receive, send)
        if body is None:
            return
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            message = None
        if not _is_message(message):
            # a stdio server does not answer it, and a later agent with the same handshake would wait for that answer
            await refuse(send, 400, "expected one message of JSON-RPC 2.0")
            return
        try:
            wire = wire or await self._wire(run, message)
        except OSError as error:
            self._tape.lose(run, f"the server could not be started: {error.strerror}")
            await refuse(send, 502, f"the server could not be started: {error.strerror}", body)
            return
        if wire is None:
            await refuse(send, 503, f"{MAX_SERVERS} runs are open, each with a server of its own: finish one", body)
            return
        if "method" not in message or "id" not in message:
            wire.tell(run, session, message)
            await answer(send, 202, b"", [])
            return
        minted = secrets.token_hex(16) if message["method"] == "initialize" else None
        if minted:
            wire.sessions.add(minted)
            self._sessions[minted] = wire
        asked = wire.ask(run, minted or session, message)
        reply = _Reply(send, takes_events=takes_events, minted=minted)
        if not await reply.carry(asked.out, receive):
            asked.left = True
            if not session and not minted:
                wire.cancel(asked)

    async def _wire(self, run: str, message: JsonObject) -> Wire | None:
        """The process of a run. It is started if there is none, or for a handshake after the last one died.

        Returns None if MAX_SERVERS processes of unfinished runs are alive.
        """
        async with self._starting:
            wire = self._wires.get(run)
            if wire is None and not await self._has_room():
                return None
            if wire is None or (wire.death is not None and message.get("method") in HANDSHAKES):
                wire = self._wires[run] = Wire(run, await Child.start(self._command, self._tape, self._environ))
        return wire

    async def _has_room(self) -> bool:
        """True if another process may start.

        A finished run keeps its process while an agent has a session open, and agents may never close theirs. So the
        process of a finished run is closed if there is no room otherwise.
        """
        alive = [one for one in dict.fromkeys([*self._sessions.values(), *self._wires.values()]) if one.death is None]
        if len(alive) < MAX_SERVERS:
            return True
        finished = next((one for one in alive if one.over), None)
        if finished is not None:
            await finished.close()
        return finished is not None

    async def _listen(self, wire: Wire, session: str, receive: Receive, send: Send) -> None:
        stream = wire.listen(session)
        reply = _Reply(send, takes_events=True)
        await reply.open()
        await reply.carry(stream, receive)
        if wire.streams.get(session) is stream:
            del wire.streams[session]

    async def _leave(self, wire: Wire, session: str, send: Send) -> None:
        del self._sessions[session]
        wire.sessions.discard(session)
        await answer(send, 200, b"", [])
        if wire.over:
            await self._close_unused(wire)

    async def _close_unused(self, wire: Wire) -> None:
        if not wire.sessions:
            await wire.close()


class _Reply:
    """The HTTP response to one request: plain JSON if the answer comes first, else a stream of events."""

    def __init__(self, send: Send, *, takes_events: bool, minted: str | None = None) -> None:
        self._send, self._takes_events = send, takes_events
        self._headers = [(SESSION_HEADER.encode(), minted.encode())] if minted else []
        self._is_open = False

    async def open(self) -> None:
        """Begin a stream."""
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"), *self._headers]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": b"", "more_body": True})
        self._is_open = True

    async def carry(self, out: asyncio.Queue[Line], receive: Receive) -> bool:
        """Send everything from the queue to the agent; return False if the agent left before the end."""
        carrying = asyncio.create_task(self._carry(out))
        leaving = asyncio.create_task(until_left(receive))
        try:
            await asyncio.wait({carrying, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_whole = carrying.done()
            carrying.cancel()
            leaving.cancel()
            await asyncio.wait({carrying, leaving})
        return is_whole

    async def _carry(self, out: asyncio.Queue[Line]) -> None:
        while True:
            line, is_last = await self._next(out)
            if not self._is_open and is_last and not line:
                await answer(self._send, 202, b"", self._headers)  # the request was cancelled
                return
            if not self._is_open and is_last:
                await answer(self._send, 200, line, [(b"content-type", b"application/json"), *self._headers])
                return
            if not self._is_open:
                if not self._takes_events:
                    continue  # the agent accepts one JSON answer and nothing else
                await self.open()
            event = b"event: message\ndata: " + line + b"\n\n" if line else b""
            await self._send({"type": "http.response.body", "body": event, "more_body": not is_last})
            if is_last:
                return

    async def _next(self, out: asyncio.Queue[Line]) -> Line:
        """Wait for the next message. Meanwhile, keepalives prevent a timeout of the agent's HTTP client."""
        while True:
            try:
                return await asyncio.wait_for(out.get(), KEEPALIVE_S)
            except TimeoutError:
                if self._takes_events:
                    if not self._is_open:
                        await self.open()
                    await self._send({"type": "http.response.body", "body": b": waiting\n\n", "more_body": True})


def _is_message(message: JsonValue) -> TypeGuard[JsonObject]:
    """True for a request, a notification or an answer."""
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return False
    number = message.get("id", "")
    if isinstance(number, bool) or not isinstance(number, int | str):
        return False
    if "method" not in message:
        return "id" in message and ("result" in message or "error" in message)
    return isinstance(message["method"], str) and isinstance(message.get("params", {}), dict)


def _closed(death: str) -> JsonObject:
    """The error that a client reports when a pipe closes."""
    return {"error": {"code": -32000, "message": f"Connection closed: {death}"}}


def _line(message: JsonObject) -> bytes:
    try:
        return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half a surrogate pair has no UTF-8 form, but JSON has an escape for it
        return json.dumps(message, separators=(",", ":")).encode()


def _outer_id(line: bytes) -> int:
    """The numeric id of a message that cannot be parsed; -1 if it has none."""
    depth = 0
    for token in _TOKENS.finditer(line):
        if token[0] in (b"[", b"{"):
            depth += 1
        elif token[0] in (b"]", b"}"):
            depth -= 1
        elif depth == 1 and token["id"]:
            return int(token["id"])
    return -1


def _number(value: JsonValue) -> int:
    """The number of one of our requests; -1 if the value cannot be one."""
    return value if isinstance(value, int) and not isinstance(value, bool) else -1
