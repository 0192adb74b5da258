"""Encodings in recorded traffic: escapes in a text, and whole texts in hexadecimal or base64."""

from __future__ import annotations

import base64
import binascii
import html
import re
from bisect import bisect_right
from collections.abc import Callable

_UNSEEN = "\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff"
_WIDE_BLANKS = "\u00a0\u2000-\u200a\u202f\u205f\u3000"
_ESCAPE = re.compile(
    r"\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\{1,15}[\"'/]|\\[nrt\\]|%(?:25){0,3}[0-7][0-9a-fA-F]"
    rf"|&(?:\#\d{{1,7}}|\#[xX][0-9a-fA-F]{{1,6}}|[a-zA-Z]{{2,8}});|[{_UNSEEN}{_WIDE_BLANKS}\uff01-\uff5e]"
)
"""An escape. Those of quotes and of URLs may be escaped again, as in JSON in JSON."""
_LOOKS = ((re.compile(f"[{_UNSEEN}]"), ""), (re.compile(f"[{_WIDE_BLANKS}]"), " "))
_BLANKS = {ord(letter): " " for letter in "\t\r\n\ufeff"}
_LETTERS = {"n": "\n", "r": "\r", "t": "\t"}
_BLOB = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{16,}+(?:\r?\n[A-Za-z0-9+/_-]{4,}+)*+={0,2}")
_HEX = re.compile(r"(?P<prefix>0?x|)(?P<digits>(?:[0-9a-f]{2}){8,}|(?:[0-9A-F]{2}){8,})")
_LONGEST_PATH = 2048
"""Characters of a URL's path at most: in a longer text, a slash is a digit of base64."""
_PART = 2**15


class Unescaped:
    """A text with its escapes (JSON, HTML, URLs), full-width letters and blanks decoded, without unseen characters."""

    def __init__(self, text: str) -> None:
        parts: list[str] = []
        self._here, self._there = [0], [0]
        at = length = 0
        for match in _ESCAPE.finditer(text) if _ESCAPE.search(text) else ():
            meant = _meant(match[0])
            if meant == match[0]:
                continue
            parts += [text[at : match.start()], meant]
            length += match.start() - at + len(meant)
            at = match.end()
            self._here.append(length)
            self._there.append(at)
        self.text = "".join([*parts, text[at:]]) if parts else text

    def original(self, index: int) -> int:
        """Index in the original text of an index in `text`."""
        last = bisect_right(self._here, index) - 1
        return self._there[last] + index - self._here[last]


def _meant(escape: str) -> str:
    meant = escape
    if escape[:2] in {"\\u", "\\x"}:
        meant = chr(int(escape[2:], 16))
    elif escape[0] == "\\":
        meant = _LETTERS.get(escape[-1], escape[-1])
    elif escape[0] == "%":
        meant = chr(int(escape[-2:], 16))
    elif escape[0] == "&" and len(character := html.unescape(escape)) == 1:
        meant = character
    elif "\uff01" <= escape <= "\uff5e":
        meant = chr(ord(escape) - 0xFEE0)
    for pattern, look in _LOOKS:
        meant = pattern.sub(look, meant)
    return meant


def redact_blobs(text: str, redact: Callable[[str], str]) -> str:
    """Redact texts that are encoded in base64 or hexadecimal inside a text, and encode them again in the same way."""
    return _BLOB.sub(lambda match: _blob(match[0], redact), text)


def _blob(blob: str, redact: Callable[[str], str]) -> str:
    if hexadecimal := _HEX.fullmatch(blob):
        digits = hexadecimal["digits"]
        changed = _redacted(bytes.fromhex(digits), redact)
        if changed is not None:
            return hexadecimal["prefix"] + (changed.hex() if digits == digits.lower() else changed.hex().upper())
    url_safe = "-" in blob or "_" in blob
    line = blob.find("\n")
    joined = blob.replace("\n", "").replace("\r", "").rstrip("=")
    padded = joined + "=" * (-len(joined) % 4)
    try:
        content = base64.b64decode(padded, altchars=b"-_" if url_safe else None, validate=True)
    except binascii.Error:
        content = b""
    changed = _redacted(content, redact)
    if changed is None:  # it may be several texts: one on each line, or in each part of a URL's path
        between = "\n" if line >= 0 else "/"
        if between not in blob or (between == "/" and len(blob) > _LONGEST_PATH):
            return blob
        return between.join(redact_blobs(part, redact) for part in blob.split(between))
    encoded = (base64.urlsafe_b64encode if url_safe else base64.b64encode)(changed).decode()
    if line > 0:
        encoded = "\n".join(encoded[at : at + line] for at in range(0, len(encoded), line))
    return encoded if blob.endswith("=") else encoded.rstrip("=")


def _redacted(content: bytes, redact: Callable[[str], str]) -> bytes | None:
    """The redacted content; None if the bytes are not a text or nothing is found in them."""
    for encoding in ("utf-16-le", "utf-16-be") if b"\0" in content else ("utf-8", "latin-1"):
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            continue
        if _is_printable(text) and (redacted := redact(text)) != text:
            return redacted.encode(encoding)
        if encoding == "utf-8":  # latin-1 is for bytes that are not UTF-8
            return None
    return None


def _is_printable(text: str) -> bool:
    """True if a text is printable. It is checked in parts, so that binary data is found early and other threads run."""
    parts = (text[start : start + _PART] for start in range(0, len(text), _PART))
    return all(part.translate(_BLANKS).isprintable() for part in parts)
