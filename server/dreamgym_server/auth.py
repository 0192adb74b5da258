"""Access control: bearer tokens, and the Host and Origin checks against DNS rebinding.

One ASGI wrapper checks all routes, including MCP and websockets. Only `/healthz`, `/readyz` and the files of the page
need no token. The server's token gives access to everything. An episode's token contains the episode's id and gives
access to the MCP URL of that episode alone, in its environment. It is sent as a part of the URL, as bearer token at the
episode's or the environment's MCP URL, or in the header X-DreamGym-Episode. It is derived from the server's token, so
nothing is stored and every replica with the same token accepts it. An episode's id is not a secret.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import os
import re
from collections.abc import Awaitable, Iterable, Mapping
from pathlib import Path

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from dreamgym.errors import InvalidInput

PAGE = "/view/"
"""Path of the page for a browser. The page requests its data below `/view/api/`."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
TOKEN_VARIABLE = "DREAMGYM_TOKEN"  # noqa: S105  # a name, not a token


EPISODE_HEADER = "x-dreamgym-episode"
MCP_PATH = re.compile(r"/envs/(?P<env>[^/]+)/(?:episodes/(?P<episode>[^/]+)/)?mcp/?")
"""Path of the MCP URL of an environment or an episode."""
_HEADERS = "dreamgym.headers"
MIN_TOKEN_CHARACTERS = 16

_HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[a-z0-9_.-]+))(?::[0-9]{1,5})?", re.IGNORECASE)
_ORIGIN = re.compile(r"https?://(?P<host>[^/?#]*)", re.IGNORECASE)


def headers_of(scope: Scope) -> Mapping[str, str]:
    """The headers of a request by their names in lower case, decoded once. The first header of a name counts."""
    known: dict[str, str] | None = scope.get(_HEADERS)
    if known is None:
        # httptools keeps the blanks after a value, which do not belong to it
        known = scope[_HEADERS] = {
            name.decode("latin-1"): value.decode("latin-1").rstrip(" \t") for name, value in scope["headers"][::-1]
        }
    return known


class Keys:
    """The server's token, and the episode tokens derived from it."""

    def __init__(self, token: str) -> None:
        self._server = token.encode()
        self._key = hmac.digest(token.encode(), b"dreamgym episode tokens", "sha256")

    def episode_token(self, env: str, episode: str) -> str:
        """The token of one episode: its id, a dot, and a signature of environment and id under the server's token."""
        signature = hmac.digest(self._key, f"{env}/{episode}".encode("utf-8", "surrogatepass"), "sha256")
        return f"{episode}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"

    def episode_of(self, env: str, token: str) -> str | None:
        """Id of the episode that a token belongs to; None if it is not a valid token of this environment."""
        episode, dot, _ = token.rpartition(".")
        expected = self.episode_token(env, episode).encode("utf-8", "surrogatepass")
        return episode if dot and hmac.compare_digest(token.encode("utf-8", "surrogatepass"), expected) else None

    def is_server(self, token: str) -> bool:
        """True if a token is the server's own, compared in constant time."""
        return hmac.compare_digest(token.encode("utf-8", "surrogatepass"), self._server)


class Guard:
    """Checks host, origin and token of a request before any other code reads it.

    Args:
        app: the app to protect.
        keys: checks the tokens; None lets everyone in.
        hosts: host names that requests may be addressed to, any port; `*` allows all.
    """

    def __init__(self, app: ASGIApp, *, keys: Keys | None, hosts: Iterable[str]) -> None:
        self._app = app
        self._keys = keys
        self._hosts = frozenset(host.lower() for host in hosts)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        refusal = None if scope["type"] == "lifespan" else self._refusal(scope)
        return (refusal or self._app)(scope, receive, send)

    def _is_agent(self, scope: Scope, headers: Mapping[str, str], given: str) -> bool:
        """True if the request has a valid episode token for its URL; the episode is then noted in the scope."""
        door = MCP_PATH.fullmatch(scope["path"])
        if door is None:
            return False
        assert self._keys is not None
        named = door["episode"] or headers.get(EPISODE_HEADER)
        for token in filter(None, (named, given)):
            episode = self._keys.episode_of(door["env"], token)
            if episode is not None and named in {None, token, episode}:
                scope["dreamgym.episode"] = episode
                return True
        return False

    def _refusal(self, scope: Scope) -> Response | None:
        headers = headers_of(scope)
        if "*" not in self._hosts:
            host = headers.get("host", "")
            if _name(host) not in self._hosts:
                return JSONResponse({"error": f"host {host!r} is not served here: start with --allowed-host"}, 421)
            origin = headers.get("origin")
            if origin is not None and _origin(origin) not in self._hosts:
                return JSONResponse({"error": f"origin {origin!r} is not allowed: start with --allowed-host"}, 403)
        if self._keys is None or is_open(scope["path"]):
            return None
        given = _bearer(headers.get("authorization", ""))
        scope["dreamgym.control"] = self._keys.is_server(given)
        if self._is_agent(scope, headers, given) or scope["dreamgym.control"]:
            return None
        expected = "expected the server's bearer token, or, at an episode's MCP URL, the token of that episode"
        return JSONResponse({"error": expected}, 401, {"WWW-Authenticate": "Bearer"})


def is_open(path: str) -> bool:
    """True if a request needs no token: the probes, and the files of the page, which contain no recorded data."""
    is_of_page = path in {PAGE, PAGE.rstrip("/")} or (path.startswith(PAGE) and not path.startswith(f"{PAGE}api/"))
    return path in {"/healthz", "/readyz"} or is_of_page


def _bearer(authorization: str) -> str:
    """The token of an Authorization header, or an empty text. Schemes are case-insensitive (RFC 9110)."""
    scheme, _, token = authorization.partition(" ")
    return token if scheme.lower() == "bearer" else ""


def read_token(file: Path | None) -> str | None:
    """The token from a file, else from DREAMGYM_TOKEN, else None. Raises InvalidInput if it cannot be used."""
    token = _token_in(file)
    if token is not None and not (len(token) >= MIN_TOKEN_CHARACTERS and token.isascii() and token.isprintable()):
        raise InvalidInput(
            f"the server's token: expected {MIN_TOKEN_CHARACTERS} or more printable ASCII characters, got {len(token)} "
            "characters. An agent could guess a short one: make one with `openssl rand -hex 32`"
        )
    return token


def _token_in(file: Path | None) -> str | None:
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
    """Raises InvalidInput if other machines can reach the address and there is no token."""
    if token is None and not is_loopback(host):
        raise InvalidInput(
            f"refusing to listen on {host} without a token: set {TOKEN_VARIABLE} or --token-file, or use 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """True if only this machine can reach the address. A name other than localhost counts as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _name(host: str) -> str:
    """The host of a Host header, without port and brackets; empty if the header is not valid."""
    found = _HOST.fullmatch(host)
    return (found["address"] or found["name"]).lower() if found else ""


def _origin(origin: str) -> str:
    """The host of an Origin header, without its port; empty if it is not the origin of a web page."""
    found = _ORIGIN.fullmatch(origin)
    return _name(found["host"]) if found else ""
