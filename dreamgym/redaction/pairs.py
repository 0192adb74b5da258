"""Finds secrets by the text beside them: the name of a secret, an option, a scheme, an address.

Each rule reads a text once, from start to end. A value that it has taken or examined is not read again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

from dreamgym.redaction.find import Find
from dreamgym.redaction.linear import compiled
from dreamgym.redaction.names import (
    has_letter_and_digit,
    holds_secret,
    looks_made_up,
    may_be_secret_name,
    stands_for_one,
)

_SCHEME = r"(?:(?:bearer|basic|token|apikey|digest)\s{1,4})?"


_QUOTED = re.compile(
    rf"""(?i)"{_SCHEME}(?P<a>[^"\n]{{1,4096}}(?:"(?=\w)[^"\n]{{1,256}}){{0,2}})"(?!\w)"""
    rf"""|'{_SCHEME}(?P<b>[^'\n]{{1,4096}}(?:'(?=\w)[^'\n]{{1,256}}){{0,2}})'(?!\w)|`(?P<c>[^`\n]{{1,4096}})`"""
    r"""|[“„«‹‘‚](?P<d>[^“”„«»‹›‘’‚\n]{1,4096})[”“»›’](?!\w)"""
)
"""A value in quotes. A quote before a letter or digit is part of the value, because escapes were decoded."""
_BEGIN = re.compile(r"""(?i)(?P<quote>["'`]?)(?:(?:bearer|basic|token|apikey|digest)\s{1,4}(?=\S{4}))?""")
_SPECIAL = r"""\s"'`\\,;&<>(){}\[\]|"""
_STRUCTURE = r"""["'`]\s{0,2}[,:}\])]|<(?:/[a-z]|!--|[a-z]{1,10}(?:[\s/][^<>]{0,80})?>)|\\["'`\\nrt]|\|(?!\w)"""
"""End of a quoted text in JSON or code, tag, escape, or end of a cell: they end every value without quotes."""
_NEXT = r"""[\s{\[("']{0,4}\w[\w.\[\]-]{0,40}["']?\s{0,2}[=:]"""
"""The next name and its sign."""
_IS, _COLON, _EQUALS, _OPTION_OF = "is", ": ", "=", "--"
"""Kinds of values: `the password is X`, `password: X` or `?password=X`, `password=X`, `--password X`."""
_ENDS = {
    _IS: "",
    _COLON: f"|`|[,;&]{_NEXT}",
    _EQUALS: f"|[;`]|[,&]{_NEXT}",
    _OPTION_OF: f"|[{_SPECIAL}]",
}
_CODE = r"[a-z_.]+(?=[(\[{])|[a-z]{1,2}(?=[\"'])|"
"""A name that is called or has an index, or the prefix of a text in Python."""
_CLOSING = {")": "(", "]": "[", "}": "{", ">": "<"}
_OPENING = {opening: one for one, opening in _CLOSING.items()}
_BRACKET = re.compile(r"[()\[\]{}<>]")
_QUOTE = re.compile(r"(?<!\w)'|'(?!\w)")
"""A quote that is not an apostrophe."""
_AFTER = ".:!?,;|…\"'`”“»›’"
"""Punctuation that may follow a value."""
_LOOK_BACK = 256
"""Characters before a value in which quotes and brackets are opened that end it."""


@cache
def _bare(kind: str, closing: str) -> re.Pattern[str]:
    """Pattern of a value without quotes of a kind, which also ends at the characters of `closing`."""
    ends = f"{_STRUCTURE}{_ENDS[kind]}" + (f"|[{re.escape(closing)}]" if closing else "")
    first, call = (r"[^\s\"'`]", "") if kind == _IS else (f"[^{_SPECIAL}]", _CODE)
    return re.compile(rf"(?i){call}(?={first})(?:[^{_SPECIAL}]++|(?!{ends})\S)*+")


def _closing(text: str, at: int, quote: str) -> str:
    """The quotes and brackets that close what is open at a position, and the quote with which the value begins."""
    before = text[max(0, at - _LOOK_BACK) : at]
    closing, closed = [], Counter[str]()
    for bracket in reversed(_BRACKET.findall(before)):
        if bracket in _CLOSING:
            closed[bracket] += 1
        elif closed[_OPENING[bracket]]:
            closed[_OPENING[bracket]] -= 1
        else:
            closing.append(_OPENING[bracket])
    closing += [one for one in '"`' if before.count(one) % 2 or one == quote]
    closing += ["'"] if sum(1 for _ in _QUOTE.finditer(before)) % 2 or quote == "'" else []
    return "".join(sorted({*closing}))


class _Value(NamedTuple):
    """A value behind a name, from `start` to `end`."""

    start: int
    end: int
    is_quoted: bool
    read: int
    """Where the examined text ends; at least `end`."""


def _value(text: str, at: int, kind: str, shortest: int = 4) -> _Value | None:
    """The value that begins at a position, without the punctuation after it."""
    prefix = _PREFIX.match(text, at)
    quoted = _QUOTED.match(text, at if prefix is None else prefix.end())
    if quoted is not None:
        return _Value(*quoted.span(str(quoted.lastgroup)), is_quoted=True, read=quoted.end())
    begin = _BEGIN.match(text, at)
    assert begin is not None, "it may be empty"
    bare = _bare(kind, _closing(text, at, begin["quote"])).match(text, begin.end())
    if bare is None or bare.end() - bare.start() < shortest:
        return None
    start, end = bare.start(), _end_of_value(bare[0]) + bare.start()
    if kind == _IS and text[start : start + 1] + text[end - 1 : end] in ("()", "[]", "{}"):
        start, end = start + 1, end - 1
    return _Value(start, end, is_quoted=False, read=bare.end())


def _end_of_value(value: str) -> int:
    """Length of a value without the punctuation of a sentence and without brackets that were opened before it."""
    end, excess = len(value), {one: value.count(one) - value.count(opening) for one, opening in _CLOSING.items()}
    while end and (value[end - 1] in _AFTER or excess.get(value[end - 1], 0) > 0):
        end -= 1
        if value[end] in excess:
            excess[value[end]] -= 1
    return end


def _pair(name: str) -> re.Pattern[str]:
    equals = r"[\"'`*_]{0,3}(?:(?<=[\"'`])\])?[ \t]{0,4}(?:=>|:=|==|=|:)[*_]{0,3}[ \t]{0,4}"
    return re.compile(rf"(?i)(?<![\w-])(?P<name>{name}){equals}")


def _option(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?i)(?<![\w-])--?(?P<name>{name})(?:=|[ \t]{{1,4}})(?!-)")


def _element(name: str) -> re.Pattern[str]:
    """Pattern of an element and its text. It ends before the next `<` or CDATA, where another element may begin."""
    cdata = r"<!\[CDATA\[(?P<cdata>(?:[^<\]]|<(?!!\[CDATA\[)|\](?!\]>)){1,4096}+)\]\]>"
    text = r"(?:<!\[CDATA\[)?(?P<value>[^<>]{1,4096})(?=<)"
    return re.compile(rf"(?i)<(?P<name>{name})(?:\s[^<>]{{0,256}})?>\s{{0,16}}(?:(?={cdata})|{text})")


_TAG = re.compile(r"<[A-Za-z][\w:-]{0,40}\s[^<>]{1,4096}>")
_ATTRIBUTE = re.compile(
    r"""(?i)\s(?P<name>name|key|property|type|value|content)\s{0,2}=\s{0,2}(?:"(?P<a>[^"]*+)"|'(?P<b>[^']*+)')"""
)
_NAME = _pair(r"[a-z_][\w.-]{0,60}?")
_NEXT_LINE = re.compile(
    r"""(?im)^[ \t]{0,40}[{,]?[ \t]{0,4}(?:-[ \t]{1,4})?["'`]?(?P<name>[a-z_][\w.-]{0,60}?)["'`]?:[ \t]{0,4}"""
    r"""(?:[|>][+-]?[ \t]{0,4})?\r?\n[ \t]{0,40}(?:-[ \t]{1,4})?(?![\w.-]{1,60}["']?\s{0,2}[:=])"""
)
"""A name at the beginning of a line, and its value on the next, as in YAML; a name there begins another entry."""
_LINE_END = re.compile(r"""["'`]?,?[ \t]{0,40}(?:[\r\n}]|\Z)""")
_LISTS = frozenset({"secrets", "credentials", "cookies"})
"""Names of lists of names: `secrets:` in a compose file lists those that a service may read."""
_ENTRY = re.compile(
    r"""(?i)\b(?:name|key)["']?[ \t]{0,4}[:=][ \t]{0,4}["']?(?P<name>[a-z_][\w.-]{0,60})["']?[ \t]{0,4},?\r?\n"""
    r"""[ \t]{0,40}["']?value["']?[ \t]{0,4}[:=][ \t]{0,4}"""
)
"""The name and the value of a variable on two lines, as in the manifests of Kubernetes."""
_PREFIX = re.compile(r"(?i)[bruf]{1,2}(?=[\"'])")
"""The prefix of a text in Python."""
_OPTION = _option(r"[a-z][\w-]{1,60}")
_ELEMENT = _element(r"[a-z_][\w:.-]{0,60}")
_WORD_BEFORE = re.compile(r"(?i)[a-z]{2,16}(?=[ \t]\Z)")
_SAID = re.compile(
    r"(?i)\b(?P<name>(?:(?:api|access|auth|secret|private|license|security|recovery|login|session|bearer|admin|root|user)"
    r"[ \t](?:code|key|token|pin|password|secret))"
    r"|password|passphrase|passcode|pass[ \t]phrase|secret|token|key|pin|pwd)"
    r"(?:[ \t](?:for|of|to|on)[ \t][\w.@-]{1,40})?[ \t](?:is|was|are|to|will[ \t]be)"
    r"(?:[ \t](?:now|set[ \t]to))?:?[ \t]{1,4}"
)
_MEASURE = re.compile(r"(?i)\d+[-_ ]?(?:bit|byte|char|digit|day|hour|min|sec|time|x|%|st|nd|rd|th)")
_WRITTEN = re.compile(r"(?=.*\d)(?=.*[A-Za-z]).{6,}|(?=.*[!@#$%^*+=]).{6,}")
_USERINFO = re.compile(r"(?i)\b[a-z][a-z0-9+.-]{0,30}://(?P<user>[^\s:/@\"'<>]{0,128}):(?P<value>[^\s/\"'<>]{1,256})@")
_TOKEN_AS_USER = re.compile(r"(?i)\bhttps?://(?P<value>[\w.~-]{16,256})@")
_AUTHORIZATION = re.compile(r"(?i)\b(?:bearer|basic)\s{1,4}(?P<value>[\w.~+/=-]{12,}+)")
_OTHER_SCHEME = re.compile(
    r"(?i)\bauthorization:\s{0,4}[a-z][\w-]{1,30}[ \t]{1,4}(?P<value>(?=[^\s\d]{0,256}\d)[\w.~+/=-]{8,}+)"
)
_COOKIES = re.compile(r"(?i)\b(?:set-)?cookie:\s{0,4}(?P<value>[\w.-]{1,64}=[^\r\n\"']+)")
_COOKIE = re.compile(r"(?i)(?<![^\s;:])(?!(?:path|domain|expires|max-age|samesite)=)[^\s=;:]++=(?P<value>[^;\s]{3,})")
"""A cookie in a header; what follows it in `Set-Cookie` are its attributes."""
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]{0,60}-----|\Z)", re.DOTALL
)
_CURL = re.compile(r"(?:^|\s)(?:-u|--user|--proxy-user)(?:[ =]{1,4})[\"']?[^\s:\"']{1,128}:(?P<value>[^\s\"']{1,256})")
_MYSQL = re.compile(r"\bmysql\w{0,10}\s[^\n]{0,200}?\s-p(?P<value>[^\s-][^\s]{3,128})")
_NETRC = re.compile(
    r"\blogin\s{1,8}\S{1,128}\s{1,8}(?:account\s{1,8}\S{1,128}\s{1,8})?password\s{1,8}(?P<value>\S{1,256})"
)
_PGPASS = re.compile(r"(?m)^[\w.*/-]{1,255}:(?:\d{1,5}|\*):[\w*.-]{1,64}:[A-Za-z_*][\w.@-]{0,63}:(?P<value>\S{1,256})$")
_BY_SQL = re.compile(r"(?i)\b(?:identified\s{1,4}by|password|pwd)\s{1,4}'(?P<value>[^'\n]{1,256})'")
_BY_PATTERN = (
    ("password", _USERINFO, False),
    ("token", _TOKEN_AS_USER, True),
    ("authorization", _AUTHORIZATION, False),
    ("authorization", _OTHER_SCHEME, False),
    ("password", _CURL, True),
    ("password", _MYSQL, False),
    ("password", _NETRC, False),
    ("password", _PGPASS, True),
    ("password", _BY_SQL, False),
)
"""(name, pattern, True if the value must look made up) of each rule."""


def may_tell(text: str) -> bool:
    """False if the text contains no name, scheme or line that the rules here need; then none of them finds anything."""
    return bool(_telling().search(text))


@cache
def _telling() -> Any:
    return compiled(
        r"(?i)pass|pw|secret|token|key|auth|cookie|cred|cv[vc]|otp|[cx]srf|dsn|jwt|bearer|basic|mnemonic|code|phrase|sess|sid"
        r"|conn|ur[li]|pin|pat|licen|sig|://|--user|-u|identified|mysql|:[0-9*]{1,5}:"
    )


def private_keys(text: str) -> Iterator[Find]:
    """Find keys in PEM or PGP armour, from their first line to their last."""
    if "PRIVATE KEY" in text:
        for match in _PRIVATE_KEY.finditer(text):
            yield Find(*match.span(), "private_key")


def beside(text: str) -> Iterator[Find]:
    """Find secrets in authorization schemes, URLs, and lines of well-known files and commands."""
    for name, pattern, made_up in _BY_PATTERN:
        for match in pattern.finditer(text):
            if not made_up or (looks_made_up(match["value"]) and not match["value"].isdigit()):
                yield Find(*match.span("value"), name, is_told=True)
    for match in _COOKIES.finditer(text):
        for cookie in _COOKIE.finditer(text, *match.span("value")):
            yield Find(*cookie.span("value"), "cookie", is_told=True)


def cookies_in(header: str) -> list[str]:
    """The values of the cookies in a header, without the attributes of the cookies."""
    return [cookie["value"] for cookie in _COOKIE.finditer(header)]


def named(text: str) -> Iterator[Find]:
    """Find values behind the name of a secret: `name: value`, `NAME=value`, `--name value`, `<name>value</name>`.

    An element may also name a secret in an attribute: `<input name="csrf_token" value="x">`.
    """
    yield from _values_behind(_NAME, text)
    yield from _values_behind(_ENTRY, text)
    for find in _values_behind(_NEXT_LINE, text):
        value = text[find.start : find.end]
        is_alone = _LINE_END.match(text, find.end) is not None and "(" not in value
        if is_alone and has_letter_and_digit(value) and find.name.lower() not in _LISTS:  # else the next sentence
            yield find
    yield from _values_behind(_OPTION, text)
    yield from _contents(_ELEMENT, text)
    for tag in _TAG.finditer(text):
        yield from _attributes(text, *tag.span())


def behind(names: Iterable[str]) -> Callable[[str], Iterator[Find]]:
    """Make a rule that finds values where `named` does, but behind these names, which are not those of secrets.

    A plain word without quotes may be part of a sentence and stays.
    """
    one = f"(?:{'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})"
    pair, option, element = _pair(one), _option(one), _element(rf"(?:[\w.-]{{1,60}}:)?{one}")

    def rule(text: str) -> Iterator[Find]:
        yield from _values_behind(pair, text, is_own=True)
        yield from _values_behind(option, text, is_own=True)
        yield from _contents(element, text, is_own=True)

    return rule


def _values_behind(pattern: re.Pattern[str], text: str, *, is_own: bool = False) -> Iterator[Find]:
    done = 0
    for match in pattern.finditer(text):
        if match.start() < done:
            continue
        before = _WORD_BEFORE.search(text, max(0, match.start() - 17), match.start())
        names = [match["name"], *([f"{before[0]}_{match['name']}"] if before else [])]
        if not is_own and not any(map(may_be_secret_name, names)):
            continue
        found = _value(text, match.end(), _kind(match), shortest=1 if is_own else 4)
        if found is None:
            continue
        done = found.read
        value = text[found.start : found.end]
        is_plain = found.is_quoted or match[0].startswith("-")
        name = next((name for name in names if _is_taken(name, value, is_plain, is_own)), None)
        if name is not None:
            yield Find(found.start, found.end, name, is_told=True)


def _kind(match: re.Match[str]) -> str:
    """The kind of the value behind a name."""
    if match[0].startswith("-"):
        return _OPTION_OF
    sign = match[0][match.end("name") - match.start() :]
    if "=" not in sign and sign[-1] in " \t\n":
        return _COLON
    # in a URL, "&" and ";" may be part of the value, because escapes such as %26 were decoded
    is_query = match.string[match.start() - 1 : match.start()] in ("?", "&")
    return _COLON if is_query else _EQUALS


def _contents(element: re.Pattern[str], text: str, *, is_own: bool = False) -> Iterator[Find]:
    for match in element.finditer(text):
        group = "value" if match["cdata"] is None else "cdata"
        name, value = match["name"].rpartition(":")[2], match[group].strip()
        if value and (is_own or (holds_secret(name, value) and not stands_for_one(value))):
            start = match.start(group) + match[group].index(value)
            yield Find(start, start + len(value), match["name"], is_told=True)


def _attributes(text: str, start: int, end: int) -> Iterator[Find]:
    """Find the value of an element whose attributes name a secret. A word stays, as it may be that of a button."""
    spans = {match["name"].lower(): match.span(str(match.lastgroup)) for match in _ATTRIBUTE.finditer(text, start, end)}
    named = [text[slice(*spans[one])] for one in ("name", "key", "property", "type") if one in spans]
    for one in ("value", "content"):
        value = text[slice(*spans[one])] if one in spans else ""
        name = next((name for name in named if value and holds_secret(name, value)), None)
        if name is not None and (looks_made_up(value) or "password" in named) and not stands_for_one(value):
            yield Find(*spans[one], name, is_told=True)


def _is_taken(name: str, value: str, is_plain: bool, is_own: bool) -> bool:
    """True if the value is removed. Plain words behind a secret's name, unquoted, are part of a sentence and stay."""
    if is_own:
        return bool(value) and (is_plain or (any(map(str.isalnum, value)) and not value.isalpha()))
    if not holds_secret(name, value) or stands_for_one(value):
        return False
    return looks_made_up(value) or (is_plain and " " not in value)


def said(text: str) -> Iterator[Find]:
    """Find secrets in sentences such as `the password is X`."""
    for match in _SAID.finditer(text):
        found = _value(text, match.end(), _IS)
        if found is None:
            continue
        value = text[found.start : found.end]
        is_code = match["name"].lower().endswith(("pin", "code")) and value.isdigit() and 4 <= len(value) <= 8
        written = _WRITTEN.fullmatch(value) and not _MEASURE.match(value) and not stands_for_one(value)
        if is_code or written or (found.is_quoted and " " not in value):
            yield Find(found.start, found.end, match["name"], is_told=True)
