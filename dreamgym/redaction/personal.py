"""Finds personal data by its form, each kind with a check that distinguishes it from an ordinary number."""

from __future__ import annotations

import importlib
import ipaddress
import re
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType

from dreamgym.errors import MissingPackage
from dreamgym.redaction.find import Find
from dreamgym.redaction.placeholder import Placeholders

CARD_PREFIX = "40000000"
IBAN_PREFIX = "XX00"

_EMAIL = re.compile(r"(?<![\w.+-])\w[\w.+'-]{0,63}(?:@|%40)(?:\w[\w-]{0,62}\.){1,8}[^\W\d_]{2,24}")
_CARD = re.compile(r"(?<![\w.-])[2-6](?:[ \u00a0-]?\d){12,18}(?![\w-])")
_CARD_LENGTHS = (
    (re.compile(r"4"), {13, 16, 19}),
    (re.compile(r"5[0-8]|222[1-9]|22[3-9]|2[3-6]|27[01]|2720"), {16}),
    (re.compile(r"3[47]"), {15}),
    (re.compile(r"3[0689]"), {14}),
    (re.compile(r"35|6"), {16, 17, 18, 19}),
)
"""First digits and lengths of each network's card numbers (ISO/IEC 7812, as the networks publish them)."""
_IBAN = re.compile(r"(?<![^\W_])[A-Za-z]{2}\d{2}(?:[ -]?[A-Za-z0-9]){11,30}")
_SSN = re.compile(r"(?<![\w-])(?<!\d )\d{3}([- ])\d{2}\1\d{4}(?![\w-])(?! \d)")
_PHONE = re.compile(r"(?<![\w.+])(?:\+|00(?=[1-9]))\d[\d ().-]{6,18}\d(?!\w)")
_US_PHONE = re.compile(r"(?<![\w.+-])(?:1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}(?![\w-])")
_NATIONAL = re.compile(r"(?<![\w.+/-])(?:\(0\d{1,4}\)|0\d{1,4}[ /-])[ ]?\d[\d /-]{4,12}\d(?![\w-])")
_DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{2,4}\b|\d{1,2}/(?:19|20)\d{2}\b")
_REGIONS = ("DE", "GB", "FR", "IT", "NL", "AT", "CH", "AU")
"""Countries whose national phone numbers, which begin with a zero, are found without a country code."""
_IP4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\w)")
_IP6 = re.compile(r"(?<![\w:.])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])", re.IGNORECASE)
DIGIT = re.compile(r"\d")
_VERSION = re.compile(r"(?:version|release|\bv)\W{0,3}$", re.IGNORECASE)
_VERSION_CHARACTERS = 10
"""Most characters of a match of _VERSION."""
_BENCHMARKING = ipaddress.ip_network("198.18.0.0/15")
_DOCUMENTATION = ipaddress.ip_network("2001:db8::/32")


Rule = Callable[[str, Placeholders], Iterator[Find]]


def emails(text: str, make: Placeholders) -> Iterator[Find]:
    """Find email addresses, in every script."""
    if "@" in text or "%40" in text:
        for match in _EMAIL.finditer(text):
            yield Find(*match.span(), "email", make.email(match[0]))


def cards(text: str, make: Placeholders) -> Iterator[Find]:
    """Find card numbers by network and Luhn check. The placeholder is of a test range and passes the check too."""
    luhn = _stdnum("luhn")
    for match in _CARD.finditer(text):
        digits = "".join(filter(str.isdigit, match[0]))
        is_one = any(begin.match(digits) and len(digits) in lengths for begin, lengths in _CARD_LENGTHS)
        if is_one and not digits.startswith(CARD_PREFIX) and luhn.is_valid(digits):
            body = make.digits(match[0], CARD_PREFIX)
            last = luhn.calc_check_digit("".join(filter(str.isdigit, body))[:-1])
            yield Find(*match.span(), "credit_card", body[:-1] + last)


def ibans(text: str, make: Placeholders) -> Iterator[Find]:
    """Find international bank account numbers by their check digits. The placeholder belongs to no country."""
    for match in _IBAN.finditer(text):
        length = _iban_length(match[0][:2].upper())
        place = [at for at, letter in enumerate(match[0]) if letter.isalnum()][:length]
        end = match.start() + place[-1] + 1
        found = text[match.start() : end]
        if (
            len(place) == length
            and not text[end : end + 1].isalnum()
            and _stdnum("iban").is_valid(found.replace("-", ""))
        ):
            yield Find(match.start(), end, "iban", make.capitals(found, IBAN_PREFIX))


def social_security_numbers(text: str, make: Placeholders) -> Iterator[Find]:
    """Find US social security numbers with hyphens or blanks. The placeholder has area 000, which is never assigned."""
    for match in _SSN.finditer(text):
        if _stdnum("us.ssn").is_valid(match[0].replace(" ", "-")):
            yield Find(*match.span(), "us_ssn", make.digits(match[0], "000"))


def phones(text: str, make: Placeholders) -> Iterator[Find]:
    """Find phone numbers with a country code, and national ones in a phone number's layout; not ids that are digits."""
    for pattern, regions in ((_PHONE, (None,)), (_US_PHONE, ("US",)), (_NATIONAL, _REGIONS)):
        for match in pattern.finditer(text):
            number = f"+{match[0][2:]}" if pattern is _PHONE and match[0].startswith("00") else match[0]
            is_date = pattern is _NATIONAL and (_DATE.match(match[0]) or sum(map(str.isdigit, number)) < 9)
            if not is_date and any(_is_phone(number, region) for region in regions):
                yield Find(*match.span(), "phone", _fictional(match[0], make))


def ip_addresses(text: str, make: Placeholders) -> Iterator[Find]:
    """Find IP addresses of other machines. The placeholder is of the ranges for benchmarks and documentation."""
    if text.count(".") >= 3:
        for match in _IP4.finditer(text):
            found, start = _address(match[0]), match.start()
            is_version = _VERSION.search(text, max(0, start - _VERSION_CHARACTERS), start)
            if found and found not in _BENCHMARKING and not is_version:
                yield Find(*match.span(), "ip_address", str(_BENCHMARKING[1 + make.number(str(found), 2**17 - 2)]))
    if text.count(":") >= 2:
        for match in _IP6.finditer(text):
            found = _address(match[0]) if DIGIT.search(match[0]) else None  # abc::def is a name in many languages
            if found and found not in _DOCUMENTATION:
                yield Find(*match.span(), "ip_address", str(_DOCUMENTATION[1 + make.number(str(found), 2**96 - 2)]))


RULES: dict[str, Rule] = {
    "email": emails,
    "iban": ibans,
    "credit_card": cards,
    "us_ssn": social_security_numbers,
    "phone": phones,
    "ip_address": ip_addresses,
}


def _fictional(number: str, make: Placeholders) -> str:
    """A phone number in the original layout with its country code; the rest begins with zeros, as in no real number."""
    code = re.match(r"(?:\+|00)\d{1,3}(?=[\s().-])|\+1|1(?=[ .-])|", number)
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


@cache
def _iban_length(country: str) -> int | None:
    """Length of an IBAN of this country, by the registry in `stdnum`; None for an unknown country."""
    _, facts = _stdnum("numdb").get("iban").info(country)[0]
    return 4 + sum(map(int, re.findall(r"\d+", facts["bban"]))) if "bban" in facts else None


def _stdnum(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"stdnum.{name}")
    except ImportError as error:
        raise MissingPackage("redaction of personal data", "server") from error
