"""Who may come in: bearer tokens, and the Host and Origin checks against DNS rebinding.

One ASGI wrapper around everything, the agents' door and websockets included; only `/healthz` and `/readyz` need no
token. The server's token opens every door. An episode's token opens that episode's MCP URL alone; it follows from the
server's token, so nothing is stored and every replica of the same token knows it. An episode's id is no secret.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import os
import re
from collections.abc import Iterable
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from dreamgym.errors import InvalidInput

LOOPBACK = ("127.0.0.1", "localhost", "::1")
TOKEN_VARIABLE = "DREAMGYM_TOKEN"  # noqa: S105  # a name, not a token


_EPISODE = re.compile(r"/envs/[^/]+/episodes/([^/]+)/mcp")


class Keys:
    """The server's token and those that follow from it."""

    def __init__(self, token: str) -> None:
        self._server = f"Bearer {token}".encode()
        self._key = hmac.digest(token.encode(), b"dreamgym episode tokens", "sha256")

    def episode_token(self, episode: str) -> str:
        """The token of one episode's MCP URL."""
        signature = hmac.digest(self._key, episode.encode("utf-8", "surrogatepass"), "sha256")
        return base64.urlsafe_b64encode(signature).decode().rstrip("=")

    def open(self, path: str, given: bytes) -> bool:
        """Whether an Authorization header opens this path."""
        if hmac.compare_digest(given, self._server):
            return True
        episode = _EPISODE.fullmatch(path)
        return episode is not None and hmac.compare_digest(given, f"Bearer {self.episode_token(episode[1])}".encode())


class Guard:
    """Refuses a request before anything looks at it.

    Args:
        app: what is guarded.
        keys: what opens which door; None lets everyone in.
        hosts: host names that requests may be addressed to, any port; `*` allows all.
    """

    def __init__(self, app: ASGIApp, *, keys: Keys | None, hosts: Iterable[str]) -> None:
        self._app = app
        self._keys = keys
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or refuse."""
        refusal = None if scope["type"] == "lifespan" else self._refusal(scope)
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if "*" not in self._hosts:
            host = headers.get("host", "")
            if _name(host) not in self._hosts:
                return JSONResponse({"error": f"host {host!r} is not served here: start with --allowed-host"}, 421)
            origin = headers.get("origin")
            if origin is not None and _name(origin.partition("://")[2]) not in self._hosts:
                return JSONResponse({"error": f"origin {origin!r} is not allowed: start with --allowed-host"}, 403)
        if self._keys is None or scope["path"] in {"/healthz", "/readyz"}:
            return None
        if self._keys.open(scope["path"], headers.get("authorization", "").encode()):
            return None
        expected = "expected the server's bearer token, or at an episode's MCP URL the episode's own"
        return JSONResponse({"error": expected}, 401, {"WWW-Authenticate": "Bearer"})


def read_token(file: Path | None) -> str | None:
    """The token from a file, else from DREAMGYM_TOKEN, else None. Raises InvalidInput for an unusable file."""
    if file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"token file {file}: {error}") from error
    if not token:
        raise InvalidInput(f"token file {file} is empty")
    return token


def check_bind(host: str, token: str | None) -> None:
    """Refuse to be reachable from outside without a token. Raises InvalidInput."""
    if token is None and not is_loopback(host):
        raise InvalidInput(
            f"refusing to listen on {host} without a token: set {TOKEN_VARIABLE} or --token-file, or use 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Only this machine can reach the address. A name other than localhost counts as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _name(host: str) -> str:
    """A Host header without its port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
