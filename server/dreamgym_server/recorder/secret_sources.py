"""Secrets that are known by their source: request headers, URLs and environment variables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

from dreamgym.redaction.names import holds_secret

MIN_LENGTH = 6
"""A shorter value is ignored, since it occurs in too many places by chance."""
MAX_PART = 1024

_RANDOM = re.compile(
    r"(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])(?:[\w.~=-]*[A-Za-z0-9]{16}[\w.~=-]*|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-.*)"
)
"""A random part of a URL's path, which must be a secret: https://host/mcp/s/SECRET/mcp."""
_PASSWORD = re.compile(r"://[^\s:/@]*+:([^\s/@]++)@")
_SCHEME = re.compile(r"(basic|bearer|token|apikey|digest)\s+", re.IGNORECASE)


def secrets_in(named: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Secret values with their names: the whole value, the value without its scheme, and the parts of a cookie.

    Of a `Set-Cookie`, only the cookie's value is a secret.
    """
    return {
        part: name.lower()
        for name, value in named
        if holds_secret(name, value)
        for part in _parts(name, value)
        if len(part) >= MIN_LENGTH
    }


def secrets_of_url(url: str) -> dict[str, str]:
    """Secret values of a URL with their names: password, secret-looking query values, random parts of the path."""
    try:
        parts = urlsplit(url)
    except ValueError:  # any variable may hold a text that only resembles a URL
        passwords = _PASSWORD.findall(url)
        return {unquote(password): "password" for password in passwords if len(unquote(password)) >= MIN_LENGTH}
    named = [(name, value) for name, value in parse_qsl(parts.query) if holds_secret(name, value)]
    if parts.password:
        named.append(("password", unquote(parts.password)))
    named += [("path", part) for part in parts.path.split("/") if len(part) <= MAX_PART and _RANDOM.fullmatch(part)]
    return {value: name for name, value in named if len(value) >= MIN_LENGTH}


def secrets_of_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Secret values with their names: variables with secret-looking names, and the secrets inside of URLs."""
    found = secrets_in(environ.items())
    for name, value in environ.items():
        if "://" in value:
            found |= {secret: f"{name.lower()}-{part}" for secret, part in secrets_of_url(value).items()}
    return found


def _parts(name: str, value: str) -> Iterable[str]:
    if name.lower() == "set-cookie":  # the other parts are attributes, such as the server's domain
        yield value.partition(";")[0].partition("=")[2].strip()
        return
    yield value
    yield _SCHEME.sub("", value, count=1)
    if "cookie" in name.lower():
        yield from (part.partition("=")[2].strip() for part in value.split(";"))
