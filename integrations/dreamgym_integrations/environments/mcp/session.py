"""One session with a real MCP server, through the SDK's client, in the protocol revision that the server supports.

Answers stay raw, so fields that the SDK does not know are not lost. An asyncio task of our own holds the connection,
because the SDK requires the task that opened it to close it, but an environment is stepped and closed from any task.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CONNECTION_CLOSED,
    CallToolRequest,
    CallToolRequestParams,
    ListToolsRequest,
    PaginatedRequestParams,
)
from pydantic import JsonValue, RootModel, ValidationError

from dreamgym.environment import first_reason
from dreamgym.errors import EnvironmentUnavailable
from dreamgym.types import JsonObject, ToolCall

if TYPE_CHECKING:
    from dreamgym_integrations.environments.mcp import McpOptions

MAX_PAGES = 100
"""Limit of pages in one listing: a server may hand out cursors without end."""
SHOWN_CHARACTERS = 300
MIN_HIDDEN = 6
"""Characters that a value or an argument must have to be hidden. A shorter one occurs in too many places by chance."""
OPTION_NAME = re.compile(r"--?[a-z]+(-[a-z]+)*")
"""A word of a command that is shown, since it helps and is no secret."""
BROKEN_HTTP = re.compile(
    r"(Server returned an error response|Session terminated|Not Found)\Z"
    r"|Unexpected content type: |Failed to parse (JSON response|SSE message): |SSE stream (failed|ended)"
    r"|server answered a request with 202 |Redirect to .* not followed"
)
"""Messages that the SDK (mcp 2.3) makes itself if a POST gets no JSON-RPC answer. It raises them as the server's."""

AnswerT = TypeVar("AnswerT")

logging.getLogger("mcp.client").addHandler(logging.NullHandler())  # a stray line on stdout must not print a traceback


class _Raw(RootModel[dict[str, JsonValue]]):
    """A raw result."""


class McpSession:
    """A session with one server. Any task of one event loop may open it, ask and close it."""

    def __init__(self, options: McpOptions) -> None:
        self._options = options
        self._leave = asyncio.Event()
        self._held: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._garbage = ""
        self._lost = ""
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115

    async def open(self) -> None:
        """Start the server and connect to it. Raises EnvironmentUnavailable, InvalidInput."""
        ready = asyncio.Event()
        self._held = asyncio.create_task(self._hold(ready))
        greeted = asyncio.create_task(ready.wait())
        try:
            await asyncio.wait(
                {self._held, greeted}, timeout=self._options.timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            greeted.cancel()
        if self._held.done():
            await self._held
        if not ready.is_set():
            raise self._unavailable(f"did not answer within {self._options.timeout_s:g} s of its start")

    async def tools(self) -> list[JsonObject]:
        """The raw tool definitions, all pages of them."""
        assert self._client is not None
        tools: list[JsonObject] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            params = PaginatedRequestParams(cursor=cursor)
            try:
                page = await self._ask(ListToolsRequest(params=params))
                if "x-mcp-header" in str(page["tools"]):  # arguments that the SDK must repeat in headers
                    await self._answered(self._client.session.list_tools(params=params))
            except MCPError as error:
                raise self._unavailable(f"refused to list its tools: {error.message}") from error
            listed = page["tools"]
            assert isinstance(listed, list), "the SDK has checked the answer"
            tools += [tool for tool in listed if isinstance(tool, dict)]
            cursor = str(page["nextCursor"]) if page.get("nextCursor") is not None else None
            if cursor is None:
                return tools
        raise self._unavailable(f"lists tools on more than {MAX_PAGES} pages")

    async def call(self, action: ToolCall) -> JsonObject:
        """The raw result of a tool call. A protocol error becomes an error result in the server's words."""
        try:
            answer = await self._ask(
                CallToolRequest(params=CallToolRequestParams(name=action.name, arguments=action.arguments))
            )
        except MCPError as error:
            return {"content": [{"type": "text", "text": error.message}], "isError": True}
        if "content" not in answer:
            raise self._unavailable(f"asked a question back instead of answering {action.name!r}")
        try:
            json.dumps(answer, allow_nan=False)
        except ValueError as error:
            raise self._unavailable("answered with NaN or an infinite number, which JSON does not allow") from error
        return answer

    async def close(self) -> None:
        """Close the session and stop the server; the SDK gives it a few seconds."""
        self._leave.set()
        if self._held is not None:
            if self._client is None:
                self._held.cancel()
            # over HTTP, the last answer of the server may never end; a process is stopped by the SDK in a few seconds
            limit_s = self._options.timeout_s if self._options.url is not None else None
            _, waiting = await asyncio.wait({self._held}, timeout=limit_s)
            if waiting:
                self._held.cancel()
                await asyncio.wait(waiting)
            if not self._held.cancelled():
                self._held.exception()  # retrieved, or asyncio would log it; the caller knows it already
        self._stderr.close()

    async def _hold(self, ready: asyncio.Event) -> None:
        try:
            async with (
                self._transport() as transport,
                Client(transport, mode="auto", message_handler=self._notice) as client,
            ):
                self._client = client
                ready.set()
                await self._leave.wait()
        except (MCPError, OSError, ValueError, RuntimeError, httpx2.HTTPError, ExceptionGroup) as error:
            raise self._unavailable(_reason(error)) from error

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[AbstractAsyncContextManager[Any]]:
        options = self._options
        if options.url is not None:
            timeout = httpx2.Timeout(options.timeout_s)
            async with httpx2.AsyncClient(
                headers=options.header_values(), timeout=timeout, event_hooks={"response": [self._note_lost]}
            ) as http:
                yield streamable_http_client(options.url, http_client=http)
            return
        command, *args = options.command
        server = StdioServerParameters(command=command, args=args, env=options.variables(), cwd=options.cwd)
        yield stdio_client(server, errlog=self._stderr)

    async def _notice(self, message: object) -> None:
        """Ignore a notification. Remember a line that is not a message, for the error if no answer comes."""
        if isinstance(message, Exception):
            self._garbage = first_reason(message)

    async def _note_lost(self, response: httpx2.Response) -> None:
        """Remember a status that means lost access or a lost session: its body may be a JSON-RPC error, like a refusal.

        A 404 means a lost session only if there was one. Otherwise it may go with the refusal of an unknown tool.
        """
        if response.request.method == "POST":
            has_session = "mcp-session-id" in response.request.headers
            is_lost = response.status_code in (401, 403) or (has_session and response.status_code == 404)
            self._lost = f" (HTTP {response.status_code})" if is_lost else ""

    async def _ask(self, request: CallToolRequest | ListToolsRequest) -> JsonObject:
        """Send a request. Raises MCPError if the server refuses it, EnvironmentUnavailable if there is no answer."""
        assert self._client is not None
        return (await self._answered(self._client.session.send_request(request, _Raw))).root

    async def _answered(self, answer: Awaitable[AnswerT]) -> AnswerT:
        """Wait for an answer. Raises MCPError if the server refuses, EnvironmentUnavailable if there is no answer."""
        try:
            async with asyncio.timeout(self._options.timeout_s):
                return await answer
        except TimeoutError as error:
            raise self._unavailable(f"did not answer within {self._options.timeout_s:g} s") from error
        except ValidationError as error:
            raise self._unavailable(f"answered with something that is not MCP: {first_reason(error)}") from error
        except MCPError as error:
            if error.code == CONNECTION_CLOSED and error.message == "Connection closed":
                raise self._unavailable("has ended") from error
            if self._options.url is not None and (self._lost or BROKEN_HTTP.match(error.message)):
                raise self._unavailable(f"gave no answer{self._lost}: {error.message}") from error
            raise

    def _unavailable(self, what: str) -> EnvironmentUnavailable:
        """Error in one sentence: the server, what it did, and the last stray line that it wrote."""
        self._stderr.seek(0)
        lines = [line.strip() for line in self._stderr.read().splitlines() if line.strip()]
        said = lines[-1] if lines else ""
        stray = self._garbage
        heard = f"; it wrote a line that is not an MCP message: {self._shown(stray)}" if stray else ""
        words = f"; it last wrote to stderr: {self._shown(said)}" if said else ""
        return EnvironmentUnavailable(f"{self._options.server} {self._shown(what)}{heard}{words}")

    def _shown(self, text: str) -> str:
        """The beginning of a text on one line, with `$NAME` for a variable's value and `[argument]` for an argument."""
        hidden = self._arguments()
        for name in (*self._options.env, *self._options.headers.values()):
            value = os.environ.get(name, "")
            # a server may also print a part of a value, such as a header without its scheme
            hidden |= dict.fromkeys((value, *value.split()), f"${name}")
        for word in sorted(hidden, key=len, reverse=True):
            if len(word) >= MIN_HIDDEN:
                text = text.replace(word, hidden[word])
        return " ".join(text.split())[:SHOWN_CHARACTERS]

    def _arguments(self) -> dict[str, str]:
        """`[argument]` by each word of the command's arguments that `server` does not show: it may be a secret."""
        words = {part.strip("'\"") for argument in self._options.command[1:] for part in (argument, *argument.split())}
        words |= {word.partition("=")[2].strip("'\"") for word in words}
        shown = self._options.server
        return {word: "[argument]" for word in words if word not in shown and not OPTION_NAME.fullmatch(word)}


def _reason(error: Exception) -> str:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, FileNotFoundError):
        return f"cannot be started: {error.filename!r} was not found"
    if isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
        return "ended before the MCP session was initialized"
    return f"cannot be reached: {first_reason(error).strip() or type(error).__name__}"
