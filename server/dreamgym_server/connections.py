"""Bounds on connections: a request arrives in time or not at all, and no more are open than there are files for.

uvicorn waits for ever for the rest of a request, and beyond the limit of open files asyncio logs each connection that
it cannot take, thousands a second.
"""

from __future__ import annotations

import asyncio
import json
import resource

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

ARRIVAL_S = 30.0
"""From a connection's first moment, or the first byte of a further request, to the request's last byte."""
FILES_FOR_OTHERS = 96
"""Open files that are left, at least, to the database, to worlds, to logs and to connections that are refused."""
MOST_CONNECTIONS = 16_384


class BoundedConnection(HttpToolsProtocol):
    """One connection, closed where its request takes too long, refused where there are too many."""

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
    """How many files this process may open. Raises its limit as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return MOST_CONNECTIONS if hard == resource.RLIM_INFINITY else hard


def most_connections(files: int) -> int:
    """How many may be open at once, of so many files."""
    return max(16, min(MOST_CONNECTIONS, files - _spare(files)))


def accepted_at_once(files: int) -> int:
    """How many asyncio may accept before it hands them over; three times as many may be open on top of the bound."""
    return min(2048, _spare(files) // 6)


def _spare(files: int) -> int:
    return max(FILES_FOR_OTHERS, files // 8)
