"""Redaction reads text of strangers, so twice the text takes twice the time, for every text."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable

import pytest
from growth import grows_linearly

from dreamgym.redaction import RedactionRules, Redactor, encodings, forms, pairs, personal, tables
from dreamgym.redaction.names import is_secret_name
from dreamgym.redaction.placeholder import Placeholders

VALUES = ("the key is a&", "password=a,", "password=(", "password='a", 'password: "', "password=a)&", "?pw=a;")
"""Values that several rules could end, repeated without a blank between them."""
PIECES = (
    *VALUES,
    *(
        "a",
        "A",
        "1.1.1.1 ",
        "0",
        "4",
        "/",
        "-",
        "_",
        ".",
        ":",
        "=",
        "@",
        "+",
        "%",
        "&",
        "<",
        "\\",
        '"',
        "[",
        "{",
        "|",
        ",",
        " ",
        "é",
    ),
    *("a.", "a@", "a@a.", "@a", "a:", "a=", "a=b ", "password", "password=", "password: ", "--key ", "<a>", "1.", "4 "),
    *(
        "+1 ",
        "DE89",
        "00-",
        "sk-",
        "://",
        "a://b:",
        "cookie: a=",
        "-----BEGIN PRIVATE KEY-----",
        "_authToken",
        "\\u0061",
    ),
    *(
        "&#64;",
        "%40",
        "a,password\n",
        "|password|\n",
        "VALUES (",
        "eyJa.",
        "QUFB",
        "4142",
        "\u200b",
        "xoxb-1",
        "bearer ",
        "%25",
        "0x41",
        "abcdefghijklmnop/",
        "authorization: a ",
        '<a name="',
        "<a><![CDATA[",
        "<a><![CDATA[<",
        "<password><![CDATA[a]]> ",
        "REDACTED-",
        "<a value='b' ",
        'a,password\n"\n',
        "password:\n a1\n",
        "name: password\nvalue: a1\n",
        "['password'] = 'a1",
        "(a, password) values (b('c'), (",
    ),
)
"""Pieces that a long text may repeat."""
MAKE = Placeholders(b"k" * 32)


def found(rule: Callable[..., Iterable[object]], *more: Placeholders) -> Callable[[str], object]:
    """A function that returns everything that the rule finds in a text."""
    return lambda text: list(rule(text, *more))


def repeated(piece: str, end: str = "") -> Callable[[int], str]:
    """A function that repeats the piece up to about a given number of characters."""
    return lambda size: piece * (size // len(piece)) + end


EACH: dict[str, Callable[[str], object]] = {
    **{
        rule.__name__: found(rule)
        for rule in (
            forms.prefixed,
            forms.web_tokens,
            pairs.beside,
            pairs.named,
            pairs.said,
            pairs.private_keys,
            tables.columns,
        )
    },
    "cookies": pairs.cookies_in,
    "own names": found(pairs.behind({"a", "password"})),
    "columns of own names": found(tables.under({"a", "password"})),
    **{kind: found(rule, MAKE) for kind, rule in personal.RULES.items()},
    "escapes": encodings.Unescaped,
    "blobs": lambda text: encodings.redact_blobs(text, str),
}
"""Each rule, applied to the whole text at once; a redactor gives it the text in parts."""


@pytest.mark.parametrize("name", EACH)
def test_each_rule_alone_takes_time_in_proportion_to_the_text(name: str) -> None:
    slow = [
        piece
        for piece in (
            "a",
            "0",
            "/",
            "=",
            '"',
            "<a>",
            "<a><![CDATA[",
            "<a><![CDATA[<",
            "a.",
            "a@",
            "a:",
            ":",
            "4 ",
            "password=",
            "|password|\n",
            "('a'),",
            *VALUES,
        )
        if not grows_linearly(EACH[name], repeated(piece, ' @ password="'))
    ]
    assert slow == []


def test_a_name_with_many_digits_is_read_once() -> None:
    assert not is_secret_name("token" + "1" * 100 + "x")
    assert not is_secret_name("token" + "base64" * 18 + "x")
    assert is_secret_name("token" + "1" * 100)
    assert is_secret_name("db_pass_production_base64")


def test_an_address_in_a_long_text_is_found_in_time_that_grows_with_the_text() -> None:
    assert grows_linearly(EACH["email"], lambda size: "a" * size + " @")


@pytest.mark.parametrize("piece", PIECES)
def test_the_time_grows_with_the_length_of_the_text(piece: str) -> None:
    redactor = Redactor(RedactionRules(), key=b"k" * 32)
    assert grows_linearly(redactor.text, lambda size: piece * (size // len(piece)))


def test_the_time_grows_with_the_length_of_the_cookies() -> None:
    redactor = Redactor(RedactionRules(), key=b"k" * 32)
    assert grows_linearly(EACH["beside"], lambda size: "cookie: a=b; " + ":" * size)
    assert grows_linearly(lambda cookies: redactor.value({"cookie": cookies}), lambda size: ":" * size)


@pytest.mark.parametrize("end", ["", "\nQUFB", " é"])
def test_the_time_grows_with_the_length_of_base64_inside_base64(end: str) -> None:
    def nested(size: int) -> str:
        text = "nothing to see here"
        while len(text) < size:
            whole = text.encode()
            text = base64.b64encode(whole + b" " * (-len(whole) % 3)).decode() + end
        return text

    redactor = Redactor(RedactionRules(), key=b"k" * 32)
    assert grows_linearly(redactor.text, nested)


def test_a_pattern_of_the_user_takes_linear_time_too() -> None:
    redactor = Redactor(RedactionRules(patterns={"badge": "(a+)+(a|aa)+b"}), key=b"k" * 32)
    assert grows_linearly(redactor.text, lambda size: "a" * size)


def test_with_many_known_values_the_time_still_grows_with_the_length_of_the_text() -> None:
    redactor = Redactor(RedactionRules(), key=b"k" * 32, known={f"v4lue-{n}": "token" for n in range(2000)})
    assert grows_linearly(redactor.text, lambda size: "v4lue-" * (size // 6))


@pytest.mark.parametrize("end", [" @", " %40", "@a.io", " _authToken", ' password="', " BEGIN PRIVATE KEY", " ://"])
@pytest.mark.parametrize("piece", ["a", "/", "a.", "0", "a-", "\\"])
def test_the_time_grows_with_the_length_for_every_end_of_the_text(piece: str, end: str) -> None:
    redactor = Redactor(RedactionRules(), key=b"k" * 32)
    assert grows_linearly(redactor.text, lambda size: piece * (size // len(piece)) + end)
