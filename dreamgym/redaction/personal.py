"""Personal data by its form, each kind with the check that tells it from an ordinary number."""

from __future__ import annotations

import importlib
import ipaddress
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import NamedTuple

from dreamgym.errors import MissingPackage
from dreamgym.redaction.placeholder import Placeholders

CARD_PREFIX = "40000000"
IBAN_PREFIX = "XX00"

_EMAIL = re.compile(
    r"(?<![\w.+-])\w[\w.+'-]{0,63}(?:@|%40)(?:[a-z0-9][a-z0-9-]{0,62}\.){1,8}[a-z]{2,24}", re.IGNORECASE
)
_CARD = re.compile(r"(?<![\w.-])[3-6](?:[ -]?\d){12,18}(?![\w-])")
_IBAN = re.compile(r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?!\w)")
_SSN = re.compile(r"(?<![\w-])\d{3}-\d{2}-\d{4}(?![\w-])")
_PHONE = re.compile(r"(?<![\w.+])\+\d[\d ().-]{6,18}\d(?!\w)")
_US_PHONE = re.compile(r"(?<![\w.+-])(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}(?![\w-])")
_IP4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\w)")
_IP6 = re.compile(r"(?<![\w:.])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])", re.IGNORECASE)
DIGIT = re.compile(r"\d")
_VERSION = re.compile(r"(?:version|release|\bv)\W{0,3}$", re.IGNORECASE)
_BENCHMARKING = ipaddress.ip_network("198.18.0.0/15")
_DOCUMENTATION = ipaddress.ip_network("2001:db8::/32")


class Find(NamedTuple):
    """Something personal in a text, and what stands in its place."""

    start: int
    end: int
    placeholder: str


Rule = Callable[[str, Placeholders], Iterator[Find]]


def emails(text: str, make: Placeholders) -> Iterator[Find]:
    """`alice@corp.com`, also percent-encoded."""
    if "@" in text or "%40" in text:
        for match in _EMAIL.finditer(text):
            yield Find(*match.span(), make.email(match[0]))


def cards(text: str, make: Placeholders) -> Iterator[Find]:
    """13 to 19 digits under the Luhn check; in their place a number of a test range that passes it too."""
    luhn = _stdnum("luhn")
    for match in _CARD.finditer(text):
        digits = "".join(filter(str.isdigit, match[0]))
        if not digits.startswith(CARD_PREFIX) and luhn.is_valid(digits):
            body = make.digits(match[0], CARD_PREFIX)
            last = luhn.calc_check_digit("".join(filter(str.isdigit, body))[:-1])
            yield Find(*match.span(), body[:-1] + last)


def ibans(text: str, make: Placeholders) -> Iterator[Find]:
    """International bank account numbers under their check digits; in their place one of no country."""
    for match in _IBAN.finditer(text):
        if _stdnum("iban").is_valid(match[0]):
            yield Find(*match.span(), make.capitals(match[0], IBAN_PREFIX))


def social_security_numbers(text: str, make: Placeholders) -> Iterator[Find]:
    """US social security numbers with hyphens; in their place one of area 000, which nobody has."""
    for match in _SSN.finditer(text):
        if _stdnum("us.ssn").is_valid(match[0]):
            yield Find(*match.span(), make.digits(match[0], "000"))


def phones(text: str, make: Placeholders) -> Iterator[Find]:
    """Numbers with a country code, and US ones that are set like a telephone number; ids of digits only are not."""
    for pattern, region in ((_PHONE, None), (_US_PHONE, "US")):
        for match in pattern.finditer(text):
            if _is_phone(match[0], region):
                yield Find(*match.span(), _fictional(match[0], make))


def ip_addresses(text: str, make: Placeholders) -> Iterator[Find]:
    """Addresses of machines, not this one's own; in their place one of the ranges for benchmarks and documents."""
    if text.count(".") >= 3:
        for match in _IP4.finditer(text):
            found = _address(match[0])
            if found and found not in _BENCHMARKING and not _VERSION.search(text, 0, match.start()):
                yield Find(*match.span(), str(_BENCHMARKING[1 + make.number(str(found), 2**17 - 2)]))
    if text.count(":") >= 2:
        for match in _IP6.finditer(text):
            found = _address(match[0]) if DIGIT.search(match[0]) else None  # abc::def is a name in many languages
            if found and found not in _DOCUMENTATION:
                yield Find(*match.span(), str(_DOCUMENTATION[1 + make.number(str(found), 2**96 - 2)]))


RULES: dict[str, Rule] = {
    "email": emails,
    "iban": ibans,
    "credit_card": cards,
    "us_ssn": social_security_numbers,
    "phone": phones,
    "ip_address": ip_addresses,
}
"""In the order in which they are applied: what has more digits first."""
WITHOUT_DIGITS = frozenset({"email"})
"""The kinds that a text without a digit may have."""


def _fictional(number: str, make: Placeholders) -> str:
    """The same layout and country code, with a national number that begins with zeros, which none does."""
    code = re.match(r"\+\d{1,3}(?=[\s().-])|\+1|", number)
    kept = code[0] if code else ""
    return kept + make.digits(number[len(kept) :], "000")


def _is_phone(number: str, region: str | None) -> bool:
    try:
        import phonenumbers
    except ImportError as error:
        raise MissingPackage("redaction of telephone numbers", "server") from error
    try:
        return bool(phonenumbers.is_valid_number(phonenumbers.parse(number, region)))
    except phonenumbers.NumberParseException:
        return False


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return None if address.is_loopback or address.is_unspecified or address.is_multicast else address


def _stdnum(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"stdnum.{name}")
    except ImportError as error:
        raise MissingPackage("redaction of personal data", "server") from error
