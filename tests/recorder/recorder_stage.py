"""Recorders with a real server behind them, and raw clients that show what is on the wire."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from dreamgym_server.recorder.app import Upstream, create_app
from dreamgym_server.recorder.http_to_http import ReverseProxy
from dreamgym_server.recorder.http_to_stdio import Bridge
from dreamgym_server.recorder.runs import Runs
from dreamgym_server.recorder.writer import Tape
from dreamgym_server.running import running
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from yarl import URL

from dreamgym.recordings.log import Exchange, Loss, Note
from dreamgym.redaction import RedactionRules, Redactor
from dreamgym.types import Frozen, JsonObject

HERE = Path(__file__).parent
ODD = [sys.executable, str(HERE / "odd_server.py")]
BIN = Path(sys.executable).parent
NODE_SERVERS = HERE.parent / "node" / "node_modules" / ".bin"
ENVIRON = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
HANDSHAKE: JsonObject = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"elicitation": {}},
    "clientInfo": {"name": "raw", "version": "0"},
}


def node_server(name: str, *arguments: str) -> list[str]:
    """The command of a public MCP server."""
    path = NODE_SERVERS / f"mcp-server-{name}"
    if not path.exists():
        pytest.skip(f"{path.name} is not installed: make test installs it")
    return [str(path), *arguments]


def call(tool: str, request_id: int | None = None, /, **arguments: Any) -> JsonObject:
    """A tool call."""
    params: JsonObject = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


def request(method: str, request_id: int | str, params: JsonObject | None = None) -> JsonObject:
    """Any request."""
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}}


INITIALIZED: JsonObject = {"jsonrpc": "2.0", "method": "notifications/initialized"}


class RawStdio:
    """A raw client over stdio, which writes and reads lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def send(self, message: JsonObject | bytes) -> None:
        assert self.process.stdin is not None
        line = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
        self.process.stdin.write(line)
        await self.process.stdin.drain()

    async def line(self) -> bytes:
        assert self.process.stdout is not None
        return await self.process.stdout.readline()

    async def ask(self, message: JsonObject | bytes) -> Any:
        await self.send(message)
        return json.loads(await self.line())

    async def shake_hands(self) -> Any:
        answer = await self.ask(request("initialize", 0, HANDSHAKE))
        await self.send(INITIALIZED)
        return answer

    async def leave(self) -> tuple[bytes, bytes]:
        """Close stdin; return the rest of stdout and stderr."""
        return await asyncio.wait_for(self.process.communicate(b""), 30)


@asynccontextmanager
async def raw_stdio(command: Sequence[str], **environ: str) -> AsyncIterator[RawStdio]:
    """Start a command; yield a raw client of it."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=-1, stdout=-1, stderr=-1, env={**ENVIRON, **environ}, limit=2**26
    )
    try:
        yield RawStdio(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


class RawHttp:
    """A raw client over HTTP, which keeps the session id that the server gives."""

    def __init__(self, http: aiohttp.ClientSession, url: str, **headers: str) -> None:
        self.http, self.url = http, url
        self.headers = {"accept": "application/json, text/event-stream", "content-type": "application/json", **headers}

    async def post(self, message: JsonObject | bytes) -> tuple[int, bytes]:
        """Post a message; return status and body of the answer."""
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        async with self.http.post(URL(self.url, encoded=True), data=body, headers=self.headers) as answer:
            if "mcp-session-id" in answer.headers:
                self.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
            return answer.status, await answer.read()

    async def messages(self, message: JsonObject) -> list[Any]:
        """Post a message; return every message of the answer."""
        _, body = await self.post(message)
        if not body.startswith((b"event:", b":", b"data:", b"id:")):
            return [json.loads(body)]
        lines = body.decode().splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: ") and len(line) > 6]

    async def ask(self, message: JsonObject) -> Any:
        """Post a message; return the last message of the answer."""
        return (await self.messages(message))[-1]

    async def shake_hands(self) -> Any:
        answer = await self.ask(request("initialize", 0, HANDSHAKE))
        await self.post(INITIALIZED)
        return answer


class Recorder:
    """An HTTP recorder in this process."""

    def __init__(self, folder: Path, tape: Tape, runs: Runs, url: str, http: aiohttp.ClientSession) -> None:
        self.folder, self.tape, self.runs, self.url, self.http = folder, tape, runs, url, http
        self.said: list[str] = []

    def client(self, run: str | None = None, **headers: str) -> RawHttp:
        """A client of a run's URL, or of the bare URL."""
        return RawHttp(self.http, f"{self.url}/record/{run}/mcp" if run else f"{self.url}/mcp", **headers)

    async def seen(self) -> list[str]:
        """The runs recorded so far."""
        await asyncio.to_thread(self.tape.flush)
        return list(self.tape.summary.calls)

    def events(self, run: str) -> list[Frozen]:
        """The events in a run's file."""
        return events(self.folder, run)

    def calls(self, run: str) -> list[Exchange]:
        """The tool calls in a run's file."""
        return [event for event in self.events(run) if isinstance(event, Exchange) and event.method == "tools/call"]

    def losses(self, run: str) -> list[str]:
        """The reasons of the losses in a run's file."""
        return [event.reason for event in self.events(run) if isinstance(event, Loss)]


@asynccontextmanager
async def recording(upstream: Sequence[str] | str, folder: Path, **options: Any) -> AsyncIterator[Recorder]:
    """A recorder over HTTP in front of a command or a URL."""
    said: list[str] = []
    rules = options.pop("rules", RedactionRules())
    environ = {**ENVIRON, **options.pop("environ", {})}
    runs = Runs(folder, **{name: options.pop(name) for name in ("idle_s", "clock") if name in options})
    tape = Tape(folder, Redactor(rules, key=b"0" * 32, remembers=True), said.append)
    server: Upstream
    if isinstance(upstream, str):
        token = options.get("token")
        server = ReverseProxy(upstream, tape, options.pop("headers", {}), keeps_authorization=token is not None)
    else:
        server = Bridge(upstream, tape, environ)
    app = create_app(server, runs, tape, **{"token": None, "hosts": ["127.0.0.1"], **options})
    try:
        async with (
            running(app) as url,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as http,
        ):
            recorder = Recorder(folder, tape, runs, url, http)
            recorder.said = said
            yield recorder
            server.stop()
    finally:
        await asyncio.to_thread(tape.close)


def events(folder: Path, run: str) -> list[Frozen]:
    """The events of a run's file, each checked against its type."""
    kinds: dict[str, type[Frozen]] = {"exchange": Exchange, "note": Note, "loss": Loss}
    lines = (folder / f"{run}.jsonl").read_text(encoding="utf-8").splitlines()
    return [kinds[json.loads(line)["kind"]].model_validate_json(line) for line in lines]


@asynccontextmanager
async def http_odd() -> AsyncIterator[str]:
    """An HTTP server whose answers no library would write. `/mcp` answers with the request as it came."""

    async def answer(request: Request) -> Response:
        body = await request.body()
        seen = {"body": body.decode(), "query": request.url.query, "headers": dict(request.headers)}
        number = json.loads(body)["id"]
        text = f'{{"id" : {number},\r\n "result": {json.dumps(seen)},  "jsonrpc":"2.0"}}'
        headers = {"x-odd": "1", "mcp-session-id": "s-1", "content-type": "application/json; charset=odd"}
        return Response(text, 203, headers)

    async def stream(request: Request) -> Response:
        number = json.loads(await request.body())["id"]

        async def chunks() -> AsyncIterator[bytes]:
            for part in (b": hello\r\n\r\nid: 7\r\nda", b'ta: {"jsonrpc":"2.0","method":"notifications/x"}\n\n'):
                yield part
            yield f'event: message\ndata: {{"jsonrpc":"2.0",\ndata: "id":{number},"result":{{}}}}\n\n'.encode()

        return StreamingResponse(chunks(), media_type="text/event-stream")

    routes = [Route("/mcp", answer, methods=["POST"]), Route("/stream", stream, methods=["POST"])]
    async with running(Starlette(routes=routes)) as url:
        yield url
