"""Pairs the requests on the wire with their answers, and leaves out repetitions.

Only the tape's thread uses `Tap`. Its data is not redacted yet.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256

from pydantic import JsonValue

from dreamgym.types import JsonObject

MAX_OPEN = 10_000
"""Number of requests without an answer that are remembered."""
VERSION_META_KEY = "io.modelcontextprotocol/protocolVersion"


class _Clock:
    """The time in seconds since the epoch. It goes on if the machine's clock is set back: calls are in its order."""

    def __init__(self) -> None:
        self._ahead_s = -math.inf
        """Seconds by which this clock is ahead of the monotonic one."""

    def __call__(self) -> float:
        self._ahead_s = max(self._ahead_s, time.time() - time.monotonic())
        return self._ahead_s + time.monotonic()


now = _Clock()


class Form(Enum):
    """How messages are framed in the bytes on the wire."""

    JSON = "json"
    LINES = "lines"
    EVENTS = "events"
    """Server-sent events."""


@dataclass(frozen=True, slots=True)
class Heard:
    """Some bytes from one side. Lines and events may be cut anywhere; JSON is complete."""

    run: str
    session: str
    scope: str
    """A pipe or one HTTP request. The agent's request ids are unique within it."""
    from_agent: bool
    form: Form
    payload: bytes
    at: float
    protocol: str | None = None
    status: int = 200
    """The HTTP status; 200 if there is none."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a scope. Requests that are still open in it have no answer."""

    run: str
    scope: str
    reason: str
    at: float
    may_resume: bool = False
    """True if the agent may resume the stream. An open request is then lost only if its answer never comes."""


@dataclass(slots=True)
class _Open:
    heard: Heard
    method: str
    params: JsonObject
    reported: bool = False


class Tap:
    """Remembers open requests and the last listing of each run."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], _Open] = {}
        self._rest: dict[tuple[str, bool], bytearray] = {}
        self._protocols: dict[str, str] = {}
        self._listings: dict[tuple[str, str, str], bytes] = {}

    def hear(self, heard: Heard) -> Iterator[JsonObject]:
        """Yield the exchanges that these bytes complete, and losses, as plain JSON."""
        for text in self._framed(heard):
            try:
                message = json.loads(text)
            except (ValueError, RecursionError):
                yield self._garbage(heard)
                continue
            for one in message if isinstance(message, list) else [message]:
                if not isinstance(one, dict):
                    yield self._garbage(heard)
                elif heard.from_agent:
                    yield from self._asked(heard, one)
                elif "method" not in one and ("result" in one or "error" in one):
                    yield from self._answered(heard, one)

    def end(self, ended: Ended) -> Iterator[JsonObject]:
        """Yield losses for the messages and requests that a scope leaves open.

        If the answer to such a request comes later in another scope, it is still recorded.
        """
        for side in (True, False):
            if self._rest.pop((ended.scope, side), bytearray()).strip():
                yield loss(ended.run, f"the last message was cut off: {ended.reason}", ended.at)
        for (scope, _), open_ in self._open.items() if not ended.may_resume else ():
            if scope == ended.scope and not open_.reported:
                open_.reported = True
                yield loss(open_.heard.run, f"{_named(open_)} has no answer: {ended.reason}", ended.at)

    def unanswered(self, reason: str, at: float) -> Iterator[JsonObject]:
        """Yield losses for everything that is open when the recording ends."""
        for scope in dict.fromkeys(scope for scope, _ in self._open):
            yield from self.end(Ended("", scope, reason, at))

    def _framed(self, heard: Heard) -> list[bytes]:
        if heard.form is Form.JSON:
            return [heard.payload] if heard.payload.strip() else []
        side = (heard.scope, heard.from_agent)
        waiting = self._rest.setdefault(side, bytearray())
        fresh = bytes(waiting[-3:]) + heard.payload
        waiting += heard.payload
        # a long message comes in many parts; only the part with its end is searched together with all before it
        if (b"\n" if heard.form is Form.LINES else b"\n\n") not in fresh.replace(b"\r\n", b"\n"):
            return []
        text = bytes(self._rest.pop(side))
        if heard.form is Form.LINES:
            *lines, rest = text.split(b"\n")
            framed = [line for line in lines if line.strip()]
        else:
            *events, rest = text.replace(b"\r\n", b"\n").split(b"\n\n")
            framed = [data for event in events if (data := _data(event))]
        if rest:
            self._rest[side] = bytearray(rest)
        return framed

    def _asked(self, heard: Heard, message: JsonObject) -> Iterator[JsonObject]:
        method, params = message.get("method"), message.get("params")
        if not isinstance(method, str):
            return  # the agent's answer to a request of the server
        params = params if isinstance(params, dict) else {}
        if "id" in message:
            if len(self._open) >= MAX_OPEN:
                del self._open[next(iter(self._open))]
            self._open[heard.scope, _key(message["id"])] = _Open(heard, method, params)
        elif method == "notifications/cancelled":
            open_ = self._find(heard, _key(params.get("requestId")))
            if open_ is not None and not open_.reported:
                open_.reported = True
                yield loss(heard.run, f"{_named(open_)} has no answer: the agent cancelled it", heard.at)

    def _answered(self, heard: Heard, message: JsonObject) -> Iterator[JsonObject]:
        open_ = self._find(heard, _key(message.get("id")), remove=True)
        if open_ is None:
            yield loss(heard.run, "the server answered an unknown or already answered request", heard.at)
            return
        result, error = message.get("result"), message.get("error")
        if open_.method == "initialize" and isinstance(result, dict):
            self._protocols[heard.session] = str(result.get("protocolVersion"))
        if self._is_repetition(open_, result, error):
            return
        meta = open_.params.get("_meta")
        said = meta.get(VERSION_META_KEY) if isinstance(meta, dict) else None
        said = said if isinstance(said, str) else None
        yield {
            "kind": "exchange",
            "run": open_.heard.run,
            "session": heard.session,
            "method": open_.method,
            "params": open_.params,
            "result": result if isinstance(result, dict) else None,
            "error": error if isinstance(error, dict) else None,
            "protocol": said or self._protocols.get(heard.session) or open_.heard.protocol,
            "started_at": open_.heard.at,
            "ended_at": heard.at,
        }

    def _find(self, heard: Heard, key: str, *, remove: bool = False) -> _Open | None:
        """The open request of this scope, else of this session: answers may come on a resumed stream."""
        place = (heard.scope, key)
        if place not in self._open and (key == "null" or heard.status >= 400):  # refused before its id was read
            place = next((other for other in self._open if other[0] == heard.scope), place)
        if place not in self._open:
            same = (other for other, open_ in self._open.items() if open_.heard.session == heard.session)
            place = next((other for other in same if other[1] == key), place)
        return self._open.pop(place, None) if remove else self._open.get(place)

    def _is_repetition(self, open_: _Open, result: JsonValue, error: JsonValue) -> bool:
        """True for a handshake, listing or ping with the same answer as the one before it in this run."""
        if open_.method not in {"initialize", "server/discover", "ping"} and not open_.method.endswith("/list"):
            return False
        place = (open_.heard.run, open_.method, str(open_.params.get("cursor", "")))
        digest = sha256(json.dumps([result, error]).encode()).digest()
        repeated = self._listings.get(place) == digest
        self._listings[place] = digest
        return repeated

    @staticmethod
    def _garbage(heard: Heard) -> JsonObject:
        side = "agent" if heard.from_agent else "server"
        is_error = heard.status >= 400
        what = f"an HTTP {heard.status} without a JSON-RPC message" if is_error else "something other than JSON-RPC"
        return loss(heard.run, f"the {side} sent {what}; it was passed on and is not recorded", heard.at)


def loss(run: str, reason: str, at: float) -> JsonObject:
    """The event for something that is not recorded."""
    return {"kind": "loss", "run": run, "reason": reason, "at": at}


def _named(open_: _Open) -> str:
    name = open_.params.get("name")
    return f"{open_.method} {name!r}" if open_.method == "tools/call" else open_.method


def _key(request_id: JsonValue) -> str:
    return json.dumps(request_id)


def _data(event: bytes) -> bytes:
    lines = (line[5:] for line in event.split(b"\n") if line.startswith(b"data:"))
    return b"\n".join(line.removeprefix(b" ") for line in lines)
