"""Secrets that are known by the place they come from: request headers and environment variables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

MIN_LENGTH = 6
"""A shorter value stands in too many places by chance."""

_SECRET = re.compile(
    r"auth(?!or(?!i))|cookie|credential|csrf|dsn|passphrase|passw|[-_]pwd$|private|secret|token(?!s|iz)|(^|[-_])pat$"
    r"|api[-_]?key|access[-_]?key|(^|[-_])key$|(database|redis|mongo\w*|amqp|connection)[-_]?(url|uri|string)",
    re.IGNORECASE,
)
_PLACE = re.compile(r"[-_](sock|file|path|dir|home|host|port|type|timeout)$|^xauthority$", re.IGNORECASE)
_PROTOCOL = {"mcp-session-id", "www-authenticate", "proxy-authenticate"}
_SCHEME = re.compile(r"(basic|bearer|token|apikey|digest)\s+", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """A header or variable of this name holds a secret."""
    return bool(_SECRET.search(name)) and not _PLACE.search(name) and name.lower() not in _PROTOCOL


def secrets_in(named: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Names by secret value: a value whole, without its scheme, and the parts of a cookie."""
    return {
        part: name.lower()
        for name, value in named
        if is_secret_name(name)
        for part in _parts(name, value)
        if len(part) >= MIN_LENGTH
    }


def secrets_of_url(url: str) -> dict[str, str]:
    """Names by secret value: the password and the secret-looking query values of a URL."""
    parts = urlsplit(url)
    named = [(name, value) for name, value in parse_qsl(parts.query) if is_secret_name(name)]
    if parts.password:
        named.append(("password", unquote(parts.password)))
    return {value: name for name, value in named if len(value) >= MIN_LENGTH}


def secrets_of_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Names by secret value: variables with secret-looking names, and the passwords inside of addresses."""
    found = secrets_in(environ.items())
    for name, value in environ.items():
        if "://" in value:
            found |= {secret: f"{name.lower()}-{part}" for secret, part in secrets_of_url(value).items()}
    return found


def _parts(name: str, value: str) -> Iterable[str]:
    yield value
    yield _SCHEME.sub("", value, count=1)
    if "cookie" in name.lower():
        yield from (part.partition("=")[2].strip() for part in value.split(";"))
