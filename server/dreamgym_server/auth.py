"""Who may come in: the bearer token, and the Host and Origin checks against DNS rebinding.

One ASGI wrapper around everything, the agents' door included; only `/healthz` needs no token.
An episode's id is no secret that protects it: where agents are not trusted, give them a proxy that holds the token.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
from collections.abc import Iterable
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from dreamgym.errors import InvalidInput

LOOPBACK = ("127.0.0.1", "localhost", "::1")
TOKEN_VARIABLE = "DREAMGYM_TOKEN"  # noqa: S105  # a name, not a token


class Guard:
    """Refuses a request before anything looks at it.

    Args:
        app: what is guarded.
        token: the bearer token; None lets everyone in.
        hosts: host names that requests may be addressed to, any port; `*` allows all.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, hosts: Iterable[str]) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode() if token else None
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or refuse."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
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
        if self._expected is not None and scope["path"] != "/healthz":
            given = headers.get("authorization", "").encode()
            if not hmac.compare_digest(given, self._expected):
                challenge = {"WWW-Authenticate": "Bearer"}
                return JSONResponse({"error": "expected the server's bearer token"}, 401, challenge)
        return None


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
