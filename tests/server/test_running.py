"""An app behind a real socket."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import httpx2
import pytest
from dreamgym_server import connections
from dreamgym_server.app import build
from dreamgym_server.connections import MAX_HEAD_BYTES, InOnePiece
from dreamgym_server.running import running
from server_stage import Stage
from starlette.types import Receive, Scope, Send

from dreamgym.errors import InvalidInput


@pytest.mark.anyio
async def test_the_error_for_a_port_in_use_names_the_port(stage: Stage) -> None:
    async with stage.serve() as (url, _):
        port = int(url.rpartition(":")[2])
        with pytest.raises(InvalidInput, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            async with stage.serve(port=port):
                pass


@pytest.mark.anyio
async def test_an_app_that_does_not_start_is_an_error() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "lifespan.startup.failed", "message": "no"})

    with pytest.raises(InvalidInput, match="did not start"):
        async with running(app):
            pass


async def asked(url: str, path: str = "/envs") -> int:
    """Status of a request over a connection of its own."""
    async with httpx2.AsyncClient() as http:
        return (await http.get(url + path)).status_code


@pytest.mark.anyio
@pytest.mark.parametrize(
    "half",
    [
        b"",
        b"POST /envs HTTP/1.1\r\nHost: localhost\r\n",
        b"POST /envs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
    ],
    ids=["nothing", "half a head", "half a body"],
)
async def test_a_request_that_does_not_arrive_in_time_is_dropped(
    stage: Stage, half: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "ARRIVAL_S", 0.2)
    async with stage.serve() as (url, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(half)
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()
        assert await asked(url) == 200


@pytest.mark.anyio
async def test_headers_that_are_too_long_are_refused_before_their_end(stage: Stage) -> None:
    async with stage.serve() as (url, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
        writer.write(head + (b"a: b\r\n" * MAX_HEAD_BYTES)[: MAX_HEAD_BYTES + 1 - len(head)])
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
        assert b"the request's first line and headers exceed 65536 bytes" in answer
        assert await asked(url) == 200


@pytest.mark.anyio
async def test_headers_after_a_body_are_not_kept(stage: Stage) -> None:
    seen = list[Scope]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        if scope["type"] == "lifespan":
            while message["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
                message = await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        seen.append(scope)
        while message.get("more_body"):
            message = await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async with running(app) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + b"0\r\n" + b"late: 1\r\n" * 1000 + b"\r\n")
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        writer.close()
    assert [name for name, _ in seen[0]["headers"]] == [b"host", b"transfer-encoding"]


@pytest.mark.anyio
async def test_a_connection_over_the_limit_is_refused_and_the_others_are_served(stage: Stage) -> None:
    app = build([stage.dream()], stage.buffer, stage.episodes)
    async with running(app, connections=3) as url:
        async with httpx2.AsyncClient() as first, httpx2.AsyncClient() as second, httpx2.AsyncClient() as third:
            for http in (first, second, third):
                assert (await http.get(f"{url}/healthz")).status_code == 200
            assert await asked(url) == 503
            for http in (first, second, third):
                assert (await http.post(f"{url}/envs/counter/episodes", json={})).status_code == 201
        await asyncio.wait_for(until_free(url), 20)


@pytest.mark.anyio
async def test_a_server_at_its_connection_limit_answers_health_checks_and_refuses_everything_else(stage: Stage) -> None:
    app = build([stage.dream()], stage.buffer, stage.episodes)
    async with running(app, connections=1) as url, httpx2.AsyncClient() as only:
        assert (await only.get(f"{url}/envs")).status_code == 200
        async with httpx2.AsyncClient() as probe:
            answer = await probe.get(f"{url}/healthz")
            assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        assert [await asked(url, path) for path in ("/readyz", "/envs", "/healthz", "/nowhere")] == [503, 503, 200, 503]
        websocket = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        upgrade = {**websocket, "sec-websocket-key": "MDEyMzQ1Njc4OWFiY2RlZg=="}
        async with httpx2.AsyncClient() as other:
            assert (await other.get(f"{url}/envs/counter/openenv/ws", headers=upgrade)).status_code == 503


@pytest.mark.anyio
async def test_connections_that_send_nothing_do_not_block_health_checks(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PROBE_ARRIVAL_S", 0.2)
    monkeypatch.setattr("dreamgym_server.running.accepted_at_once", lambda files: 1)  # three may be silent
    app = build([stage.dream()], stage.buffer, stage.episodes)
    async with running(app, connections=1) as url, httpx2.AsyncClient() as only:
        assert (await only.get(f"{url}/envs")).status_code == 200
        port = int(url.rpartition(":")[2])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(9)]
        lines = [await asyncio.wait_for(reader.readline(), 20) for reader, _ in silent]
        assert {*lines} == {b"HTTP/1.1 503 Service Unavailable\r\n"}
        assert await asked(url, "/healthz") == 200
        for _, writer in silent:
            writer.close()


@pytest.mark.anyio
async def test_a_connected_client_is_served_while_others_are_refused(stage: Stage) -> None:
    app = build([stage.dream()], stage.buffer, stage.episodes)
    async with running(app, connections=1) as url, httpx2.AsyncClient() as http:
        assert (await http.get(f"{url}/healthz")).status_code == 200
        is_over = asyncio.Event()
        others = [asyncio.create_task(refused_until(is_over, url)) for _ in range(16)]
        served = [(await http.get(f"{url}/healthz")).status_code for _ in range(300)]
        is_over.set()
        assert {*served} == {200}
        assert {line for lines in await asyncio.gather(*others) for line in lines} == {
            b"HTTP/1.1 503 Service Unavailable\r\n"
        }


async def refused_until(is_over: asyncio.Event, url: str) -> list[bytes]:
    """Open one connection after another, and return the first line that each gets."""
    lines = []
    while not is_over.is_set():
        lines.append(await first_line(url))
    return lines


async def first_line(url: str) -> bytes:
    """Return the first line that a connection gets that sends nothing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    line = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return line


async def until_free(url: str) -> None:
    """Wait until the server has noticed that connections closed."""
    while await asked(url) != 200:
        await asyncio.sleep(0)


class Sent(asyncio.Transport):
    """A transport that records its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.asked.append(bytes(data))

    def close(self) -> None:
        self.asked.append(b"closed")


@pytest.mark.anyio
async def test_head_and_body_of_an_answer_are_sent_by_one_call() -> None:
    transport = InOnePiece(sent := Sent())
    transport.write(b"head ")
    transport.write(b"body")
    await asyncio.sleep(0)
    transport.write(b"last ")
    transport.write(b"words")
    transport.close()
    await asyncio.sleep(0)
    assert sent.asked == [b"head body", b"last words", b"closed"]


@pytest.mark.anyio
async def test_an_answer_in_parts_of_all_lengths_arrives_whole_and_in_order() -> None:
    parts = [bytes([65 + number]) * length for number, length in enumerate((1, 10, 200_000, 3, 2**14, 5, 1_000_000, 2))]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        length = str(sum(map(len, parts))).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async with running(app) as url, httpx2.AsyncClient() as http:
        assert (await http.get(url)).content == b"".join(parts)
