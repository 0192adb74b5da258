"""HTTP connections to one server, shared by all clients of one event loop. Refusals become DreamGym's errors.

Hundreds of episodes share one pool. It opens with the first user and closes with the last. It uses aiohttp, because
httpx2 looks at every idle connection for every request: with 64 episodes that took a third of a trainer's time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import aiohttp
from pydantic import JsonValue

from dreamgym.errors import EnvironmentUnavailable, InvalidInput, UnknownEpisode
from dreamgym.types import JsonObject

STEP_TIMEOUT_S = 930.0
"""Slightly longer than the server's limit for a step, so that the server's own answer arrives. Connecting has no limit
except TCP's: if 2,000 clients connect at once to a busy server, the last wait for more than 10 s."""

_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str | None], Connection]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Response:
    """An HTTP response whose body has been read."""

    status: int
    body: bytes
    resent: bool = False
    """True if the connection broke, so that the request was sent twice."""

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")


def with_token(url: str, token: str) -> str:
    """The URL of a server with its token in it (`http://:TOKEN@host`); all clients here accept this form."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://:{token}@{rest}"


def without_token(url: str, token: str | None) -> tuple[str, str | None]:
    """The URL of a server without its token, so that it may be shown, and the token, given or from the URL.

    Raises:
        InvalidInput: the URL is not that of a server.
    """
    scheme, _, rest = url.strip().rstrip("/").partition("://")
    user, at, place = rest.rpartition("@")
    if scheme.lower() not in {"http", "https"} or not place:
        got = url.rpartition("@")[2]
        raise InvalidInput(f"expected the address of a server, such as http://127.0.0.1:8000, got {got!r}")
    return f"{scheme}://{place}", (token or (user.removeprefix(":") if at else "")).strip() or None


class Connection:
    """One connection pool to one server. Get it from `acquire`, with one `release` per call."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url
        self.listings: dict[str, list[JsonObject]] = {}
        """Tool definitions by environment. They are fetched once, since they never change."""
        self._key = (url, token)
        self._users = 0
        self._http = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"} if token else None,
            timeout=aiohttp.ClientTimeout(total=STEP_TIMEOUT_S),
            connector=aiohttp.TCPConnector(limit=0),
        )

    @classmethod
    def acquire(cls, url: str, token: str | None) -> Connection:
        """The running event loop's connection to this server."""
        connections = _shared.setdefault(asyncio.get_running_loop(), {})
        connection = connections.get((url, token)) or connections.setdefault((url, token), cls(url, token))
        connection._users += 1
        return connection

    async def release(self) -> None:
        """Give the connection up. The last user closes it."""
        self._users -= 1
        if self._users == 0:
            _shared[asyncio.get_running_loop()].pop(self._key)
            await self._http.close()

    async def request(
        self, method: str, path: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Send one request, and send it once more if the connection broke.

        The server detects the resend if it sees the first connection break. A proxy may hide that from it.

        Raises:
            EnvironmentUnavailable: the server cannot be reached, or says that it cannot answer now.
        """
        try:
            response = await self._send(method, path, body, headers)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EnvironmentUnavailable(f"{self.url} cannot be reached: {error or type(error).__name__}") from error
        if response.status == 429 or response.status >= 500:
            said = _reason(response) or response.text[:300] or f"status {response.status}"
            raise EnvironmentUnavailable(f"{self.url}{path}: {said}")
        return response

    async def _send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] | None) -> Response:
        try:
            return await self._send_once(method, path, body, headers)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientPayloadError):
            return replace(await self._send_once(method, path, body, headers), resent=True)

    async def _send_once(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] | None
    ) -> Response:
        async with self._http.request(method, self.url + path, data=body, headers=headers) as response:
            if response.method != method:  # as HTTP demands of a POST that is redirected with 301 or 302
                place = str(response.url.with_query(None)).removesuffix(path)
                raise EnvironmentUnavailable(f"{self.url} redirects to {place}: give the address that it redirects to")
            return Response(response.status, await response.read())

    async def json(self, method: str, path: str, *, body: JsonObject | None = None, episode: str = "") -> JsonObject:
        """One call of the control API. An empty body is returned as an empty object.

        Raises:
            UnknownEpisode: the server has no episode of this id.
            InvalidInput: the server refused, for the reason it gave.
            EnvironmentUnavailable: the server cannot be reached, or says that it cannot answer now.
        """
        content = None if body is None else json.dumps(body).encode()
        response = await self.request(method, path, body=content, headers={"Content-Type": "application/json"})
        if response.status < 300:
            value = _json(response.body) if response.body else {}
            if not isinstance(value, dict):
                said = (
                    f"{self.url}{path} answered {response.status}, expected a JSON object, got {response.text[:300]!r}"
                )
                raise EnvironmentUnavailable(f"{said}: check the server's address")
            return value
        reason = _reason(response)
        if reason is None:
            reason = f"expected a DreamGym server, got {response.text[:300]!r}: check the server's address"
        if response.status == 404 and reason == str(UnknownEpisode(episode)):
            raise UnknownEpisode(episode)
        raise InvalidInput(f"{self.url}{path} answered {response.status}: {reason}")


def _json(body: bytes) -> JsonValue:
    """The value of a body; None if it is not JSON."""
    try:
        value: JsonValue = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value


def _reason(response: Response) -> str | None:
    """The reason that a server of ours gives; None if another program answered."""
    value = _json(response.body)
    if isinstance(value, dict) and "error" in value:
        return str(value["error"])
    return None
