"""What a real server tells of its world in an answer's `_meta` is for the recording; the agent must not see it.

Only an answer that tells something is written anew: its numbers and texts stay, its spacing does not. Every other one
goes through byte for byte, at the latest when its line or event is complete. The keys are looked for where the tape
finds them: a compressed answer, which no server is asked for, goes through as it is and is not recorded either.
"""

from __future__ import annotations

import json
import re

from pydantic import JsonValue

from dreamgym.content import TOLD_KEYS
from dreamgym.types import JsonObject

_SIGN = b"dreamgym"
"""Stands in the text of both keys, however the slash after it is written."""
_LINE_END = rb"(?:\r\n|\r(?!\n)|\n)"
_EVENT_END = re.compile(_LINE_END * 2)
_LINES = re.compile(rb"[^\r\n]*" + _LINE_END + rb"|[^\r\n]+")
_COMMENTS = re.compile(rb"(?::[^\r\n]*" + _LINE_END + rb")+")


def without_state(message: JsonObject) -> JsonObject:
    """An answer without what it tells of the state; anything else as it is."""
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
        return text  # no message: there is nothing in it that the tape could take for a state
    free: JsonValue = message
    if isinstance(message, dict):
        free = without_state(message)
    elif isinstance(message, list):
        free = [without_state(one) if isinstance(one, dict) else one for one in message]
    if free == message:
        return text
    return json.dumps(free).encode() + text[len(text.rstrip()) :]


class Lines:
    """A stream of lines, cut anywhere: what is complete goes on."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def pass_on(self, chunk: bytes) -> bytes:
        """What the agent may see by now."""
        end = chunk.rfind(b"\n") + 1
        if not end:
            self._rest += chunk
            return b""
        whole, self._rest = bytes(self._rest) + chunk[:end], bytearray(chunk[end:])
        if _SIGN not in whole:
            return whole
        return b"\n".join(shown(line) for line in whole.split(b"\n"))

    def end(self) -> bytes:
        """What is left when nothing more comes."""
        rest, self._rest = bytes(self._rest), bytearray()
        return shown(rest)


class Events:
    """A stream of server-sent events, cut anywhere: what is complete goes on, and so do comments between events."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def pass_on(self, chunk: bytes) -> bytes:
        """What the agent may see by now."""
        seen = max(0, len(self._rest) - 3)
        self._rest += chunk
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
        """What is left when nothing more comes."""
        rest, self._rest = bytes(self._rest), bytearray()
        return _shown_event(rest)


def _shown_event(event: bytes) -> bytes:
    """An event whose data is a message, that message as the agent may see it."""
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
