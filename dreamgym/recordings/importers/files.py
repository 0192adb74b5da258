"""Reads a file as JSON documents: one value, JSON lines, or values in a row; plain or compressed with xz or gzip.

A part that cannot be parsed is reported with its line, and the rest is read. A list that is cut off yields the items
it has.
"""

from __future__ import annotations

import gzip
import json
import lzma
import re
import zlib
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path

from pydantic import JsonValue

from dreamgym.errors import InvalidInput
from dreamgym.recordings.importers.base import MAX_DEPTH, Document, Skipped, check_value
from dreamgym.recordings.importers.openai_responses import is_item

MAX_UNPACKED_BYTES = 2**31
"""Limit of what a compressed file may contain: a small one may contain more than the memory can hold."""
_BETWEEN = re.compile(r"[\s\x1e]*")
_BETWEEN_ITEMS = re.compile(r"[\s,\]]*")
_NEXT_LINE = re.compile(r"\n(?P<indent>[ \t]*+)(?=\S)[ \t,}\]]*")
"""The beginning of a line that is not blank, with the end of a value that may be there."""


def read_documents(path: Path) -> Iterator[Document | Skipped]:
    """The JSON values of a file, in order; the items of a list one by one, unless the list is a conversation.

    Raises:
        InvalidInput: the file cannot be read at all.
    """
    for document in _values(path.name, _text_of(path)):
        if isinstance(document, Skipped):
            yield document
        elif isinstance(document.value, list) and not is_conversation(document.value):
            for index, item in enumerate(document.value):
                yield _checked(Document(f"{document.where}, item {index}", item))
        else:
            yield _checked(document)


def _checked(document: Document) -> Document | Skipped:
    try:
        check_value(document.value)
    except ValueError as error:
        return Skipped(document.where, f"cannot be used: {error}")
    return document


def is_conversation(value: object) -> bool:
    """True if a value is a list of messages in any of the formats, rather than a list of documents."""
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(item, dict) and _is_message(item) for item in value)


def _is_message(item: dict[str, JsonValue]) -> bool:
    if "messages" in item or "conversations" in item or "traj" in item:
        return False
    if isinstance(item.get("role"), str) or "from" in item:
        return True
    if is_item(item):
        return True
    if item.get("lc") == 1:
        return item.get("type") == "constructor"
    return isinstance(item.get("type"), str) and ("data" in item or "content" in item)


def _text_of(path: Path) -> str:
    try:
        raw = path.read_bytes()
        if raw.startswith(b"\xfd7zXZ\x00"):
            with lzma.open(path) as packed:
                raw = _unpacked(path, packed)
        elif raw.startswith(b"\x1f\x8b"):
            with gzip.open(path) as packed:
                raw = _unpacked(path, packed)
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{path}: cannot be read: expected text in UTF-8, plain or compressed with xz or gzip, got bytes that "
            f"begin with {raw[:8]!r} and are not UTF-8 at offset {error.start:,}: unpack or convert the file"
        ) from error
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise InvalidInput(f"{path}: cannot be read: {error}") from error


def _unpacked(path: Path, packed: BufferedIOBase) -> bytes:
    content = bytearray()
    while part := packed.read(2**20):
        content += part
        if len(content) > MAX_UNPACKED_BYTES:
            raise InvalidInput(
                f"{path}: expected at most {MAX_UNPACKED_BYTES:,} bytes in a compressed file, and it has more: "
                "unpack it yourself, and import the file that is inside"
            )
    return bytes(content)


class _Text(str):
    """A text that hides its line breaks from json, which counts lines from the start for every error.

    For a long file that takes hours.
    """

    __slots__ = ()

    def count(self, *_: object) -> int:
        """Return 0: `_values` counts the lines itself."""
        return 0


class _Faulty(Exception):
    """A value that cannot be used, with the reason; without one if its fault was reported before."""


class _Reading:
    """Reads the values of a text one after the other. Each part of the text is parsed a bounded number of times."""

    def __init__(self, text: str) -> None:
        self._content, self.position = _Text(text), 0
        self._constants: list[str] = []
        self._decoder = json.JSONDecoder(parse_constant=self._constants.append)
        self._inside_list, self._told_at, self._end_of_text = False, -1, len(text.rstrip())
        self._faulty_until = 0
        """Before it, only values on one line are read: each other try may read to the end of the faulty value."""
        self._part, self._begin, self._end = self._content, 0, len(text)
        """What is parsed, its start and its end: the whole text, or one line of a faulty value."""

    def goes_on(self) -> bool:
        """True if there is another value, which then begins at `position`."""
        between = (_BETWEEN_ITEMS if self._inside_list else _BETWEEN).match(self._content, self.position)
        self.position = between.end() if between else self.position
        return self.position < len(self._content)

    def value(self, line: int) -> JsonValue:
        """Read the value at `position`, which is on this line. Raises _Faulty."""
        if self.position >= self._end or self._part is self._content:
            whole = (self._content, 0, len(self._content))
            self._part, self._begin, self._end = self._line() if self.position < self._faulty_until else whole
        self._constants.clear()
        value: JsonValue
        try:
            value, after = self._decoder.raw_decode(self._part, self.position - self._begin)
        except json.JSONDecodeError as error:
            raise _Faulty(self._broken(error, line)) from error
        except (ValueError, RecursionError) as error:
            raise _Faulty(self._unreadable(error)) from error
        if self._constants and self._is_list():
            self._enter()
        else:
            self.position = self._begin + after
        if self._constants:
            raise _Faulty(f"is not valid JSON: {self._constants[0]} is not a JSON value")
        return value

    def _broken(self, error: json.JSONDecodeError, line: int) -> str:
        """Go on behind a fault of syntax; the reason, if it was not reported before."""
        at = self._begin + error.pos
        is_piece = self._part is not self._content and at >= self._begin + len(self._part.rstrip())
        reason = ""
        if not (at == self._told_at or is_piece):  # a list has the fault of its faulty item
            lines = str.count(self._content, "\n", self.position, at)
            reason = f"is not valid JSON: {error.msg.removesuffix(' at')} at line {line + lines}, column {error.colno}"
            begins_line = _BETWEEN_ITEMS.fullmatch(self._content, self._content.rfind("\n", 0, at) + 1, at)
            if not begins_line and self._content.find("{", at, self._end_of_line(at)) >= 0:  # else it is read next
                reason += "; what follows it on this line was not read"
        elif at >= self._end_of_text or "Unterminated string" in str(error):  # the lines of an item that is cut off
            self.position = len(self._content)
            return reason
        self._told_at = at
        if self._is_list():
            self._enter()
        else:
            self._faulty_until = max(self._faulty_until, at)
            self.position = self._behind_value(at)
        return reason

    def _behind_value(self, fault: int) -> int:
        """Where another value may begin behind the faulty one: on the next line that is indented no deeper than it.

        If its fault is on its first line, it may have only that line, and the next line is read however it is indented.
        So is it if the fault is the `{` with which the next line begins: the first line lacks its `}`.
        """
        _, begin, end = self._line()
        if fault <= end:
            return end
        if self._content.startswith("{", fault) and _BETWEEN_ITEMS.fullmatch(self._content, end, fault):
            return fault
        before = self._content[begin : self.position]
        indent = len(before) - len(before.lstrip(" \t"))
        lines = _NEXT_LINE.finditer(self._content, end)
        return next((line.end() for line in lines if len(line["indent"]) <= indent), len(self._content))

    def _unreadable(self, error: Exception) -> str:
        """Go on behind a value whose fault is somewhere in it: on the next line if this line alone has it too."""
        told = f"it is nested deeper than {MAX_DEPTH} levels" if isinstance(error, RecursionError) else str(error)
        if self._is_list():
            self._enter()
            return f"is not valid JSON: {told}"
        _, _, end = self._line()
        try:
            self._decoder.raw_decode(str(self._content[self.position : end]))
        except (ValueError, RecursionError) as own:
            if type(own) is type(error):
                self.position = end
                return f"is not valid JSON: {told}"
        self.position = len(self._content)
        return f"is not valid JSON: {told}; what follows it was not read"

    def _is_list(self) -> bool:
        return self._content[self.position] == "[" and not self._inside_list

    def _enter(self) -> None:
        self._inside_list, self.position = True, self.position + 1

    def _line(self) -> tuple[_Text, int, int]:
        """The line at `position`, its start and its end."""
        begin, end = self._content.rfind("\n", 0, self.position) + 1, self._end_of_line(self.position)
        return _Text(self._content[begin:end]), begin, end

    def _end_of_line(self, at: int) -> int:
        end = self._content.find("\n", at)
        return len(self._content) if end < 0 else end


def _values(name: str, text: str) -> Iterator[Document | Skipped]:
    reading, line, counted = _Reading(text), 1, 0
    while reading.goes_on():
        line, counted = line + text.count("\n", counted, reading.position), reading.position
        where = f"{name}, line {line}"
        try:
            yield Document(where, reading.value(line))
        except _Faulty as fault:
            if reason := str(fault):
                yield Skipped(where, reason)
