"""Who may come in."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest
from dreamgym_server.auth import check_bind, read_token
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from server_stage import Stage

from dreamgym.errors import InvalidInput

PATHS = [("GET", "/envs"), ("POST", "/envs/counter/episodes"), ("POST", "/envs/counter/episodes/x/mcp")]


@pytest.mark.anyio
@pytest.mark.parametrize("given", [None, "Bearer wrong", "Bearer", "secret", "Basic secret", "Bearer sécret"])
@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_both_doors_want_the_token(stage: Stage, method: str, path: str, given: str | None) -> None:
    async with stage.serve(token="secret") as (_, http):
        headers = {"authorization": given.encode()} if given else {}
        answer = await http.request(method, path, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.anyio
async def test_with_the_token_an_episode_is_played_and_without_it_health_is_told(stage: Stage) -> None:
    async with stage.serve(token="secret") as (url, http):
        assert (await http.get("/healthz")).status_code == 200
        async with httpx2.AsyncClient(base_url=url, headers={"Authorization": "Bearer secret"}) as known:
            made = (await known.post("/envs/counter/episodes", json={})).json()
            async with Client(streamable_http_client(made["mcp_url"], http_client=known)) as client:
                assert (await client.call_tool("add", {"n": 1})).content[0].text == "count 1"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "evil.example:80"}, 421),
        ({"host": "localhost.evil.example"}, 421),
        ({"host": ""}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:3000"}, 200),
        ({"host": "localhost:1"}, 200),
        ({"host": "[::1]:1"}, 200),
    ],
)
async def test_only_known_hosts_and_origins_are_served(stage: Stage, headers: dict[str, str], status: int) -> None:
    async with stage.serve() as (_, http):
        assert (await http.get("/envs", headers=headers)).status_code == status


@pytest.mark.anyio
async def test_an_allowed_host_is_served(stage: Stage) -> None:
    async with stage.serve(hosts={"gym.example"}) as (_, http):
        assert (await http.get("/envs", headers={"host": "gym.example"})).status_code == 200
        assert (await http.get("/envs")).status_code == 421


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "gym.example"])
def test_a_bind_that_others_can_reach_needs_a_token(host: str) -> None:
    with pytest.raises(InvalidInput, match="without a token"):
        check_bind(host, None)
    check_bind(host, "secret")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_a_loopback_bind_needs_no_token(host: str) -> None:
    check_bind(host, None)


def test_the_token_comes_from_a_file_or_else_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DREAMGYM_TOKEN", "from-environment")
    (tmp_path / "token").write_text("from-file\n")
    (tmp_path / "empty").write_text("\n")
    assert read_token(None) == "from-environment"
    assert read_token(tmp_path / "token") == "from-file"
    with pytest.raises(InvalidInput, match="is empty"):
        read_token(tmp_path / "empty")
    with pytest.raises(InvalidInput, match="No such file"):
        read_token(tmp_path / "none")
