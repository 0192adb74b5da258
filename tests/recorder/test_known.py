"""The recorder knows secrets by their source: headers, URLs and environment variables."""

from __future__ import annotations

import pytest
from dreamgym_server.recorder.secret_sources import secrets_in, secrets_of_environment, secrets_of_url


@pytest.mark.parametrize(
    "name",
    [
        *("Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key", "x-auth-token", "X-Goog-Api-Key"),
        *("OPENAI_API_KEY", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "PGPASSWORD", "GH_PAT", "SMTP_PWD"),
        *("DATABASE_URL", "SENTRY_DSN", "PRIVATE_KEY", "key"),
    ],
)
def test_a_value_with_the_name_of_a_secret_is_a_secret(name: str) -> None:
    assert secrets_in([(name, "aB3dE5fG7hI9kL1mN")]) == {"aB3dE5fG7hI9kL1mN": name.lower()}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "aB3dE5fG7hI9kL1mN") for name in ("Accept", "Content-Type", "User-Agent", "Mcp-Session-Id")),
        *((name, "/home/ada/Work_7") for name in ("PATH", "PWD", "HOME", "SSH_AUTH_SOCK", "XAUTHORITY", "MONKEY")),
        *((name, "2025-06-18T10:00Z") for name in ("Mcp-Protocol-Version", "TOKEN_EXPIRES_AT", "PASSWORD_CHANGED")),
        *(("MAX_TOKENS", "16384"), ("TOKENIZERS_PARALLELISM", "false"), ("GIT_AUTHOR_NAME", "Ada Lovelace")),
        *(("KEYBOARD", "us-intl"), ("GOOGLE_APPLICATION_CREDENTIALS_FILE", "/run/x1"), ("DESKTOP_SESSION", "gnome")),
        ("WWW-Authenticate", 'Bearer realm="a1b2c3d4"'),
    ],
)
def test_a_value_whose_name_only_looks_secret_is_not_a_secret(name: str, value: str) -> None:
    assert secrets_in([(name, value)]) == {}


def test_a_random_part_of_the_path_of_a_url_is_a_secret_and_a_name_is_not() -> None:
    assert secrets_of_url("https://mcp.host/api/mcp/s/MzQ1NjAtYWJj0xZ9k2QpLm/mcp-server-for-tests") == {
        "MzQ1NjAtYWJj0xZ9k2QpLm": "path"
    }
    assert secrets_of_url("https://host/v1/123e4567-e89b-12d3-a456-426614174000/models-2024-11-20-preview") == {
        "123e4567-e89b-12d3-a456-426614174000": "path"
    }


def test_a_header_is_known_whole_and_without_its_scheme_and_a_cookie_by_its_parts() -> None:
    named = [("Authorization", "Bearer abc.def.ghi"), ("Cookie", "sid=s3cr3tsid; theme=dark"), ("X-Api-Key", "short")]
    assert secrets_in(named) == {
        "Bearer abc.def.ghi": "authorization",
        "abc.def.ghi": "authorization",
        "sid=s3cr3tsid; theme=dark": "cookie",
        "s3cr3tsid": "cookie",
    }


def test_only_the_value_of_a_new_cookie_is_known_and_its_attributes_are_not() -> None:
    attributes = "Path=/items; Domain=.example.com; Max-Age=604800; SameSite=Strict"
    assert secrets_in([("Set-Cookie", f"sid=s3cr3t=s1d; {attributes}")]) == {"s3cr3t=s1d": "set-cookie"}


def test_the_password_and_a_secret_looking_parameter_of_a_url_are_known() -> None:
    url = "https://user:p%40ssword@host/mcp?api_key=k3y-of-url&page=1234567"
    assert secrets_of_url(url) == {"p@ssword": "password", "k3y-of-url": "api_key"}


def test_a_password_inside_a_url_in_the_environment_is_known() -> None:
    environ = {"BACKEND": "postgres://me:hunter22@db/x", "HOME": "/root", "API_TOKEN": "t0ps3cret"}
    assert secrets_of_environment(environ) == {"hunter22": "backend-password", "t0ps3cret": "api_token"}


def test_a_variable_that_only_resembles_a_url_is_read_too() -> None:
    environ = {"BACKEND": "postgres://me:p[ssw0rd@db/x", "SITE": "https://[your-host]/x"}
    assert secrets_of_environment(environ) == {"p[ssw0rd": "backend-password"}
