"""A minimal round-robin proxy: each request goes to the next server, with one request per connection."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager


@asynccontextmanager
async def round_robin(ports: Sequence[int]) -> AsyncIterator[str]:
    """Yield a URL whose requests go to these ports in turn. A server that is down is skipped."""
    turns = itertools.cycle(ports)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _forward(reader, writer, turns, len(ports))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # one side has disconnected: the other one sees the end of its stream
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**20)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, turns: Iterator[int], servers: int
) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if line and not line.lower().startswith(b"connection:")]
    sizes = [int(line.partition(b":")[2]) for line in lines if line.lower().startswith(b"content-length:")]
    body = await reader.readexactly(sum(sizes))
    upstream = await _connected(turns, servers)
    upstream[1].write(b"\r\n".join([*lines, b"Connection: close", b"", b""]) + body)
    answering = asyncio.create_task(_copy(upstream[0], writer))
    leaving = asyncio.create_task(reader.read())  # ends when the client disconnects, which the server must notice
    await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
    upstream[1].close()
    for task in (answering, leaving):
        task.cancel()
    await asyncio.gather(answering, leaving, return_exceptions=True)


async def _connected(turns: Iterator[int], servers: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    for _ in range(servers - 1):
        try:
            return await asyncio.open_connection("127.0.0.1", next(turns))
        except ConnectionRefusedError:
            continue
    return await asyncio.open_connection("127.0.0.1", next(turns))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(2**16):
        writer.write(chunk)
        await writer.drain()
