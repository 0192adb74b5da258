"""Secrets by their form: the detectors of detect-secrets, and what stands behind a telling name.

Left out of that library: the entropy detectors, which take ids and hashes for secrets; the private key detector, which
finds the first line only; and the detectors of assignments, made for source code, which cost half of the time and find
what the rule for telling names finds too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Protocol

from dreamgym.errors import MissingPackage

SECRET_FIELD = re.compile(
    r"(?:.*[-_.])?(?:pass(?:word|wd|phrase|code)|pwd|secret|token|credentials?|authorization|cookies?|set[-_]cookie|cvv|cvc|otp|csrf"
    r"|(?:api|auth|access|private|secret|signing|encryption|service|account|client|session)[-_]?key|apikey)"
    r"(?:[-_](?:value|text|plain|hash|key))?",
    re.IGNORECASE,
)
"""Names of fields that hold a secret, in snake case."""
NO_SECRET_FIELD = re.compile(
    r"(?:progress|page|next|continuation|cursor|sync|start|end|max|min|num)[-_](?:.*[-_])?token"
)

LEFT_OUT = frozenset(
    {
        "IPPublicDetector",
        "PrivateKeyDetector",
        "CloudantDetector",
        "IbmCloudIamDetector",
        "IbmCosHmacDetector",
        "SoftlayerDetector",
        "NpmDetector",
    }
)

_LONG_RUN = re.compile(r"[\w+/=-]{11}|://")
"""Every pattern of the library needs one: prose is passed over."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z ]*-----|\Z)", re.DOTALL)
_PREFIXED = re.compile(
    r"(?<![\w-])(?:sk-[\w-]{20,}|gh[opsur]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}|xox[abeprs]-[\w-]{10,}|hf_\w{20,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]+)?"
    r"|AIza[\w-]{30,}|ya29\.[\w-]{20,}|dop_v1_\w{30,}|shpat_\w{20,}|[rs]k_(?:live|test)_\w{10,}|npm_\w{30,}|pypi-[\w-]{40,})"
)
_SCHEME = re.compile(r"(?i)\b(?:bearer|basic)\s+([\w.~+/=-]{12,})")
_COOKIES = re.compile(r"(?i)\bcookie:\s*([\w.-]+=[^\r\n\"']+)")
_NAME = re.compile(
    r"(?i)(?<![\w-])([a-z_][\w.-]{0,60}?)\\?[\"']?\s?(?:=>|=|:)\s?\\?[\"']?(?:(?:bearer|basic|token)\s+)?"
)
_VALUE = re.compile(r"[^\s\"'\\,;&<>(){}\[\]]{4,}")


class _Detector(Protocol):
    secret_type: str
    denylist: Sequence[re.Pattern[str]]


def is_secret_field(name: str) -> bool:
    """A field, argument or variable of this name holds a secret."""
    snake = _CAMEL.sub("_", name).lower()
    return bool(SECRET_FIELD.fullmatch(snake)) and not NO_SECRET_FIELD.fullmatch(snake)


def found_in(text: str) -> Iterator[tuple[str, str]]:
    """Secrets in a text, each with the name of what it is."""
    if "PRIVATE KEY" in text:
        yield from (("private_key", match[0]) for match in _PRIVATE_KEY.finditer(text))
    for name, pattern in _patterns() if _LONG_RUN.search(text) else ():
        for match in pattern.finditer(text):
            yield name, max((group for group in match.groups() if group and len(group) >= 8), key=len, default=match[0])
    yield from (("token", match[0]) for match in _PREFIXED.finditer(text))
    yield from (("authorization", match[1]) for match in _SCHEME.finditer(text))
    yield from (("cookie", match[1]) for match in _COOKIES.finditer(text))
    for named in _NAME.finditer(text):
        value = _VALUE.match(text, named.end()) if is_secret_field(named[1]) else None
        if value and _looks_made_up(value[0]):
            yield named[1], value[0].rstrip(".:")  # the end of a sentence is no part of it


def _looks_made_up(value: str) -> bool:
    """A password in running text is no word of it: `the token: expired` keeps its text, and so does `and/or`."""
    bare = value.strip(".!?:").replace("/", "")
    return bool(bare) and not bare.isalpha()


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """The library's patterns. A group of a few letters in one is the prefix of a secret, a longer one the secret."""
    try:
        from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
        from detect_secrets.plugins.base import RegexBasedDetector
    except ImportError as error:
        raise MissingPackage("redaction", "server") from error
    detectors: list[_Detector] = [
        kind()
        for kind in get_mapping_from_secret_type_to_class().values()
        if issubclass(kind, RegexBasedDetector) and kind.__name__ not in LEFT_OUT
    ]
    return tuple(
        (found.secret_type.lower().replace(" ", "_"), pattern) for found in detectors for pattern in found.denylist
    )
