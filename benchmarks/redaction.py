"""Measure how many planted values the redaction finds, by class, and what it finds in public data without such values.

All values are made up here, with one seed. The class `held out` was written after the rules. The README does not
promise to find values without form and name; they are a separate class, so that the table shows them.

    python benchmarks/redaction.py [--data FOLDER] [--show]
"""

from __future__ import annotations

import argparse
import base64
import html
import json
import lzma
import random
import re
import string
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

from pydantic import JsonValue

from dreamgym.redaction import RedactionRules, Redactor

KEY = b"benchmark-of-redaction" + b"." * 10
MAX_FILE_CHARACTERS = 2_000_000
RANDOM = random.Random(20)
ALNUM, HEX = string.ascii_letters + string.digits, "0123456789abcdef"
URL_SAFE = ALNUM + "_-"

Planted = tuple[str, JsonValue]
"""A value, and the text or JSON that it is planted in."""


def some(length: int, letters: str = ALNUM) -> str:
    """Random letters with a digit among them."""
    made = RANDOM.choices(letters, k=length)
    made[length // 2] = RANDOM.choice("23456789")
    return "".join(made)


def upper(length: int) -> str:
    """Capital letters and digits, as in Amazon's ids."""
    return some(length, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")


def published() -> Iterator[Planted]:
    """Bare values of a published form."""
    uuid = f"{some(8, HEX)}-{some(4, HEX)}-{some(4, HEX)}-{some(4, HEX)}-{some(12, HEX)}"
    for value in (
        *(
            f"sk-proj-{some(48, URL_SAFE)}",
            f"sk-ant-api03-{some(93, URL_SAFE)}AA",
            f"gsk_{some(52)}",
            f"xai-{some(80)}",
        ),
        *(
            f"pplx-{some(48)}",
            f"r8_{some(37)}",
            f"fw_{some(24)}",
            f"csk-{some(48, HEX)}",
            f"nvapi-{some(64, URL_SAFE)}",
        ),
        *(f"sk_{some(48, HEX)}", f"lsv2_pt_{some(32, HEX)}_{some(10, HEX)}", f"tvly-{some(32)}", f"hf_{some(34)}"),
        *(f"pcsk_{some(6)}_{some(60)}", f"pa-{some(43, URL_SAFE)}", f"jina_{some(60)}", f"ABSK{some(128)}"),
        *(f"AKIA{upper(16)}", f"ASIA{upper(16)}", f"AIza{some(35, URL_SAFE)}", f"ya29.{some(60, URL_SAFE)}"),
        *(
            f"GOCSPX-{some(28, URL_SAFE)}",
            f"1//0{some(60, URL_SAFE)}",
            f"{some(3)}8Q~{some(34)}",
            f"dop_v1_{some(64, HEX)}",
        ),
        *(f"{some(76)}AZDO{some(4)}", f"ATBB{some(32)}", f"ATATT3{some(180, URL_SAFE)}={some(8, HEX).upper()}"),
        *(f"ghp_{some(36)}", f"github_pat_{some(22)}_{some(59)}", f"gho_{some(36)}", f"glpat-{some(20, URL_SAFE)}"),
        *(
            f"xoxb-{some(12, '0123456789')}-{some(13, '0123456789')}-{some(24)}",
            f"xapp-1-{upper(11)}-{some(13, '12345')}-{some(64, HEX)}",
        ),
        *(f"{some(8)}-key-x {'key'}-{some(32, HEX)}".split()[1], f"re_{some(8)}_{some(24)}", f"whsec_{some(32)}"),
        *(
            f"SG.{some(22, URL_SAFE)}.{some(43, URL_SAFE)}",
            f"{some(10, '123456789')}:AA{some(33, URL_SAFE)}",
            f"SK{some(32, HEX)}",
        ),
        *(f"sq0atp-{some(22, URL_SAFE)}", f"shppa_{some(32, HEX)}", f"shpss_{some(32, HEX)}", f"shpat_{some(32, HEX)}"),
        *(f"access_token$production${some(16, HEX)}${some(32, HEX)}", f"access-sandbox-{uuid}", f"sk_live_{some(24)}"),
        *(f"rubygems_{some(48, HEX)}", f"cio{some(32)}", f"dckr_pat_{some(27, URL_SAFE)}", f"doo_v1_{some(64, HEX)}"),
        *(f"npm_{some(36)}", f"pypi-AgEIcHlwaS5vcmc{some(60, URL_SAFE)}", f"v1.0-{some(24, HEX)}-{some(146, HEX)}"),
        *(f"HRKU-{some(60, URL_SAFE)}", f"nfp_{some(36)}", f"FlyV1 fm2_{some(120)}", f"sbp_{some(40, HEX)}"),
        *(
            f"sb_secret_{some(31, URL_SAFE)}",
            f"pscale_tkn_{some(43, URL_SAFE)}",
            f"napi_{some(64)}",
            f"dapi{some(32, HEX)}",
        ),
        *(
            f"hvs.{some(95, URL_SAFE)}",
            f"{some(14)}.atlasv1.{some(67, URL_SAFE)}",
            f"dp.pt.{some(43)}",
            f"pul-{some(40, HEX)}",
        ),
        *(
            f"ops_eyJ{some(280)}",
            f"lin_api_{some(40)}",
            f"ntn_{some(46)}",
            f"secret_{some(43)}",
            f"pat{some(14)}.{some(64, HEX)}",
        ),
        *(f"figd_{some(40, URL_SAFE)}", f"PMAK-{some(24, HEX)}-{some(34, HEX)}", f"glsa_{some(32)}_{some(8, HEX)}"),
        *(f"glc_{some(60)}", f"NRAK-{upper(27)}", f"sntrys_{some(80)}_{some(43)}", f"pat-na1-{uuid}"),
        *(f"dt0c01.{upper(24)}.{upper(64)}", f"pk_{some(8, '123456789')}_{upper(32)}", f"AGE-SECRET-KEY-1{upper(58)}"),
        *(
            f"eyJ{some(30)}.eyJ{some(60)}.{some(43, URL_SAFE)}",
            f"-----BEGIN PRIVATE KEY-----\n{some(64)}\n-----END PRIVATE KEY-----",
        ),
    ):
        yield value, f"It answered {value} and no more."
    hook, token = some(24), some(68, URL_SAFE)
    yield hook, f"https://hooks.slack.com/services/{upper(9)}/{upper(11)}/{hook}"
    yield token, f"https://discord.com/api/webhooks/{some(18, '123456789')}/{token}"
    signed = some(43) + "="
    yield signed, f"https://x.blob.core.windows.net/c/b.txt?sv=2024-11-04&se=2026-01-01&sr=b&sp=r&sig={quote(signed)}"


def by_name() -> Iterator[Planted]:
    """Values that only the name of their field marks as secret."""
    names = [
        "password",
        "passwd",
        "passphrase",
        "secret",
        "token",
        "api_key",
        "apiKey",
        "access_token",
        "refreshToken",
        "client_secret",
        "private_key",
        "authorization",
        "cookie",
        "set_cookie",
        "csrf_token",
        "otp",
        "cvv",
        "credentials",
        "signing_key",
        "encryption_key",
        "session_token",
        "dbPassword",
        "sessionId",
        "session_id",
        "sid",
        "auth",
        "bearer",
        "jwt",
        "security_code",
        "connection_string",
        "dsn",
        "database_url",
        "webhook_url",
        "db_pass",
        "pat",
        "access_code",
        "recovery_code",
        "seed_phrase",
        "mnemonic",
        "license_key",
        "x-auth",
        "ssh_key",
        "pw",
        "pass",
        "basic_auth",
        "X-Api-Key",
    ]
    for name in names:
        value = f"h9{some(8)}-x"
        yield value, {name: value, "other": "plain"}
        yield value, f'{name}: "{value}"'
    yield (key := some(24)), {"key": key}
    yield "471193", {"pin": "471193"}


def text() -> Iterator[Planted]:
    """Values in running text, command lines and headers."""
    for form in (
        *(
            "--password={}",
            "--password {}",
            "--api-key {}",
            "--token={} --verbose",
            "PGPASSWORD={} psql -h db",
            "DB_PASS={}",
        ),
        *(
            "export API_KEY={}",
            "curl -u ada:{} https://host/x",
            "curl --user ada:{} https://host",
            "mysql -u root -p{} shop",
        ),
        *(
            "machine host login ada password {}",
            "db.host:5432:shop:ada:{}",
            "redis://:{}@host:6379/0",
            "postgres://ada:{}@h/db",
        ),
        *(
            "amqp://ada:{}@mq/vhost",
            "The password is {}.",
            "the API key is {}",
            "Your access token is {}, keep it",
            "password = {}",
        ),
        *(
            "Authorization: Bearer {}",
            "X-Auth-Token: {}",
            "Cookie: sid={}; theme=dark",
            "?access_token={}&page=2",
            "Password: {}",
        ),
    ):
        value = f"hunter{some(8)}"
        yield value, form.format(value)
    for items in (
        ["npx", "server", "--api-key", "{}"],
        ["x", "--password", "{}"],
        ["Authorization", "{}"],
        ["-u", "ada:{}"],
    ):
        value = f"hunter{some(8)}"
        yield value, [item.format(value) for item in items]


def pairs() -> Iterator[Planted]:
    """Values in pairs that are not written as `name: value`."""
    for form in (
        *("<password>{}</password>", "<user name='a'><apiKey>{}</apiKey></user>", "name,password,city\nada,{},Rome\n"),
        *("| name | password |\n|---|---|\n| ada | {} |\n", "name\ttoken\nada\t{}\n", "id;secret\n1;{}\n"),
        *("INSERT INTO users (name, password) VALUES ('ada', '{}')", "ALTER USER ada IDENTIFIED BY '{}'"),
        '"name","password"\n"ada, countess","{}"\n',
    ):
        value = f"hunter{some(8)}"
        yield value, form.format(value)
    for name, place in (
        ("label", "content"),
        ("name", "value"),
        ("key", "value"),
        ("field", "text"),
        ("type", "value"),
    ):
        value = f"hunter{some(8)}"
        yield value, {name: "password", place: value}
    value = f"hunter{some(8)}"
    yield value, {"columns": ["id", "password"], "rows": [[1, value]]}
    yield value, [{"password": value}, {"note": f"then it took {value} for an answer"}]


def personal() -> Iterator[Planted]:
    """Personal data of the six kinds in their usual spellings."""
    for value in (
        *(
            "alice.smith@corp-mail.io",
            "jörg@bücher-laden.de",
            "bob+tag@sub.example.org",
            "O'Hara@corp.ie",
            "ada%40corp.io",
        ),
        *("4539 1488 0343 6467", "4539148803436467", "2223003122003222", "2720 9999 9999 9996", "378282246310005"),
        *(
            "5555-5555-5555-4444",
            "6011111111111117",
            "30569309025904",
            "+1 (415) 555-2671",
            "1-415-555-2671",
            "(415) 555-2671",
        ),
        *(
            "415-555-2671",
            "+49 30 901820",
            "0049 30 901820",
            "030 901820 15",
            "020 7946 0958",
            "01 42 68 53 00",
            "+33142685300",
        ),
        *(
            "DE89 3704 0044 0532 0130 00",
            "de89370400440532013000",
            "GB82-WEST-1234-5698-7654-32",
            "FR1420041010050500013M02606",
        ),
        *("536-22-1234", "536 22 1234", "85.214.132.117", "2a00:1450:4001:81b::200e"),
    ):
        yield value, f"It is {value}, as you asked."


def encoded() -> Iterator[Planted]:
    """A token, a password with its name, and an e-mail address, in encodings that occur in traffic."""
    for value, around in (
        (f"ghp_{some(36)}", "use {} now please"),
        (f"hunter{some(8)}", "password={} is set"),
        ("alice.smith@corp-mail.io", "mail to {} please"),
    ):
        said = around.format(value)
        for form in (
            base64.b64encode(said.encode()).decode(),
            base64.urlsafe_b64encode(said.encode()).decode().rstrip("="),
            base64.encodebytes((said * 3).encode()).decode(),
            base64.b64encode(said.encode("utf-16-le")).decode(),
            base64.b64encode(f"café {said}".encode("latin-1")).decode(),
            said.encode().hex(),
            said.encode().hex().upper(),
            quote(said),
            json.dumps(json.dumps({"note": said})),
            "".join(f"&#{ord(letter)};" if letter in "@_=" else letter for letter in said),
            "".join(f"\\u{ord(letter):04x}" if letter in "@_=" else letter for letter in said),
            said.replace("o", "o\u200b"),
            html.escape(f'<a title="{said}">'),
        ):
            yield value, form


def held_out() -> Iterator[Planted]:
    """Forms that the rules were not written for."""
    value = f"tr0ub{some(7)}"
    for form in (
        *(
            "aws configure set aws_secret_access_key {}",
            "docker login -u ada --password {} ghcr.io",
            "sshpass -e; SSHPASS={}",
        ),
        *(
            "spring.datasource.password={}",
            "Server=db;User Id=sa;Password={};Encrypt=true",
            "jdbc:mysql://h/db?user=a&password={}",
        ),
        *(
            "mongodb+srv://ada:{}@cluster0.abc.mongodb.net/test",
            "https://ada:{}@git.host/x.git",
            "requirepass: {}",
            "smtp_password => '{}'",
        ),
        *(
            "MYSQL_ROOT_PASSWORD: {}",
            'api_key = "{}"',
            "set-cookie: session={}; HttpOnly",
            "x-api-key:{}",
            "[secret]\ntoken = {}",
        ),
        *(
            "Your one-time password is {}",
            "the passphrase was {}",
            "<input type='password' value='{}'>",
            "<Token xmlns='x'>{}</Token>",
        ),
        *(
            "user | api key\nada | {}",
            "email;passwort\nada;{}",
            "vault kv put secret/x password={}",
            "helm install x --set auth.password={}",
        ),
        *(
            "kubectl create secret generic x --from-literal=password={}",
            '{{\\"password\\": \\"{}\\"}}',
            "SECRET_KEY_BASE={}",
        ),
        *(
            "CREATE USER ada WITH PASSWORD '{}'",
            "net use x /user:ada\nPassword: {}",
            "new password: {}",
            "credentials: ada / {}",
        ),
    ):
        yield value, form.format(value)
    nested_values: tuple[JsonValue, ...] = (
        {"headers": [{"name": "x-functions-key", "value": value}]},
        {"fields": [{"id": "password", "type": "CONCEALED", "label": "password", "value": value}]},
        {"env": {"STRIPE_WEBHOOK_SECRET": value}},
        {"args": ["--auth-token", value]},
        {"auth": {"username": "ada", "password": value}},
        {"columns": ["id", "api_key"], "data": [[1, value]]},
        {"Set-Cookie": [f"sid={value}"]},
        {"cookies": [{"name": "sid", "value": value}]},
        {"accessToken": {"value": value}},
        {"variables": [{"variable": "DB_PASSWORD", "value": value}]},
    )
    for nested in nested_values:
        yield value, nested
    for bare in (
        f"glrt-{some(20)}",
        f"vercel_blob_rw_{some(30)}",
        f"tskey-auth-{some(20)}",
        f"rnd_{some(32)}",
        f"ghs_{some(36)}",
    ):
        yield bare, f"It is {bare}."
    for person in (
        "+44 (0)20 7946 0958",
        "06 12 34 56 78",
        "maria@correo.com.mx",
        "3530111333300000",
        "NL91 ABNA 0417 1643 00",
    ):
        yield person, f"Write down {person}."


def without_form() -> Iterator[Planted]:
    """Bare values that nothing marks as secret, which are not promised to be found."""
    for length in (32, 40, 64):
        value = some(length, HEX)
        yield value, f"It answered {value}."
    yield (value := some(40)), f"It answered {value}."
    yield "swordfish", "Say swordfish and enter."


CLASSES = {
    "published forms, bare": published,
    "behind a name": by_name,
    "text, commands, headers": text,
    "pairs without a colon": pairs,
    "personal data": personal,
    "encodings": encoded,
    "held out": held_out,
    "no form and no name (not promised)": without_form,
}


def survives(value: str, planted: JsonValue) -> bool:
    """True if the value, or a telling part of it, can still be read after redaction."""
    redacted = Redactor(RedactionRules(), key=KEY).value(planted)
    if redacted == planted:
        return True
    said = json.dumps(redacted, ensure_ascii=False).replace("\\n", "\n")
    return any(value in one or (len(value) > 24 and value[-16:] in one) for one in readings(said))


def readings(text: str) -> Iterator[str]:
    """Yield the text as it is, and decoded in each way in which `encoded` writes."""
    yield from (text, unquote(text), html.unescape(text), text.replace("\u200b", ""))
    yield re.sub(r"\\+u([0-9a-f]{4})", lambda found: chr(int(found[1], 16)), text)
    for run in re.findall(r"[A-Za-z0-9+/_-]{8,}", re.sub(r"\s", "", text)):
        for start in range(4):  # its head may have been redacted
            rest = run[start : len(run) - ((len(run) - start) % 4 == 1)].replace("-", "+").replace("_", "/")
            yield base64.b64decode(f"{rest}==").decode("latin-1").replace("\0", "")
    for run in re.findall(r"[0-9A-Fa-f]{8,}", text):
        for start in range(2):
            yield bytes.fromhex(run[start : len(run) - (len(run) - start) % 2]).decode("latin-1")


def texts_in(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield (entry of the folder, line) for its readable files, each cut off after MAX_FILE_CHARACTERS."""
    for path in sorted(folder.rglob("*")):
        opener = lzma.open if path.suffix == ".xz" else open
        if path.is_file():
            try:
                with opener(path, "rt", encoding="utf-8") as file:
                    content = file.read(MAX_FILE_CHARACTERS)
            except (OSError, UnicodeDecodeError, lzma.LZMAError):
                continue
            yield from ((path.relative_to(folder).parts[0], line) for line in content.splitlines())


def false_finds(folder: Path, show: bool) -> None:
    """Print what is found in public data, by folder and rule."""
    size: Counter[str] = Counter()
    finds: dict[str, Counter[str]] = {}
    begun = time.process_time()
    for part, line in texts_in(folder):
        redactor = Redactor(RedactionRules(), key=KEY)
        try:
            value = json.loads(line)
        except ValueError:
            value = line
        clean = redactor.value(value)
        size[part] += len(line)
        finds.setdefault(part, Counter()).update(redactor.counts)
        if show and redactor.counts:
            print(f"  {part}: {dict(redactor.counts)}: {_around(json.dumps(value), json.dumps(clean))}")
    for part, characters in size.items():
        said = ", ".join(f"{count} {rule}" for rule, count in finds[part].most_common()) or "none"
        print(f"{part:<20} {characters / 1e6:6.2f} million characters   found: {said}")
    print(f"{1e3 * (time.process_time() - begun) / max(1, sum(size.values())) * 1e3:.2f} CPU s per million characters")


def _around(before: str, after: str) -> str:
    at = next((at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), 0)
    return f"{before[max(0, at - 40) : at + 40]} → {after[at : at + 40]}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder of public data, where nothing should be found")
    parser.add_argument("--show", action="store_true", help="print what is missed, and what is found in the data")
    chosen = parser.parse_args()
    print(f"{'class':<36} found / planted")
    for name, planted in CLASSES.items():
        cases = list(planted())
        missed = [form for value, form in cases if survives(value, form)]
        print(f"{name:<36} {len(cases) - len(missed):>5} / {len(cases)}")
        for form in missed if chosen.show else ():
            print(f"    missed: {form!r}"[:200])
    if chosen.data is None or not chosen.data.is_dir():
        print("false finds: not measured, give a folder of recorded data with --data")
    else:
        false_finds(chosen.data, chosen.show)


if __name__ == "__main__":
    main()
