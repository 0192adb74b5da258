"""HTTP in front of an HTTP server: a reverse proxy that streams the answers and keeps a copy.

Bodies pass through byte for byte, except for the state that a server adds (see strip_state.py). Headers pass through,
except for those that belong to one connection. The agent's authorization goes to the server as the agent sent it,
unless it is this recorder's own token. The recorder sets no time limit for an answer; the agent's own limit applies. If
the agent gives up, its request to the server is closed, as it would be without the recorder.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256

import aiohttp
from pydantic import JsonValue
from starlette.types import Message, Receive, Scope, Send
from yarl import URL

from dreamgym.redaction.names import may_be_secret_name
from dreamgym.types import JsonObject
from dreamgym_server.recorder.pairing import Ended, Form, Heard, now
from dreamgym_server.recorder.runs import RUN_HEADER
from dreamgym_server.recorder.secret_sources import secrets_in, secrets_of_url
from dreamgym_server.recorder.strip_state import Events, shown
from dreamgym_server.recorder.writer import Known, Tape

MAX_REDIRECTS = 3
REDIRECTS = frozenset({301, 302, 303, 307, 308})
UNAUTHORIZED = frozenset({401, 403})
MAX_BODY_BYTES = 64 * 2**20
MAX_MESSAGE_BYTES = 256 * 2**20
"""Maximum size of an answer of the server, or of one event of its stream."""
EVENT_STREAM = "text/event-stream"

_OF_THE_CONNECTION = {
    b"connection",
    b"content-length",
    b"host",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
}
_OF_THE_SERVER = {b"date", b"server"}
_OURS = {RUN_HEADER.encode(), b"accept-encoding", b"expect"}


class MessageTooLong(Exception):
    """The server sends a message that is longer than MAX_MESSAGE_BYTES."""


class _Elsewhere(Exception):
    """The server redirects to another one, whose scheme, host and port are the argument."""


def refusal(status: int, headers: Iterable[str]) -> str:
    """The message about a 401 or 403.

    Args:
        status: HTTP status of the response.
        headers: names of the headers that the recorder itself sends.
    """
    sent = ", ".join(sorted(headers))
    to_do = f"check the header {sent} that it refused" if sent else "give the recorder one with --header NAME=VARIABLE"
    return f"the server wants a credential (HTTP {status}): {to_do}, or let the agent send its own"


class ReverseProxy:
    """An HTTP upstream.

    Args:
        url: the real server's MCP URL.
        tape: gets the copy.
        headers: sent to the server with the agent's headers; they replace those of the same names.
        keeps_authorization: do not pass on the agent's `Authorization`, because it is for this recorder.
    """

    def __init__(self, url: str, tape: Tape, headers: Mapping[str, str], *, keeps_authorization: bool) -> None:
        self._url, self._tape = URL(url, encoded=True), tape
        self._headers = dict(headers)
        self._dropped = _OF_THE_CONNECTION | _OURS | {name.lower().encode() for name in headers}
        self._dropped |= {b"authorization"} if keeps_authorization else set()
        self._client: aiohttp.ClientSession | None = None
        self._anonymous = f"http-{uuid.uuid4().hex[:12]}"
        self._requests = 0
        self._visits: set[_Visit] = set()
        self._stopped = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Context manager inside which requests are served."""
        async with aiohttp.ClientSession(
            auto_decompress=False,
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            requote_redirect_url=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
        ) as self._client:
            yield

    async def serve(self, run: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one HTTP request to the server, and its response back."""
        body = await read_body(receive, send)
        if body is None:
            return
        self._learn(scope["headers"], secrets_of_url(f"?{scope['query_string'].decode('latin-1')}"))
        self._requests += 1
        visit = _Visit(self._tape, run, f"{self._anonymous}-{self._requests}", self._anonymous, scope, body)
        self._visits.add(visit)
        answering = asyncio.create_task(self._answer(visit, scope, body, send))
        stop = self._stopped if scope["method"] == "GET" else visit.cancelled
        ends: set[asyncio.Task[object]] = {
            asyncio.create_task(until_left(receive)),
            asyncio.create_task(stop.wait()),
        }
        try:
            await asyncio.wait({answering, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                visit.end(f"the agent gave up after {now() - visit.began:.1f} s")
        finally:
            self._visits.discard(visit)
            for task in (answering, *ends):
                task.cancel()
            await asyncio.wait({answering, *ends})
        if not answering.cancelled():
            answering.result()
            self._end_cancelled(visit)
        elif stop.is_set() and visit.is_open:
            await send({"type": "http.response.body"})
        elif visit.cancelled.is_set():
            await answer(send, 202, b"", [])

    async def finish(self, run: str) -> None:
        """Do nothing: the server does not know runs."""

    def stop(self) -> None:
        """End the streams of GET requests, but not the calls under way."""
        self._stopped.set()

    def _end_cancelled(self, notice: _Visit) -> None:
        """End the request that a notification cancels: servers do not answer it, and its run would never be idle.

        Without a session, another agent may have a request of this id; agents then close their request to cancel it.
        """
        is_notice = notice.has_session and b"notifications/cancelled" in notice.body
        if is_notice and (named := notice.cancels()) is not None:
            for visit in self._visits:
                if visit.session == notice.session and visit.asks(named):
                    visit.cancelled.set()

    async def _answer(self, visit: _Visit, scope: Scope, body: bytes, send: Send) -> None:
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self._kept(scope["headers"])]
        headers += [*self._headers.items(), ("Accept-Encoding", "identity")]
        url = self._url
        if scope["query_string"]:
            own = f"{url.raw_query_string}&" if url.raw_query_string else ""
            url = URL(f"{url.with_query(None)}?{own}{scope['query_string'].decode('latin-1')}", encoded=True)
        try:
            async with await self._request(scope["method"], url, headers, body) as response:
                self._learn(response.raw_headers)
                visit.begin(response)
                if response.status in UNAUTHORIZED:
                    visit.refuse(refusal(response.status, self._headers))
                if response.status == 404 and visit.has_session:
                    visit.refuse("the server has ended the session (HTTP 404)")
                if response.content_type == EVENT_STREAM:
                    await _stream(visit, response, send)
                else:
                    await _whole(visit, response, send)
                visit.finish()  # the agent has the whole response: this costs it no time
            return
        except MessageTooLong:
            reason = f"the server sent a message of more than {MAX_MESSAGE_BYTES:,} bytes"
        except _Elsewhere as error:
            reason = f"the server redirects to {error}: give --upstream its address there"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            address = f"{self._url.host}:{self._url.port}"
            reason = f"the server {address} cannot be reached or closed the connection: {type(error).__name__}"
        visit.end(reason)
        if not visit.is_open:
            await refuse(send, 502, reason, body)

    async def _request(
        self, method: str, url: URL, headers: list[tuple[str, str]], body: bytes
    ) -> aiohttp.ClientResponse:
        """Send a request. Redirects within the server are followed, since the agent does not know its address.

        Raises:
            _Elsewhere: a redirect leads to another server, whose traffic would not be recorded.
        """
        assert self._client is not None
        for _ in range(MAX_REDIRECTS):
            response = await self._client.request(
                method, url, headers=headers, data=body or None, allow_redirects=False
            )
            if response.status not in REDIRECTS or "location" not in response.headers:
                return response
            try:
                target = url.join(URL(response.headers["location"], encoded=True))
                is_within = target.origin() == url.origin()
            except ValueError:  # it is not a URL
                return response
            if is_within and response.status not in (307, 308):  # it would have to be asked with GET
                return response
            response.release()
            if not is_within:
                raise _Elsewhere(str(target.origin()))
            url = target
        return response

    def _kept(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        return [(name, value) for name, value in headers if name not in self._dropped]

    def _learn(self, headers: Iterable[tuple[bytes, bytes]], others: Mapping[str, str] | None = None) -> None:
        """Give the tape the secret header values, also if it has them: it forgets those that are no longer used.

        Args:
            headers: the headers of a request or a response.
            others: further secrets, with their names.
        """
        named = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers]
        secrets = secrets_in((name, value) for name, value in named if may_be_secret_name(name)) | dict(others or {})
        if secrets:
            self._tape.put(Known(secrets))


class _Visit:
    """Gives the tape a copy of one HTTP request and its response."""

    def __init__(self, tape: Tape, run: str, id_: str, anonymous: str, scope: Scope, body: bytes) -> None:
        self.began = now()
        self.is_open = False
        """True if the response has begun."""
        headers = dict(scope["headers"])
        self.has_session = b"mcp-session-id" in headers
        self.body = body
        self.cancelled = asyncio.Event()
        """Set if the agent cancelled the request."""
        self._tape, self._run, self._id, self._anonymous = tape, run, id_, anonymous
        self.session = _session(headers.get(b"mcp-session-id"), anonymous)
        version = headers.get(b"mcp-protocol-version")
        self._protocol = version.decode("latin-1") if version else None
        self._form, self._status, self._chunks = Form.JSON, 200, list[bytes]()
        self._is_refused, self._may_resume = False, False
        self._asks = bool(body) and scope["method"] == "POST"
        if self._asks:
            self._put(body, Form.JSON, from_agent=True)

    def begin(self, response: aiohttp.ClientResponse) -> None:
        self._status = response.status
        self._form = Form.EVENTS if response.content_type == EVENT_STREAM else Form.JSON
        session = response.headers.get("mcp-session-id")
        if session is not None:
            self.session = _session(session.encode(), self._anonymous)

    def refuse(self, reason: str) -> None:
        """Note why the server did not let the request in. Its response is not a tool's answer and is not recorded."""
        self._is_refused = True
        self.end(reason)

    def hear(self, chunk: bytes) -> None:
        if self._is_refused:
            return
        if self._form is Form.EVENTS:
            self._may_resume |= chunk.startswith(b"id:") or b"\nid:" in chunk
            self._put(chunk, Form.EVENTS)
        else:
            self._chunks.append(chunk)

    def finish(self) -> None:
        if self._chunks and self._asks:
            self._put(b"".join(self._chunks), Form.JSON)
        # after an event with an id, the answer may come on a stream with which the agent resumes this one
        self._end("the server's response ended without it", may_resume=self._may_resume)

    def end(self, reason: str) -> None:
        self._end(reason, may_resume=False)

    def asks(self, request_id: JsonValue) -> bool:
        """True if this is the request with this id."""
        message = _object(self.body)
        return "method" in message and "id" in message and message["id"] == request_id

    def cancels(self) -> JsonValue:
        """The id of the request that this notification cancels; None if it is no such notification."""
        message = _object(self.body)
        params = message.get("params")
        if message.get("method") != "notifications/cancelled" or not isinstance(params, dict):
            return None
        return params.get("requestId")

    def _end(self, reason: str, *, may_resume: bool) -> None:
        self._tape.put(Ended(self._run, self._id, reason, now(), may_resume))

    def _put(self, payload: bytes, form: Form, *, from_agent: bool = False) -> None:
        source = (self._run, self.session, self._id)
        self._tape.put(Heard(*source, from_agent, form, payload, now(), self._protocol, self._status))


async def _stream(visit: _Visit, response: aiohttp.ClientResponse, send: Send) -> None:
    """Send the response event by event."""
    visit.is_open = True
    await send(_start(response, _answered_headers(response)))
    events = Events()
    async for chunk in response.content.iter_any():
        visit.hear(chunk)
        complete = events.pass_on(chunk)
        if events.waiting > MAX_MESSAGE_BYTES:
            raise MessageTooLong
        if complete:
            await send({"type": "http.response.body", "body": complete, "more_body": True})
    await send({"type": "http.response.body", "body": events.end()})


async def _whole(visit: _Visit, response: aiohttp.ClientResponse, send: Send) -> None:
    """Send the response in one piece, since its length is known only when it is complete."""
    parts, length = list[bytes](), 0
    async for part in response.content.iter_any():
        parts.append(part)
        length += len(part)
        if length > MAX_MESSAGE_BYTES:
            raise MessageTooLong
    said = b"".join(parts)
    visit.hear(said)
    body = shown(said)
    headers = _answered_headers(response)
    if body != said:
        headers = [(name, value) for name, value in headers if name != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
    visit.is_open = True
    await send(_start(response, headers))
    await send({"type": "http.response.body", "body": body})


def _start(response: aiohttp.ClientResponse, headers: list[tuple[bytes, bytes]]) -> Message:
    return {"type": "http.response.start", "status": response.status, "headers": headers}


def _session(header: bytes | None, anonymous: str) -> str:
    """A name for the session that does not reveal its id, since the id gives access to it."""
    return f"http-{sha256(header).hexdigest()[:12]}" if header else anonymous


def _answered_headers(response: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
    lower = [(name.lower(), value) for name, value in response.raw_headers]
    dropped = (_OF_THE_CONNECTION - {b"content-length"}) | _OF_THE_SERVER
    return [(name, value) for name, value in lower if name not in dropped]


async def answer(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """Send a whole HTTP response."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def read_body(receive: Receive, send: Send) -> bytes | None:
    """The request's body; None if the agent left before it was complete, or if it was refused as too long."""
    parts, length = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        length += len(parts[-1])
        if length > MAX_BODY_BYTES:
            await refuse(send, 413, f"the request is too long: the recorder accepts at most {MAX_BODY_BYTES:,} bytes")
            return None
        if not message.get("more_body"):
            return b"".join(parts)


async def until_left(receive: Receive) -> None:
    """Wait until the agent closes its request."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _object(body: bytes) -> JsonObject:
    """The message in a body; empty if it is not one message."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


async def refuse(send: Send, status: int, reason: str, body: bytes = b"") -> None:
    """Answer a request with our own JSON-RPC error, which contains the request's id if it has one."""
    try:
        request_id = json.loads(body)["id"]
    except (ValueError, TypeError, KeyError, RecursionError):
        request_id = None
    error = {"jsonrpc": "2.0", "id": request_id, "error": {"code": -32000, "message": reason}}
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(error).encode()})
