"""Every form of secrets and personal data that the README promises is found, and other text stays unchanged."""

from __future__ import annotations

import base64
import json
import random
import runpy
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

from dreamgym.redaction import RedactionRules, Redactor

BENCHMARK = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "redaction.py"))
PROMISED = [name for name in BENCHMARK["CLASSES"] if not name.startswith(("held out", "no form"))]


def redactor(**options: Any) -> Redactor:
    return Redactor(RedactionRules(), key=b"k" * 32, **options)


@pytest.mark.parametrize("name", PROMISED)
def test_everything_of_a_promised_class_is_found(name: str) -> None:
    planted = list(BENCHMARK["CLASSES"][name]())
    assert [form for value, form in planted if BENCHMARK["survives"](value, form)] == []


SAID = "hunTer-3z9QX"
ENCODED = base64.urlsafe_b64encode(f"password={SAID} ".encode()).decode()


@pytest.mark.parametrize(
    "text",
    [
        f" user | password \n------+----------\n bob  | {SAID}\n(1 row)\n",
        f"+------+----------+\n| user | password |\n+------+----------+\n| bob  | {SAID} |\n+------+----------+\n",
        f'user,note,password\nann,"first\nsecond",abc123def\nbob,none,{SAID}\n',
        f"INSERT INTO users (created, name, password) VALUES (now(), lower('Bob'), '{SAID}')",
        f"password:\u00a0{SAID}",
        f"password&nbsp;=&nbsp;{SAID}",
        f"password\u200e: {SAID}",
        f"next=https%253A%252F%252Fbob%253A{SAID}%2540db%252F",
        'cut off: {\\\\\\"password\\\\\\": \\\\\\"' + SAID + '\\\\\\"',
        f"authorization: SSWS {SAID}",
        f'<meta name="csrf-token" content="{SAID}">',
        f'<input value=\'{SAID}\' type="hidden" name="authenticity_token">',
        f'<add key="ApiKey" value="{SAID}"/>',
        f"<user>\n  <password>{SAID}</password>\n</user>",
        f"<password><![CDATA[{SAID}]]></password>",
        f"<password><![CDATA[a1<{SAID}]]></password>",
        f"<password><![CDATA[a1b2&c3>{SAID}]]></password>",
        f"<user><![CDATA[<name>bob</name> <password>{SAID}</password>]]></user>",
        f"<apiKey type='x'> <![CDATA[ {SAID} ]]> </apiKey>",
        f"https://example.org/open/{ENCODED}",
        "0x" + f"password={SAID}".encode().hex(),
        "\\x" + f"password={SAID}".encode().hex(),
        f"env:\n- name: DB_PASSWORD\n  value: {SAID}\n- name: MODE\n  value: fast\n",
        f'Name: "DB_PASSWORD"\nValue: "{SAID}"',
        f"password: |\n  {SAID}\nuser: bob",
        f"password:\r\n  {SAID}",
        f'"password":\n"{SAID}"',
        f"passwords:\n  - {SAID}\n",
        f"os.environ['API_KEY'] = '{SAID}'",
        f'config["password"] = "{SAID}"',
        f"connect(user='bob', password=b'{SAID}')",
    ],
)
def test_a_secret_is_found_in_the_words_of_tools_and_pages(text: str) -> None:
    redacted = redactor().text(text)
    assert not [form for form in (SAID, ENCODED, SAID.encode().hex()) if form in redacted]
    assert redactor().text(redacted) == redacted


@pytest.mark.parametrize(
    "text",
    [
        '<input type="submit" name="change_password" value="Change">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<input name="token" value="${TOKEN}">',
        "authorization: required since version-2.0",
        "1\u202f000\u00a0km, 100%25, C:\\\\, a\u200eb",
        "0x" + b"nothing to see here.".hex(),
        "https://example.org/guides/getting-started/with/python",
        "a | b\n---+---\n1 | 2\n",
        "token:\n  expires_in: 3600\n  type: bearer\n",
        "counts[token] = counts.get(token, 0) + 1",
        "if d[token] == other1:",
        "[token]: https://docs.example.com/tokens1",
        "if not token:\n    oauth2.verify(jwt)",
        "Get an API key:\nStep1 open the page",
        "services:\n  secrets:\n    - db_root_v2\n",
        "secrets:\n- name: db1\n  kind: opaque2\n",
        "password:\n  Enter it below.",
        "- name: MODE\n  value: fast2go\n",
    ],
)
def test_what_only_looks_like_a_secret_of_a_page_stays(text: str) -> None:
    assert redactor().text(text) == text


def test_a_text_in_utf_16_with_its_byte_order_mark_is_read_in_base64() -> None:
    said = base64.b64encode("to anna.berg@example.com".encode("utf-16")).decode()
    redacted = redactor().value({"file": said})
    assert isinstance(redacted, dict)
    assert "anna.berg" not in base64.b64decode(str(redacted["file"])).decode("utf-16")


def test_a_secret_found_by_its_name_is_also_removed_before_and_after_it_in_the_same_value() -> None:
    said = redactor().value([{"note": "he typed hunter42x"}, {"password": "hunter42x"}, ["then hunter42x again"]])
    assert "hunter42x" not in json.dumps(said)


HASH = "3f786850e387550fdab836ed7e6dc881de23001b"


@pytest.mark.parametrize(
    ("found", "secret"),
    [
        ("Authorization: Bearer q1w2e3r4t5y6u7", "q1w2e3r4t5y6u7"),
        ("authorization: SSWS q1w2e3r4t5y6u7", "q1w2e3r4t5y6u7"),
        ("https://q1w2e3r4t5y6u7i8o9p0@host/x", "q1w2e3r4t5y6u7i8o9p0"),
        (f"datadog_app: {HASH}", HASH),
        ("Cookie: theme=dark; sid=abcdef123456", "abcdef123456"),
        ("Set-Cookie: sid=abcdef123456; Path=/; Domain=api2.example.com", "abcdef123456"),
        ({"set-cookie": "sid=abcdef123456; Path=/; Domain=api2.example.com"}, "abcdef123456"),
    ],
)
def test_a_secret_found_by_what_is_beside_it_is_removed_everywhere_in_the_same_value(
    found: JsonValue, secret: str
) -> None:
    said = redactor().value([f"first {secret}", found, {"note": f"{secret} at api2.example.com"}])
    assert isinstance(said, list)
    assert secret not in json.dumps(said)
    assert said[2] == {"note": f"{str(said[0]).removeprefix('first ')} at api2.example.com"}
    assert redactor().value(said) == said


@pytest.mark.parametrize(
    "found",
    ["Cookie: theme=lightest", "Cookie: lang=en-1", "Authorization: Bearer authentication", "ftp://bob:secret@host"],
)
def test_words_and_short_values_beside_a_scheme_or_in_a_cookie_stay_elsewhere(found: str) -> None:
    words = "the lightest theme, en-1, authentication, secret"
    said = redactor(remembers=True).value([found, words])
    assert isinstance(said, list)
    assert said[1] == words


def test_only_a_redactor_that_remembers_removes_a_secret_from_later_values() -> None:
    for remembers in (True, False):
        one = redactor(remembers=remembers)
        one.value({"password": "hunter42x"})
        assert ("hunter42x" in str(one.value("he typed hunter42x"))) is not remembers


def test_a_secret_has_one_placeholder_under_all_names() -> None:
    said = redactor().value([{"token": "abc123def4"}, {"auth_token": "abc123def4"}, '{"session_token": "abc123def4"}'])
    assert isinstance(said, list)
    first, second, text = said
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert first["token"] == second["auth_token"] == json.loads(str(text))["session_token"]


def test_a_picture_stays_as_it_is() -> None:
    one = redactor()
    damaged = [
        number
        for number in range(4)
        if (picture := base64.b64encode(random.Random(number).randbytes(300_000)).decode()) != one.text(picture)
    ]
    assert damaged == []


@pytest.mark.parametrize("value", ["expired", "none", "12", "changed yesterday"])
def test_words_and_short_numbers_are_not_removed_elsewhere(value: str) -> None:
    said = redactor(remembers=True).value([{"token": value}, f"the state is {value} now"])
    assert isinstance(said, list)
    assert said[1] == f"the state is {value} now"


@pytest.mark.parametrize(
    "value",
    [
        {"key": "PROJ-1234"},
        {"key": "page.title"},
        {"pass": 12, "fail": 3},
        {"auth": "required"},
        {"session": "afternoon"},
        {"pin": True},
        {"token_count": 512, "max_tokens": 4096, "token_type": "bearer"},
        {"name": "password", "description": "The user's password.", "type": "string"},
        {"columns": ["id", "city"], "rows": [[1, "Rome"]]},
        ["password", "email", "name"],
        ["--verbose", "--out", "folder1"],
        "password: $DB_PASSWORD, token=${TOKEN}, secret: <your secret>, api_key: ****",
        "The password is required. The key is 256-bit. The token is valid for 15 minutes.",
        "my zip code is 19122 and the code is 12345",
        "id,name,city\n1,ada,Rome\n",
        "| name | city |\n|---|---|\n| ada | Rome |\n",
        "sk-this-is-only-the-name-of-a-class and re_is_a_name_of_many_words_too",
        "at 01-02-2024 10:30, on 2024-01-02 and 05/06/2023 11:15:30, for 01/2023-05/2023",
        "1:2:3:4:5",
        "C:\\new\\table\\u0041 100%25 &amp; more",
        "commit 9fceb02d0ae598e95dc970b74767f19372d61af8, id 123e4567-e89b-12d3-a456-426614174000",
    ],
)
def test_a_value_that_only_resembles_a_secret_is_left_as_it_is(value: Any) -> None:
    assert redactor().value(value) == value


def test_the_text_around_an_escaped_find_stays_as_it_was_written() -> None:
    mail = redactor().text("ada@corp.io")
    assert redactor().text("a\\u002bb &lt;ada&#64;corp.io&gt; 100%25") == f"a\\u002bb &lt;{mail}&gt; 100%25"


def test_a_token_at_the_end_of_the_window_that_a_rule_reads_is_found() -> None:
    token = "ghp_" + "a1B2c3D4e" * 4
    for before in range(12_280, 12_300):
        assert token not in redactor().text("." * before + token + "." * 20_000)
        assert token not in redactor().text("." * (before + 4096) + token + "." * 20_000)


def test_finds_that_overlap_are_both_removed_whole() -> None:
    said = redactor().text("postgres://admin:hunter2pass@db.internal.io/crm?email=x@hunter2pass@db.internal.io")
    assert "hunter2pass" not in said


def test_a_pattern_with_look_around_is_refused_because_its_time_has_no_bound() -> None:
    with pytest.raises(ValueError, match="not a regular expression that RE2 supports"):
        RedactionRules(patterns={"badge": "(?<=x)B-[0-9]+"})
