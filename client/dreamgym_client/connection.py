"""HTTP to one server, shared by all clients of one event loop, and the server's refusals as our own errors.

Hundreds of episodes share one pool: it opens with the first user and closes with the last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import httpx2

from dreamgym.errors import EnvironmentUnavailable, InvalidInput, UnknownEpisode
from dreamgym.types import JsonObject

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

STEP_TIMEOUT_S = 330.0
"""A little more than the server gives a step, so that the server's own answer arrives."""
IDLE_CONNECTIONS = 512

_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str | None], Connection]] = WeakKeyDictionary()


class Connection:
    """One server over one pool. Get it from `connected`, or from `acquire` with a `release` for each."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url.rstrip("/")
        self.listings: dict[str, list[JsonObject]] = {}
        """Tool definitions by environment: fetched once, they never change."""
        self._key = (url, token)
        self._users = 0
        self._http = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {token}"} if token else None,
            timeout=httpx2.Timeout(STEP_TIMEOUT_S, connect=10.0, pool=None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=IDLE_CONNECTIONS),
            verify=url.startswith("https:"),  # loading certificates takes 20 ms, and http has no use for them
        )

    @classmethod
    def acquire(cls, url: str, token: str | None) -> Connection:
        """The running event loop's connection to this server."""
        connections = _shared.setdefault(asyncio.get_running_loop(), {})
        connection = connections.get((url, token)) or connections.setdefault((url, token), cls(url, token))
        connection._users += 1
        return connection

    async def release(self) -> None:
        """One user less; the last one closes it."""
        self._users -= 1
        if self._users == 0:
            _shared[asyncio.get_running_loop()].pop(self._key)
            await self._http.aclose()

    async def request(
        self, method: str, path: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> httpx2.Response:
        """Send one request, and once more where the connection broke: the server knows a resend from a second call.

        Raises:
            EnvironmentUnavailable: the server cannot be reached, or says that it cannot answer now.
        """
        try:
            response = await self._send(method, path, body, headers)
        except httpx2.TransportError as error:
            raise EnvironmentUnavailable(f"{self.url} cannot be reached: {error or type(error).__name__}") from error
        if response.status_code in {429, 502, 503, 504}:
            raise EnvironmentUnavailable(f"{self.url}{path}: {_reason(response)}")
        return response

    async def _send(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] | None
    ) -> httpx2.Response:
        try:
            return await self._http.request(method, self.url + path, content=body, headers=headers)
        except (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError):
            return await self._http.request(method, self.url + path, content=body, headers=headers)

    async def json(self, method: str, path: str, *, body: JsonObject | None = None, episode: str = "") -> JsonObject:
        """One call of the control API; an empty answer is an empty object.

        Raises:
            UnknownEpisode: there is no such `episode`.
            InvalidInput: the server refused, for the reason it gave.
            EnvironmentUnavailable: the server cannot be reached, or says that it cannot answer now.
        """
        content = None if body is None else httpx2.Request("POST", self.url, json=body).content
        response = await self.request(method, path, body=content, headers={"Content-Type": "application/json"})
        if response.is_success:
            value: JsonObject = response.json() if response.content else {}
            return value
        reason = _reason(response)
        if response.status_code == 404 and reason == str(UnknownEpisode(episode)):
            raise UnknownEpisode(episode)
        raise InvalidInput(f"{self.url}{path} answered {response.status_code}: {reason}")


@asynccontextmanager
async def connected(url: str, token: str | None) -> AsyncIterator[Connection]:
    """The running event loop's connection to this server, for as long as the block lasts."""
    connection = Connection.acquire(url, token)
    try:
        yield connection
    finally:
        await connection.release()


def _reason(response: httpx2.Response) -> str:
    try:
        return str(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        return response.text[:300] or response.reason_phrase
