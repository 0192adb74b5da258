"""Limits on the body of a request, checked before it is parsed.

Deeply nested JSON overflows the stack of recursive parsers, and of code that copies or checks the value afterwards.
"""

from __future__ import annotations

import re

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 2**20
"""Size of a body at most. Some megabytes of small keys would block the event loop for more than 0.1 s."""
MAX_DEPTH = 64
"""Nesting of arrays and objects at most, the envelope of the request included."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string up to its end or the end of the body. Possessive quantifiers make it linear: no byte is read twice."""
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_AS_ONE_KIND = bytes.maketrans(b"{}", b"[]")


class BoundedBody:
    """Reads a body to its end, refuses one that is too large or too deep, and passes the rest on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it with 413 (too large) or 400 (too deep)."""
        if scope["type"] != "http" or scope["method"] in {"GET", "HEAD", "OPTIONS"}:
            await self._app(scope, receive, send)
            return
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if len(body) > MAX_BODY_BYTES:
                refusal = JSONResponse({"error": f"the request body exceeds {MAX_BODY_BYTES} bytes"}, 413)
                await refusal(scope, receive, send)
                return
            if not message.get("more_body"):
                break
        if is_too_deep(body):
            refusal = JSONResponse({"error": f"the request body is nested deeper than {MAX_DEPTH} levels"}, 400)
            await refusal(scope, receive, send)
            return
        whole: Message | None = {"type": "http.request", "body": bytes(body), "more_body": False}

        async def replay() -> Message:
            nonlocal whole
            message, whole = whole, None
            return message if message is not None else await receive()

        await self._app(scope, replay, send)


def is_too_deep(body: bytes | bytearray) -> bool:
    """True if JSON is nested deeper than MAX_DEPTH. For bytes that are not JSON the result means nothing."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return False
    if b"\x00" in body:  # UTF-16 and UTF-32, in which brackets hide; MCP is UTF-8
        return True
    brackets = _STRING.sub(b"", body).translate(_AS_ONE_KIND, _ALL_BUT_BRACKETS)
    for _ in range(MAX_DEPTH):
        flatter = brackets.replace(b"[]", b"")
        if len(flatter) == len(brackets):
            break
        brackets = flatter
    return b"[]" in brackets or brackets.count(b"[") > MAX_DEPTH
