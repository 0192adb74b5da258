"""Which headers and variables hold secrets."""

from __future__ import annotations

import pytest
from dreamgym_server.recorder.known import is_secret_name, secrets_in, secrets_of_environment, secrets_of_url


@pytest.mark.parametrize(
    "name",
    [
        *("Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key", "x-auth-token", "X-Goog-Api-Key"),
        *("OPENAI_API_KEY", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "PGPASSWORD", "GH_PAT", "SMTP_PWD"),
        *("DATABASE_URL", "SENTRY_DSN", "PRIVATE_KEY", "key"),
    ],
)
def test_a_name_that_tells_of_a_secret_is_known(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("Accept", "Content-Type", "User-Agent", "Mcp-Session-Id", "Mcp-Protocol-Version", "WWW-Authenticate"),
        *("PATH", "PWD", "HOME", "MAX_TOKENS", "TOKENIZERS_PARALLELISM", "SSH_AUTH_SOCK", "GIT_AUTHOR_NAME"),
        *("KEYBOARD", "MONKEY", "GOOGLE_APPLICATION_CREDENTIALS_FILE", "DESKTOP_SESSION", "XAUTHORITY"),
    ],
)
def test_a_name_that_only_looks_like_one_is_not(name: str) -> None:
    assert not is_secret_name(name)


def test_a_value_is_known_whole_and_without_its_scheme_and_a_cookie_in_its_parts() -> None:
    named = [("Authorization", "Bearer abc.def.ghi"), ("Cookie", "sid=s3cr3tsid; theme=dark"), ("X-Api-Key", "short")]
    assert secrets_in(named) == {
        "Bearer abc.def.ghi": "authorization",
        "abc.def.ghi": "authorization",
        "sid=s3cr3tsid; theme=dark": "cookie",
        "s3cr3tsid": "cookie",
    }


def test_a_url_gives_its_password_and_its_secret_looking_query() -> None:
    url = "https://user:p%40ssword@host/mcp?api_key=k3y-of-url&page=1234567"
    assert secrets_of_url(url) == {"p@ssword": "password", "k3y-of-url": "api_key"}


def test_a_password_inside_of_an_address_in_the_environment_is_known() -> None:
    environ = {"BACKEND": "postgres://me:hunter22@db/x", "HOME": "/root", "API_TOKEN": "t0ps3cret"}
    assert secrets_of_environment(environ) == {"hunter22": "backend-password", "t0ps3cret": "api_token"}
