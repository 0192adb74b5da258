"""Serves an app on a socket."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.requests import Request
from starlette.types import ASGIApp

from dreamgym.errors import InvalidInput
from dreamgym_server.connections import BoundedConnection, accepted_at_once, files_allowed, most_connections

GRACE_S = 10
"""Seconds that answers may delay the shutdown. Longer steps have `sessions.LAST_STEPS_S` more to be stored."""
IDLE_S = 75
"""Seconds that an idle connection stays open. Agents think for longer than uvicorn's default of 5 s."""


def collect_rarely() -> None:
    """Run the garbage collector rarely, in a process that only serves.

    Episodes are freed without the collector. By default it scanned all running episodes again and again, which took a
    third of the CPU time. Objects of calls under way also count towards the threshold: with a threshold of 20,000 the
    collector took 4 % of the CPU time at 64 episodes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 50)


def stop_signal(*, tied: bool = False) -> asyncio.Event:
    """An event that SIGTERM and Ctrl-C set. If it is `tied`, the end of standard input sets it too."""
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)

    def read() -> None:
        if not os.read(sys.stdin.fileno(), 1024):
            loop.remove_reader(sys.stdin.fileno())
            stopped.set()

    if tied:
        loop.add_reader(sys.stdin.fileno(), read)
    return stopped


STOPPING = "dreamgym.stopping"
"""Name of the event in the state of each request."""


def stopping_of(request: Request) -> asyncio.Event:
    """An event that is set when the server stops. A stream without an end must end then, as the server waits for it."""
    stopping: asyncio.Event | None = request.scope.get("state", {}).get(STOPPING)
    return stopping or asyncio.Event()


class _Server(uvicorn.Server):
    """A uvicorn server that reports when it listens and does not touch the process's signal handlers."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self.stopping = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.lifespan.state[STOPPING] = self.stopping
        try:
            await super().startup(sockets)
        except SystemExit:  # uvicorn would end the whole process
            raise InvalidInput("the server did not start; its log says why") from None
        self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bound(host: str, port: int) -> socket.socket:
    """A socket at this address that does not listen yet. Raises InvalidInput if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only if the protocol is given explicitly; with it, each step waits 40 ms
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        hint = "; give another with --port (0 takes a free one)" if error.errno == errno.EADDRINUSE else ""
        raise InvalidInput(f"cannot listen on {host}:{port}: {error.strerror}{hint}") from error
    return listener


@asynccontextmanager
async def running(
    app: ASGIApp, *, host: str = "127.0.0.1", port: int = 0, connections: int | None = None
) -> AsyncIterator[str]:
    """Serve the app in this event loop and yield its base URL; port 0 takes a free one.

    Args:
        app: the app to serve.
        host: address to listen on.
        port: port to listen on.
        connections: number of connections that may be open at once. None: as many as the limit of open files allows.
    """
    files = files_allowed()
    connections = most_connections(files) if connections is None else connections
    listener = bound(host, port)
    config = uvicorn.Config(
        app,
        interface="asgi3",  # uvicorn would take an app that returns an awaitable for one of an older interface
        lifespan="on",
        http=BoundedConnection.of_one_server(),
        limit_concurrency=connections + 1,  # uvicorn refuses the connection that reaches this number
        backlog=accepted_at_once(files),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GRACE_S,
        timeout_keep_alive=IDLE_S,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    ready = asyncio.create_task(server.ready.wait())
    try:
        await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            await serving
        listener.listen(QUEUE)  # asyncio accepts few at once, the kernel keeps the others waiting
        name = f"[{host}]" if listener.family == socket.AF_INET6 else host
        yield f"http://{name}:{listener.getsockname()[1]}"
    finally:
        ready.cancel()
        server.should_exit = True
        server.stopping.set()
        await asyncio.wait({serving})
        listener.close()


QUEUE = 2048
"""Number of connections that may wait to be accepted. A client beyond it retries after a second."""
