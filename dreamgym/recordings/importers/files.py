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
from dreamgym.recordings.importers.base import MAX_DEPTH, Document, Skipped, check_value, refuse_constant
from dreamgym.recordings.importers.openai_responses import is_item

MAX_UNPACKED_BYTES = 2**31
"""Limit of what a compressed file may contain: a small one may contain more than the memory can hold."""
_BETWEEN = re.compile(r"[\s\x1e]*")
_BETWEEN_ITEMS = re.compile(r"[\s,\]]*")


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
    return all(isinstance(item, dict) and (_is_message(item)) for item in value)


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
    except (OSError, EOFError, UnicodeDecodeError, lzma.LZMAError, zlib.error) as error:
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


def _values(name: str, text: str) -> Iterator[Document | Skipped]:
    decoder, content = json.JSONDecoder(parse_constant=refuse_constant), _Text(text)
    position, line, counted = 0, 1, 0
    inside_list, told_at, end_of_text = False, -1, len(text.rstrip())
    while True:
        between = (_BETWEEN_ITEMS if inside_list else _BETWEEN).match(content, position)
        position = between.end() if between else position
        if position >= len(content):
            return
        line, counted = line + text.count("\n", counted, position), position
        where = f"{name}, line {line}"
        try:
            value, position = decoder.raw_decode(content, position)
        except (ValueError, RecursionError) as error:
            at = error.pos if isinstance(error, json.JSONDecodeError) else -1
            if at < 0 or at != told_at:  # a list has the fault of its faulty item
                yield Skipped(where, f"is not valid JSON: {_reason(error, text, line, position)}")
            elif at >= end_of_text or "Unterminated string" in str(error):  # the lines of an item that is cut off
                return
            told_at = at
            if content[position] == "[" and not inside_list:
                inside_list, position = True, position + 1
            else:
                end = content.find("\n", position)
                position = len(content) if end < 0 else end + 1
        else:
            yield Document(where, value)


def _reason(error: Exception, text: str, line: int, position: int) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {line + text.count(chr(10), position, error.pos)}, column {error.colno}"
    return f"it is nested deeper than {MAX_DEPTH} levels" if isinstance(error, RecursionError) else str(error)
