"""Secrets and personal data are removed wherever they occur, and nothing else is."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import string
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import JsonValue

from dreamgym.errors import InvalidInput
from dreamgym.redaction import RedactionRules, Redactor, load_key
from dreamgym.redaction.rules import KINDS
from dreamgym.types import JsonObject

KEY = b"k" * 32
KNOWN = "corr3ct-horse-battery"
PLANTED = {
    "email": "alice.smith@corp-mail.io",
    "phone": "+1 (415) 555-2671",
    "credit_card": "4539 1488 0343 6467",
    "iban": "DE89 3704 0044 0532 0130 00",
    "ip_address": "85.214.132.117",
    "us_ssn": "536-22-1234",
    "github": "ghp_" + "a1B2c3D4e" * 4,
    "aws": "AKIAIOSFODNN7EXAMPLE",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dBjftJeZ4CVPmB92K27uhbUJU1p1r",
    "slack": "xoxb-123456789012-abcdefabcdef",
    "key": "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
    "known": KNOWN,
}
"""One value of each kind."""

words = st.text(string.ascii_letters + " .,!?-'\n", max_size=30)
numbers = st.integers(-(10**6), 10**6)
plain = st.recursive(
    words | numbers | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(string.ascii_letters, max_size=8), inner),
    max_leaves=12,
)
planted = st.sampled_from(sorted(PLANTED.values()))


def redactor(**rules: Any) -> Redactor:
    return Redactor(RedactionRules(**rules), key=KEY, known={KNOWN: "CRM_TOKEN"})


def in_some_form(secret: str) -> st.SearchStrategy[Any]:
    """The secret as a text, in a sentence, as a key, in JSON in a text, in base64, or in a URL."""
    return st.sampled_from(
        [
            secret,
            f"Then it said: {secret} and went on.",
            {secret: "value"},
            ["deep", [{"deeper": secret}]],
            json.dumps({"note": secret}, indent=2),
            json.dumps([json.dumps({"note": secret})]),
            base64.b64encode(f"the content is {secret} here".encode()).decode(),
            f"https://host/path?q={quote(secret, safe='') if '@' in secret or secret == KNOWN else secret}&page=2",
        ]
    )


@given(planted.flatmap(lambda secret: st.tuples(st.just(secret), in_some_form(secret))), plain)
def test_a_planted_secret_is_removed_in_every_form(planting: tuple[str, Any], around: Any) -> None:
    secret, form = planting
    redacted = redactor().value({"before": around, "here": form, "after": [around]})
    assert secret not in everything(redacted)
    assert quote(secret, safe="") not in everything(redacted)


def everything(value: Any) -> str:
    """All text in a value, with the base64 and the JSON in it decoded."""
    opened = json.dumps(value, ensure_ascii=False)
    for _ in range(3):
        opened += opened.replace('\\\\"', '"').replace('\\"', '"').replace("\\n", "\n").replace("\\\\n", "\n")
    for token in set(opened.replace('"', " ").split()):
        try:
            opened += base64.b64decode(token, validate=True).decode()
        except ValueError:
            continue
    return opened


signs = "!#$&*+,-./;?@^_~"  # without "%", since an escape such as %0A is decoded before it is read
chosen = st.text(string.ascii_letters + string.digits + signs + "'()[]{}<|", max_size=20).map(
    lambda text: f"X7q{text}4zz9"
)
"""Passwords as people and generators choose them."""
without_brackets = st.text(string.ascii_letters + string.digits + signs, max_size=20).map(lambda text: f"X7q{text}4zz9")


def is_whole(before: str, secret: str, after: str) -> bool:
    """True if exactly the secret is replaced in the text between the others."""
    redacted = redactor(personal=()).text(f"{before}{secret}{after}")
    clean = redacted.removeprefix(before).removesuffix(after)
    return redacted.startswith(before) and re.fullmatch(r"REDACTED-[A-Z-]+-[a-p]{8}", clean) is not None


@given(chosen, st.sampled_from(["the password is ", "Your passphrase is: ", "the API key was ", "Passwort: "]))
@example("Tr0ub4dor&3xyz", "the password is ")
@example("abc123;def456", "the password is ")
@example("Geh3im&Kram", "Passwort: ")
@example("abc'123,d)e<f", "the password is ")
def test_a_password_in_a_sentence_is_removed_whole(secret: str, before: str) -> None:
    assume("</" not in secret and "<!" not in secret and not re.search(r"[(\[{]|\|\W|<[a-z]+/|'[)\]},]", secret))
    for after in ("", ". Keep it.", ", and the user is ada", "; it expires", " (do not share it)", "\nBye", "!"):
        assert is_whole(before, secret, after), secret


@given(without_brackets, st.sampled_from(['("{}")', '"note": "{}", "n": 1', "({})", "[{}] next", "'{}' said Ada"]))
def test_a_password_in_a_sentence_ends_with_the_quotes_or_brackets_around_it(secret: str, around: str) -> None:
    before, after = around.split("{}")
    assert is_whole(f"{before}the password is ", secret, after)


@given(without_brackets.filter(lambda secret: not re.search(r"[;,&]", secret)), without_brackets)
def test_a_password_in_a_connection_string_or_a_url_is_removed_without_the_next_part(one: str, other: str) -> None:
    assert is_whole("Server=db;User Id=sa;Password=", one.replace("X7", "X7&"), ";Encrypt=true")
    assert is_whole("Password=", one, ";User Id=sa")
    assert is_whole("user=ada,password=", one, ",host=db")
    assert is_whole("https://host.example/x?user=ada&password=", quote(other, safe=""), "&page=2")
    assert is_whole("https://host.example/x?password=", quote(other, safe=""), "")


@given(st.text(string.ascii_letters + string.digits + signs + " '", max_size=20).map(lambda text: f"X7q{text}4zz9"))
def test_a_password_in_quotes_is_removed_whole(secret: str) -> None:
    for quotes in ('""', "“”", "„“", "«»"):
        assert is_whole(f"The password is {quotes[0]}", secret, f"{quotes[1]}, keep it.")
        assert is_whole(f"password: {quotes[0]}", secret, f"{quotes[1]}; next")


@given(plain, st.lists(planted.flatmap(in_some_form), max_size=3))
def test_redacting_twice_changes_nothing_more(around: Any, forms: list[Any]) -> None:
    once = redactor().value([around, *forms])
    assert redactor().value(once) == once


@given(plain)
def test_a_value_without_personal_data_stays_as_it_is(value: Any) -> None:
    one = redactor(secrets=False)
    assert one.value(value) == value
    assert not one.counts


@given(st.lists(st.uuids().map(str) | st.binary(min_size=20, max_size=32).map(bytes.hex), min_size=1))
def test_ids_and_hashes_are_not_secrets(ids: list[str]) -> None:
    assert redactor(personal=("email", "iban", "us_ssn")).value({"ids": [*ids]}) == {"ids": ids}


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_has_the_same_placeholder_in_every_context(kind: str) -> None:
    one = redactor()
    first, second = one.text(PLANTED[kind]), one.text(f"see {PLANTED[kind]}, please")
    assert second == f"see {first}, please"
    assert first != PLANTED[kind]
    assert one.counts == {kind: 2}


@pytest.mark.parametrize("kind", KINDS)
def test_two_values_have_two_placeholders_and_another_key_gives_others(kind: str) -> None:
    other = {
        "email": "bob@corp-mail.io",
        "phone": "+1 (415) 555-2672",
        "credit_card": "4929 4212 3460 0821",
        "iban": "GB82 WEST 1234 5698 7654 32",
        "ip_address": "85.214.132.118",
        "us_ssn": "536-22-1235",
    }[kind]
    one = redactor()
    assert len({one.text(PLANTED[kind]), one.text(other)}) == 2
    assert Redactor(RedactionRules(), key=b"x" * 32).text(other) != one.text(other)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_that_the_rules_do_not_list_is_not_redacted(kind: str) -> None:
    kinds = tuple(other for other in KINDS if other != kind)
    assert redactor(personal=kinds).text(f"it is {PLANTED[kind]}") == f"it is {PLANTED[kind]}"


def test_placeholders_pass_the_checks_that_the_values_passed() -> None:
    schema = {
        "properties": {
            "mail": {"format": "email", "pattern": "^[^@]+@[^@]+$"},
            "card": {"pattern": r"^\d{16}$"},
            "pin": {"type": "integer"},
        }
    }
    value: JsonObject = {"mail": "a@b.io", "card": "4539148803436467", "pin": 4711, "api_key": "abcdefgh"}
    redacted = redactor(fields=("pin",)).value(value)
    assert isinstance(redacted, dict)
    assert list(Draft202012Validator(schema).iter_errors(redacted)) == []
    assert redacted["pin"] == 0
    assert not {"a@b.io", "4539148803436467", "abcdefgh"} & set(map(str, redacted.values()))


@pytest.mark.parametrize(
    "field", ["password", "apiKey", "client_secret", "Authorization", "x-api-key", "refreshToken", "db.password", "cvv"]
)
def test_a_text_under_the_name_of_a_secret_is_removed_whole(field: str) -> None:
    redacted = redactor().value({field: "plainword", "list": [{field: ["a word", "two"]}]})
    assert "plainword" not in json.dumps(redacted)
    assert "a word" not in json.dumps(redacted)


def test_a_text_under_the_name_of_a_secret_is_removed_whole_even_if_it_contains_a_placeholder() -> None:
    placeholder = redactor().value({"token": "abc123def4"})["token"]  # type: ignore[call-overload, index]
    for field, text in {"password": f"hunter2pass {placeholder}", "cookie": f"a={placeholder}; b=hunter2pass"}.items():
        redacted = redactor().value({field: text})
        assert "hunter2pass" not in json.dumps(redacted)
        assert redactor().value(redacted) == redacted
    kept: JsonObject = {"token": placeholder, "authorization": f"Bearer {placeholder}", "key": f"abc-{placeholder}-X1"}
    assert redactor().value(kept) == kept


@pytest.mark.parametrize(
    "field", ["progressToken", "nextPageToken", "max_tokens", "tokens", "key", "passenger", "secretary"]
)
def test_a_name_that_only_sounds_like_a_secret_keeps_its_value(field: str) -> None:
    assert redactor().value({field: "plain words"}) == {field: "plain words"}


@pytest.mark.parametrize(
    "value",
    [
        {"tokens": {"model": "gpt-4", "prompt": "12", "kind": "total"}},
        {
            "license": {"key": "apache-2.0", "url": "https://api.github.com/licenses/apache-2.0"},
            "topics": ["apache-2.0"],
        },
        {"session": {"id": "talk-0042", "startTime": "2024-05-01T10:00:00Z"}, "pin": {"zip": "94107"}},
        {"form": [["grant_type", "password"], ["username", "ann"], ["scope", "read"]]},
        {"form": [["response_type", "token"], ["client_id", "web"], ["redirect_uri", "https://web.example.org"]]},
        {"values": [["Name", "Mark"], ["Ann", "A1"], ["Bob", "B2"]]},
        {"rows": [["token"], "none"]},
    ],
)
def test_tables_and_objects_without_a_secret_stay(value: dict[str, Any]) -> None:
    assert redactor().value(value) == value


def test_the_schema_of_an_argument_called_password_stays_a_schema() -> None:
    listing: JsonObject = {"properties": {"password": {"type": "string", "description": "The user's password."}}}
    assert redactor().value(listing) == listing


def test_the_names_and_choices_that_a_schema_lists_stay() -> None:
    kinds: JsonObject = {"type": "string", "enum": ["token", "cookie"]}
    schema: JsonObject = {"type": "object", "properties": {"kind": kinds}, "required": ["password", "username"]}
    assert redactor().value(schema) == schema
    assert redactor().value(["password", "hunter2"]) != ["password", "hunter2"]
    choices: JsonObject = {"anyOf": [{"required": ["token"]}, {"required": ["client_secret", "client_id"]}]}
    assert redactor().value(choices) == choices
    assert redactor().value({"columns": ["password", "email"]}) == {"columns": ["password", "email"]}
    pairs: list[JsonValue] = [["password", "swordfish"], ["name", "Ada"]]
    assert "swordfish" not in str(redactor().value(pairs)), "in a list of pairs even a word is a value"


def test_a_list_under_a_name_of_secrets_loses_those_that_look_like_one_and_no_word() -> None:
    keys: list[JsonValue] = ["q8Zr2Lk9Xv4Tn7Wm3Pd6", "hello"]
    redacted = redactor().value({"api_keys": keys})
    assert isinstance(redacted, dict)
    assert [str(one) in str(redacted) for one in keys] == [False, True]


@pytest.mark.parametrize(
    "text", ['{"password": "hunter2secret9", "password": ""}', '{"a": "AKIAIOSFODNN7EXAMPLE", "a": ""}']
)
def test_the_first_of_two_fields_with_one_name_is_redacted_too(text: str) -> None:
    redacted = redactor().value(text)
    assert not any(secret in str(redacted) for secret in ("hunter2secret9", "AKIAIOSFODNN7EXAMPLE"))


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("postgres://admin:hunter2pass@db.internal/crm", "hunter2pass"),
        ("GET /v1/x?access_token=abc123def456&limit=2", "abc123def456"),
        ("Authorization: Bearer 0123456789abcdef", "0123456789abcdef"),
        ('{"broken": "json", "password": "hunter2"', "hunter2"),
        ("password=swordfish9; user=bob", "swordfish9"),
        ("export OPENAI_API_KEY=sk-proj-abcdefghijklmnopqrst", "sk-proj-abcdefghijklmnopqrst"),
    ],
)
def test_a_secret_in_running_text_is_found_by_the_text_before_it(text: str, secret: str) -> None:
    assert secret not in redactor().text(text)


def test_json_in_a_text_keeps_its_layout() -> None:
    value = {"name": "Zoë", "mail": "zoe@corp.io", "n": [1, 2]}
    for options in ({}, {"indent": 2}, {"indent": 4}, {"separators": (",", ":")}, {"ensure_ascii": False, "indent": 2}):
        text = json.dumps(value, **options)
        redacted = redactor().text(text)
        assert redacted == text.replace("zoe@corp.io", redactor().text("zoe@corp.io"))


@pytest.mark.parametrize("secret", ["q9uo\\te9x", "CORP\\nora-7", "ab+9%26cd"])
def test_a_secret_that_looks_as_if_it_had_an_escape_is_removed_as_it_is(secret: str) -> None:
    known = Redactor(RedactionRules(), key=KEY, known={secret: "login"})
    for text in (secret, base64.b64encode(f"login: {secret}".encode()).decode(), quote_plus(secret)):
        redacted = known.text(f"use {text} now")
        assert redacted != f"use {text} now"
        assert "REDACTED-LOGIN" in redacted or text.startswith("bG9")
    told = redactor().value({"password": secret, "log": f"use {secret} now"})
    assert isinstance(told, dict)
    assert told["log"] == f"use {told['password']} now"


def test_own_patterns_and_fields_are_removed_and_allowed_values_stay() -> None:
    one = redactor(patterns={"employee": r"EMP\d{4}"}, fields=("salary_note",), allow=(r".*@public\.org",))
    redacted = one.value({"text": "EMP1234 wrote to info@public.org", "salary_note": "twelve"})
    assert isinstance(redacted, dict)
    assert str(redacted["text"]).startswith("REDACTED-EMPLOYEE-")
    assert str(redacted["text"]).endswith(" wrote to info@public.org")
    assert str(redacted["salary_note"]).startswith("REDACTED-SALARY-NOTE-")


def test_a_number_that_is_a_known_secret_or_matches_an_own_pattern_becomes_0_and_others_stay() -> None:
    one = Redactor(RedactionRules(patterns={"badge": r"\b77\d{4}\b"}), key=KEY, known={"48291377": "pin"})
    value: JsonObject = {"pin": [48291377, 48291377.0], "badge": 771234, "others": [48291378, 7712345, 2.5, True]}
    others = value["others"]
    assert one.value(value) == {"pin": [0, 0], "badge": 0, "others": others}


def test_a_card_number_that_is_written_as_a_float_gets_the_placeholder_of_the_number() -> None:
    whole, written = 4539148803436467, json.loads("4539148803436467.0")
    redacted = redactor().value([whole, written, 1e300, 4539148803436467e3])
    assert isinstance(redacted, list)
    assert redacted[0] == redacted[1] != whole
    assert redacted[2:] == [1e300, 4539148803436467e3]


@pytest.mark.parametrize("secrets", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        "customer_no: A1234567.",
        "customer_no: 7",
        "Customer_No = 123, of Rome",
        '{"broken": "json", "customer_no": "Theodore Smith"',
        "GET /orders?customer_no=A1234567&limit=2",
        "find --customer_no ada",
        "<order><x:customer_no id='1'>Theodore Smith</x:customer_no></order>",
        "id,customer_no\n1,A1234567\n2,Theodore\n",
        "| id | customer_no |\n|---|---|\n| 1 | Theodore Smith |\n",
        "INSERT INTO orders (id, customer_no) VALUES (1, 'A1234567'), (2, 'Theodore')",
    ],
)
def test_the_values_of_own_fields_are_removed_from_texts_and_columns_too(text: str, secrets: bool) -> None:
    redacted = redactor(fields=("customer_no",), secrets=secrets).text(text)
    assert not {"A1234567", "123", "7", "Theodore", "Smith", "ada"} & set(re.findall(r"\w+", redacted))
    assert "REDACTED-CUSTOMER-NO-" in redacted or "REDACTED-X-CUSTOMER-NO-" in redacted
    assert redactor(fields=("customer_no",), secrets=secrets).text(redacted) == redacted


def test_rows_under_the_name_of_an_own_field_are_removed() -> None:
    rows: JsonObject = {"columns": ["id", "customer_no"], "rows": [[1, "Ada"], [2, "Bob"]]}
    redacted = json.dumps(redactor(fields=("customer_no",)).value(rows))
    assert not {"Ada", "Bob"} & set(re.findall(r"\w+", redacted))


@pytest.mark.parametrize(
    "text",
    [
        "customer_no: the number of the customer",
        "old_customer_no: A1234567, customer_no2: A1234567",
        "ask for the customer_no, id and name\n1, 2 and 3\n",
        "customer_no (str): the number",
        "customer_no: ...",
    ],
)
def test_words_of_a_sentence_about_an_own_field_and_other_names_stay(text: str) -> None:
    assert redactor(fields=("customer_no", " ")).text(text) == text


@pytest.mark.parametrize(
    "text", ["127.0.0.1", "abc::def", "version 1.2.3.4", "::1", "4155552671", "4539148803436468", "12:30:45"]
)
def test_a_number_that_is_not_personal_is_left_alone(text: str) -> None:
    assert redactor().text(f"see {text} there") == f"see {text} there"


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ({"personal": ["shoe_size"]}, "shoe_size.*email"),
        ({"patterns": {"x": "("}}, "not a regular expression that RE2 supports"),
        ({"patterns": {"x": "a*"}}, "matches the empty text"),
    ],
)
def test_rules_that_cannot_work_are_refused(rules: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        RedactionRules(**rules)


def test_the_key_is_made_once_and_only_its_user_can_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DREAMGYM_HOME", str(tmp_path / "home"))
    key = load_key()
    assert len(key) == 32
    assert load_key() == key
    (file,) = (tmp_path / "home").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_bytes(b"short")
    with pytest.raises(InvalidInput, match="has 5 bytes"):
        load_key()


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write anywhere")
def test_a_home_that_cannot_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o500)
    monkeypatch.setenv("DREAMGYM_HOME", str(tmp_path / "home"))
    with pytest.raises(InvalidInput, match="set DREAMGYM_HOME"):
        load_key()


def test_an_address_in_quotes_keeps_its_quotes_and_its_placeholder() -> None:
    bare = redactor().text("bob@corp-mail.io")
    assert redactor().text("VALUES ('bob@corp-mail.io')") == f"VALUES ('{bare}')"


@pytest.mark.parametrize("text", ["secret: Input/output error", "the password: expired.", "password: ...."])
def test_ordinary_words_after_the_name_of_a_secret_are_left_alone(text: str) -> None:
    assert redactor().text(text) == text


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("the AKCp5bueTFpfypEqQb is one", "AKCp5bueTFpfypEqQb"),
        ("an APBj73kdjL9 too", "APBj73kdjL9"),
        ("//registry.host/:_authToken=1a2b3c4d-1a2b-1a2b-1a2b-1a2b3c4d5e6f", "1a2b3c4d-1a2b"),
        ("get http://u:pw@h", ":pw@"),
        ("call +44 20 7946 0958 now", "7946"),
        ("from fd00:abcd:abcd:abcd:abcd:abcd:abcd:abcd", "abcd:abcd"),
        ("Cookie: session=abc; other=def", "def"),
    ],
)
def test_the_text_that_rules_skip_to_save_time_contains_no_secret(text: str, secret: str) -> None:
    assert secret not in redactor().text(text)


def test_a_password_at_the_end_of_a_sentence_has_the_same_placeholder_as_in_a_field() -> None:
    value = redactor().value({"password": "hunter2pass", "note": "I set password=hunter2pass."})
    assert isinstance(value, dict)
    assert value["note"] == f"I set password={value['password']}."


@pytest.mark.parametrize(
    "value",
    [
        {"password": {"value": "hunter2pass", "more": ["hunter2pass"]}},
        {"token": {"type": "bearer", "id": "hunter2pass"}},
        {"db_password": {"sensitive": True, "type": "string", "value": "hunter2pass"}},  # terraform output -json
        {"db_password": {"type": ["list", "string"], "value": ["hunter2pass"]}},
        {"env": [{"name": "DB_PASSWORD", "value": "hunter2pass"}]},
        {"headers": [{"key": "X-Api-Key", "value": "hunter2pass"}]},
        {"properties": {"password": {"type": "string", "default": "hunter2pass"}}},
        {"Parameter": {"Name": "/prod/DB_PASSWORD", "Type": "SecureString", "Value": "hunter2pass"}},  # AWS
        {"Stack": [{"ParameterKey": "DBPassword", "ParameterValue": "hunter2pass"}]},
        {"Name": "prod/db", "SecretString": "hunter2pass"},
        {"headers": [["Accept", "text"], ["X-Password", "hunter2pass"]]},
        {"values": [["Name", "Mail", "Password"], ["Ann", "none", "hunter2pass"], ["Bob"]]},  # Google Sheets
        {"values": [["user", "password"], ["ann", "hunter2pass"], ["bob", "hunter2pass"]]},
        {"columns": [{"name": "user"}, {"name": "password"}], "rows": [["ann", "hunter2pass"]]},
        {"columns": ["password"], "rows": [["hunter2pass"]]},
        {"env": [{"name": "DB_PASSWORD", "valueFrom": {}}], "args": ["--password", "hunter2pass"]},
        {"fields": ["password"], "passwords": ["hunter2pass"]},
        {"runs": [["gh", "secret", "list", "--env"], ["mysql", "-h", "--password", "hunter2pass"]]},
        {"tokens": {"prod": "hunter2passAnd4More"}},
    ],
)
def test_an_object_with_a_secret_found_by_name_keeps_only_its_form(value: dict[str, Any]) -> None:
    redacted = redactor().value(value)
    assert "hunter2pass" not in json.dumps(redacted)
    assert isinstance(redacted, dict)
    assert redacted.keys() == value.keys()
    assert redactor().value(redacted) == redacted


def test_json_nested_too_deeply_to_parse_is_redacted_as_text() -> None:
    text = "[" * 100_000 + '"bob@corp-mail.io"'
    assert "bob@corp-mail.io" not in redactor().text(text)


@pytest.mark.parametrize("before", ["", "a " * 4000, "a " * 6200])
@pytest.mark.parametrize("size", [3000, 5000, 20000])
def test_a_web_token_of_any_length_is_removed_whole(size: int, before: str) -> None:
    payload = base64.urlsafe_b64encode(random.Random(size).randbytes(size)).decode().rstrip("=")
    plain = base64.b64encode(b"0" * size).decode().rstrip("=")  # one run of base64, without - and _
    for token in (f"eyJhbGciOiJSUzI1NiJ9.{body}.c2lnbmF0dXJl" for body in (payload, plain)):
        clean = redactor().text(f"{before}Signed in as {token} for an hour.")
        assert clean.startswith(f"{before}Signed in as REDACTED-TOKEN-")
        assert clean.endswith(" for an hour.")
        assert len(clean) < len(before) + 80


def test_two_spellings_of_an_address_as_names_of_fields_keep_both_values() -> None:
    clean = redactor().value({"Ann@shop.com": 1, "ann@shop.com": 2})
    assert isinstance(clean, dict)
    assert [*clean.values()] == [1, 2]
    assert not any("ann" in name.lower() for name in clean)
