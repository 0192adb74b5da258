"""Removes the state from the `_meta` of a real server's answer: it is recorded, but the agent must not see it.

Only an answer that contains a state is written anew: its numbers and texts stay, its spacing may change. Every other
answer passes through byte for byte, at the latest when its line or event is complete. The keys are searched for in the
same text that the tape reads. No server is asked for a compressed answer; if one comes, it passes through unchanged
and is not recorded either.
"""

from __future__ import annotations

import json
import re

from pydantic import JsonValue

from dreamgym.content import TOLD_KEYS
from dreamgym.types import JsonObject

_SIGN = b"dreamgym"
"""Part of both keys, whether or not the slash after it is escaped."""
_LINE_END = rb"(?:\r\n|\r(?!\n)|\n)"
_LINE_END_SIGN = re.compile(rb"[\r\n]")
_EVENT_END = re.compile(_LINE_END * 2)
_LINES = re.compile(rb"[^\r\n]*" + _LINE_END + rb"|[^\r\n]+")
_COMMENTS = re.compile(rb"(?::[^\r\n]*" + _LINE_END + rb")+")


def without_state(message: JsonObject) -> JsonObject:
    """An answer without the state; any other message unchanged."""
    result = message.get("result")
    meta = result.get("_meta") if isinstance(result, dict) else None
    if not isinstance(result, dict) or not isinstance(meta, dict) or not TOLD_KEYS & meta.keys():
        return message
    kept: JsonObject = {key: value for key, value in meta.items() if key not in TOLD_KEYS}
    shown = {key: kept if key == "_meta" else value for key, value in result.items() if key != "_meta" or kept}
    return {**message, "result": shown}


def shown(text: bytes) -> bytes:
    """The text of a message as the agent may see it."""
    if _SIGN not in text:
        return text
    try:
        message: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return text  # not a message: the tape cannot find a state in it
    free: JsonValue = message
    if isinstance(message, dict):
        free = without_state(message)
    elif isinstance(message, list):
        free = [without_state(one) if isinstance(one, dict) else one for one in message]
    if free == message:
        return text
    return json.dumps(free).encode() + text[len(text.rstrip()) :]


class Lines:
    """Filters a stream of lines, cut anywhere. Complete lines are passed on."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def pass_on(self, chunk: bytes) -> bytes:
        """Add a chunk; return what the agent may see by now."""
        end = chunk.rfind(b"\n") + 1
        if not end:
            self._rest += chunk
            return b""
        whole, self._rest = bytes(self._rest) + chunk[:end], bytearray(chunk[end:])
        if _SIGN not in whole:
            return whole
        return b"\n".join(shown(line) for line in whole.split(b"\n"))

    def end(self) -> bytes:
        """Return the rest at the end of the stream."""
        rest, self._rest = bytes(self._rest), bytearray()
        return shown(rest)


class Events:
    """Filters a stream of server-sent events, cut anywhere. Complete events and comments are passed on."""

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def waiting(self) -> int:
        """Number of bytes that wait for the end of their event."""
        return len(self._rest)

    def pass_on(self, chunk: bytes) -> bytes:
        """Add a chunk; return what the agent may see by now."""
        seen = max(0, len(self._rest) - 3)
        self._rest += chunk
        if not _LINE_END_SIGN.search(self._rest, seen):
            return b""  # an event or comment in many parts is searched only when it may be complete
        ends = [found.end() for found in _EVENT_END.finditer(self._rest, seen)]
        comments = _COMMENTS.match(self._rest, ends[-1] if ends else 0)
        cut = comments.end() if comments else ends[-1] if ends else 0
        if not cut:
            return b""
        whole, self._rest = bytes(self._rest[:cut]), self._rest[cut:]
        if _SIGN not in whole:
            return whole
        starts = [0, *ends]
        return b"".join(_shown_event(whole[a:b]) for a, b in zip(starts, [*ends, cut], strict=True))

    def end(self) -> bytes:
        """Return the rest at the end of the stream."""
        rest, self._rest = bytes(self._rest), bytearray()
        return _shown_event(rest)


def _shown_event(event: bytes) -> bytes:
    """The event as the agent may see it: if its data is a message, without the state."""
    if _SIGN not in event:
        return event
    lines = _LINES.findall(event)
    places = [place for place, line in enumerate(lines) if line.startswith(b"data:")]
    data = b"\n".join(lines[place].rstrip(b"\r\n")[5:].removeprefix(b" ") for place in places)
    free = shown(data)
    if free == data:
        return event
    ending = lines[places[-1]][len(lines[places[-1]].rstrip(b"\r\n")) :]
    lines[places[0]] = b"data: " + free + ending
    return b"".join(line for place, line in enumerate(lines) if place == places[0] or place not in places)
