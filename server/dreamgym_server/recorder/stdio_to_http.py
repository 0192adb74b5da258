"""stdio in front of an HTTP server: the SDK's HTTP transport carries the messages.

There is no client session in between. Messages of the agent are posted and messages of the server are written, with
unknown fields and the order of keys kept. They are read only to set the HTTP headers. Only the state that a server adds
is removed (see strip_state.py). The transport manages the server's session and its streams.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    encode_header_value,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import (
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from dreamgym_server.recorder.http_to_http import UNAUTHORIZED, refusal
from dreamgym_server.recorder.pairing import VERSION_META_KEY, Ended, Form, Heard, now
from dreamgym_server.recorder.stdio_to_stdio import write_all
from dreamgym_server.recorder.strip_state import shown
from dreamgym_server.recorder.writer import Tape

_NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


async def carry(url: str, headers: Mapping[str, str], tape: Tape, run: str, *, stdin: int = 0, stdout: int = 1) -> int:
    """Carry messages between our stdin and stdout and the server until either side ends; return the exit code."""
    for name in ("httpx2", "mcp"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they would log messages that are not redacted
    outlet = _Outlet(tape, run, stdout)
    timeout = httpx2.Timeout(None, connect=30)
    reason = None

    async def look(response: httpx2.Response) -> None:
        if response.status_code in UNAUTHORIZED:
            tape.lose(run, refusal(response.status_code, headers))

    try:
        async with (
            httpx2.AsyncClient(headers=dict(headers), timeout=timeout, event_hooks={"response": [look]}) as client,
            streamable_http_client(url, http_client=client, max_sse_event_size=None) as (said, asking),
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(outlet.answer, said)
            lines = _lines(stdin)
            while (line := await lines.get()) is not None:
                message = outlet.asked(line)
                if message is not None:
                    await asking.send(message)
            tasks.cancel_scope.cancel()
    except* (httpx2.HTTPError, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as errors:
        reason = f"the server cannot be reached or closed the connection: {type(_first(errors)).__name__}"
    if reason is not None:
        outlet.fail(reason)
        return 1
    outlet.end("the agent left")
    return 0


class _Outlet:
    """The requests without an answer, and the data for the HTTP headers of the next message."""

    def __init__(self, tape: Tape, run: str, stdout: int) -> None:
        self._tape, self._run, self._stdout = tape, run, stdout
        self._session = f"http-{uuid.uuid4().hex[:12]}"
        self._open: dict[RequestId, str] = {}
        self._version: str | None = None
        self._schemas: dict[str, Any] = {}

    def asked(self, line: bytes) -> SessionMessage | None:
        """A line of the agent in the form that the transport needs; None if it is not a message."""
        self._hear(line, from_agent=True)
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValidationError:
            self._write(_unusable(line))
            return None
        if isinstance(message, JSONRPCRequest):
            self._open[message.id] = message.method
        if isinstance(message, JSONRPCRequest | JSONRPCNotification):
            return SessionMessage(message, metadata=ClientMessageMetadata(headers=self._headers(message)))
        return SessionMessage(message)

    async def answer(self, said: Any) -> None:
        """Pass all messages of the server to the agent."""
        async for item in said:
            if isinstance(item, Exception):
                self._tape.lose(self._run, f"the server sent something that is not a message: {type(item).__name__}")
                continue
            message = item.message
            if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
                self._learn(self._open.pop(message.id, ""), message)
            if not self._write(message):
                return

    def fail(self, reason: str) -> None:
        """Answer all open requests with an error, because the server is gone."""
        for request_id in self._open:
            error = {"code": -32000, "message": f"Connection closed: {reason}"}
            text = JSONRPCError.model_validate({"jsonrpc": "2.0", "id": request_id, "error": error})
            write_all(self._stdout, _line(text))
        self._tape.lose(self._run, reason)
        self.end(reason)

    def end(self, reason: str) -> None:
        """Note on the tape that nothing more will come."""
        self._tape.put(Ended(self._run, self._session, reason, now()))

    def _headers(self, message: JSONRPCRequest | JSONRPCNotification) -> dict[str, str]:
        """The headers that HTTP demands: revision, and in the newest one method, name and marked arguments."""
        params = message.params or {}
        meta = params.get("_meta")
        version = meta.get(VERSION_META_KEY) if isinstance(meta, dict) else None
        if not isinstance(version, str):
            return {MCP_PROTOCOL_VERSION_HEADER: self._version} if self._version else {}
        headers = {MCP_PROTOCOL_VERSION_HEADER: version, MCP_METHOD_HEADER: message.method}
        name = params.get(_NAMED_BY.get(message.method, ""))
        if isinstance(name, str):
            headers[MCP_NAME_HEADER] = encode_header_value(name)
            if message.method == "tools/call":
                schema = self._schemas.get(name)
                headers |= mcp_param_headers(x_mcp_header_map(schema or {}), params.get("arguments") or {})
        return headers

    def _learn(self, method: str, message: JSONRPCResponse | JSONRPCError) -> None:
        if isinstance(message, JSONRPCError):
            return
        if method == "initialize":
            self._version = str(message.result.get("protocolVersion"))
        if method == "tools/list":
            tools = message.result.get("tools")
            named = (tool for tool in tools if isinstance(tool, dict)) if isinstance(tools, list) else ()
            self._schemas.update({str(tool.get("name")): tool.get("inputSchema") for tool in named})

    def _write(self, message: Any) -> bool:
        line = _line(message)
        has_reader = write_all(self._stdout, shown(line))
        self._hear(line, from_agent=False)
        return has_reader

    def _hear(self, line: bytes, *, from_agent: bool) -> None:
        self._tape.put(Heard(self._run, self._session, self._session, from_agent, Form.LINES, line, now()))


def _unusable(line: bytes) -> JSONRPCError:
    """The error for a line that cannot be sent to the server, with the id of the request if it can be read."""
    try:
        asked = json.loads(line)
        named = asked.get("id") if isinstance(asked, dict) else None
        str(named).encode()  # half of a surrogate pair could not be sent back
    except (ValueError, RecursionError):
        named = None
    if isinstance(named, int | str) and not isinstance(named, bool):
        said = "the message cannot be sent over HTTP: it is no JSON-RPC request, or has half of a surrogate pair"
        error: dict[str, Any] = {"code": -32600, "message": said}
        return JSONRPCError.model_validate({"jsonrpc": "2.0", "id": named, "error": error})
    error = {"code": -32700, "message": "Parse error"}
    return JSONRPCError.model_validate({"jsonrpc": "2.0", "id": None, "error": error})


def _line(message: Any) -> bytes:
    # pydantic's own JSON has null for NaN, which the server did not send
    said = message.model_dump(mode="python", by_alias=True, exclude_unset=True)
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _lines(stdin: int) -> asyncio.Queue[bytes | None]:
    """Lines of stdin, then None at its end, at Ctrl-C or at SIGTERM. A thread reads, since stdin may be any file."""
    lines: asyncio.Queue[bytes | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        with open(stdin, "rb", closefd=False) as raw, suppress(RuntimeError):
            for line in raw:
                loop.call_soon_threadsafe(lines.put_nowait, line)
            loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=read, daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(ValueError, RuntimeError):  # not in the main thread
            loop.add_signal_handler(number, lines.put_nowait, None)
    return lines


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
