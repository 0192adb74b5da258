"""Limits on connections: a time limit for the arrival of a request, and a limit on open connections.

Without them uvicorn waits for ever for the rest of a request, and beyond the limit of open files asyncio logs every
connection that it cannot accept, thousands a second.
"""

from __future__ import annotations

import asyncio
import json
import resource

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

ARRIVAL_S = 30.0
"""Time for a request to arrive, from the opening of the connection, or from the first byte of a later request."""
FILES_FOR_OTHERS = 96
"""Open files reserved for the database, environments, logs and connections that are refused."""
MOST_CONNECTIONS = 16_384


class BoundedConnection(HttpToolsProtocol):
    """One connection. It is closed if its request takes too long, and refused if too many are open."""

    _arriving: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock for the first request, or refuse with 503 if too many connections are open."""
        super().connection_made(transport)
        # taken out of uvicorn's hands, which would refuse requests of connections that are open already
        limit, self.limit_concurrency = self.limit_concurrency, None
        if limit is not None and len(self.connections) >= limit:
            said = json.dumps({"error": "too many connections are open: try again later"}).encode()
            head = f"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: {len(said)}\r\n"
            transport.write(head.encode() + b"Content-Type: application/json\r\nConnection: close\r\n\r\n" + said)
            transport.close()
            return
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        if self._arriving is None:
            self._wait()
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._arrived()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """The request has arrived, and the websocket protocol takes over the connection."""
        self._arrived()
        super().handle_websocket_upgrade()

    def _wait(self) -> None:
        self._arriving = self.loop.call_later(ARRIVAL_S, self.transport.abort)

    def _arrived(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None


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
    """Backlog for asyncio: it accepts this many at a time, so up to three times as many may exceed the bound."""
    return min(2048, _spare(files) // 6)


def _spare(files: int) -> int:
    return max(FILES_FOR_OTHERS, files // 8)
