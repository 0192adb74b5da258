"""Access to the server: bearer tokens, hosts and origins."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from answers import text_of
from dreamgym_server.auth import check_bind, read_token
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from server_stage import Stage, counter_spec
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from dreamgym.errors import InvalidInput

PATHS = [
    ("GET", "/"),
    ("GET", "/envs"),
    ("GET", "/envs/counter"),
    ("POST", "/envs/counter/episodes"),
    ("POST", "/envs/counter/episodes/x/mcp"),
]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "given", [None, "Bearer wrong", "Bearer", "secret", "Basic secret", "Bearer sécret", "Bearer x.y"]
)
@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_both_doors_require_the_token(stage: Stage, method: str, path: str, given: str | None) -> None:
    async with stage.serve(token="secret") as (_, http):
        headers = {b"authorization": given.encode()} if given else None
        answer = await http.request(method, path, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


async def call(url: str, token: str, headers: dict[str, str] | None = None) -> int:
    """Status of a tool call with a bearer token."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", "arguments": {"n": 1}}}
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}", **(headers or {})}) as http:
        return (await http.post(url, json=body, headers={"accept": "application/json"})).status_code


@pytest.mark.anyio
async def test_an_episodes_token_opens_its_mcp_url_and_nothing_else(stage: Stage) -> None:
    async with stage.serve(token="secret") as (url, http):
        known = {"Authorization": "Bearer secret"}
        mine, other = [(await http.post("/envs/counter/episodes", json={}, headers=known)).json() for _ in range(2)]
        agent = {"Authorization": f"Bearer {mine['token']}"}
        assert mine["token"] != other["token"]
        assert await call(mine["mcp_url"], mine["token"]) == 200
        assert await call(mine["mcp_url"], "secret") == 200
        plain = {made["episode"]: f"{url}/envs/counter/episodes/{made['episode']}/mcp" for made in (mine, other)}
        assert await call(plain[mine["episode"]], mine["token"]) == 200
        assert await call(plain[mine["episode"]], other["token"]) == 401
        assert await call(plain[other["episode"]], mine["token"]) == 401
        assert await call(f"{url}/envs/counter/mcp", mine["token"]) == 200
        assert await call(f"{url}/envs/counter/mcp/", mine["token"]) == 200
        assert await call(f"{url}/envs/counter/mcp", mine["token"], {"X-DreamGym-Episode": other["episode"]}) == 401
        assert await call(mine["mcp_url"] + "%0A", mine["token"]) == 401
        episode = f"/envs/counter/episodes/{mine['episode']}"
        control = [
            ("GET", "/"),
            ("GET", "/envs"),
            ("POST", "/envs/counter/episodes"),
            ("GET", episode),
            ("DELETE", episode),
        ]
        control += [("POST", f"{episode}/{verb}") for verb in ("fork", "finish")] + [("GET", f"{episode}/events")]
        for method, path in control:
            assert (await http.request(method, path, headers=agent)).status_code == 401, path
        assert (await stage.episodes.load(mine["episode"])).version == 5
        assert (await stage.episodes.load(other["episode"])).version == 0


@pytest.mark.anyio
async def test_an_episodes_token_does_not_open_another_environment(stage: Stage) -> None:
    worlds = stage.dream(), stage.dream(counter_spec("other"))
    async with stage.serve(*worlds, token="secret") as (url, http):
        known = {"Authorization": "Bearer secret"}
        mine = (await http.post("/envs/counter/episodes", json={}, headers=known)).json()
        assert await call(f"{url}/envs/counter/mcp", mine["token"]) == 200
        assert await call(f"{url}/envs/other/mcp", mine["token"]) == 401
        assert await call(f"{url}/envs/other/episodes/{mine['token']}/mcp", "none") == 401


@pytest.mark.anyio
async def test_an_episodes_token_is_valid_only_at_servers_with_the_same_token(stage: Stage) -> None:
    async with stage.serve(token="secret") as (_, http):
        made = (await http.post("/envs/counter/episodes", json={}, headers={"Authorization": "Bearer secret"})).json()
    path = urlsplit(made["mcp_url"]).path
    async with stage.serve(token="secret") as (url, _):
        assert await call(url + path, made["token"]) == 200
    async with stage.serve(token="changed") as (url, _):
        assert await call(url + path, made["token"]) == 401


@pytest.mark.anyio
async def test_a_server_without_a_token_gives_episodes_no_token(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        assert "token" not in (await http.post("/envs/counter/episodes", json={})).json()


@pytest.mark.anyio
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Origin": "http://evil.example"}])
async def test_a_websocket_is_guarded_like_a_request(stage: Stage, headers: dict[str, str]) -> None:
    async with stage.serve(token="secret") as (url, _):
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws{url.removeprefix('http')}/envs/counter/episodes/x/mcp", additional_headers=headers)
    assert refused.value.response.status_code == (403 if "Origin" in headers else 401)


@pytest.mark.anyio
async def test_the_token_is_needed_to_play_and_not_for_the_health_check(stage: Stage) -> None:
    async with stage.serve(token="secret") as (url, http):
        assert (await http.get("/healthz")).status_code == 200
        async with httpx2.AsyncClient(base_url=url, headers={"Authorization": "Bearer secret"}) as known:
            made = (await known.post("/envs/counter/episodes", json={})).json()
            async with Client(streamable_http_client(made["mcp_url"], http_client=known)) as client:
                assert text_of(await client.call_tool("add", {"n": 1})) == "count 1"


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
        ({"host": "[::1].evil.example"}, 421),
        ({"host": "[localhost]"}, 421),
        ({"host": "localhost:80@evil.example"}, 421),
        ({"origin": "http://[::1].evil"}, 403),
        ({"origin": "chrome-extension://localhost"}, 403),
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
    async with stage.serve(hosts={"Gym.example"}) as (_, http):
        for host in ("gym.example", "Gym.example"):
            assert (await http.get("/envs", headers={"host": host})).status_code == 200
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
    monkeypatch.setenv("DREAMGYM_TOKEN", "a-token-from-the-environment")
    (tmp_path / "token").write_text("a-token-from-a-file\n")
    (tmp_path / "empty").write_text("\n")
    assert read_token(None) == "a-token-from-the-environment"
    assert read_token(tmp_path / "token") == "a-token-from-a-file"
    with pytest.raises(InvalidInput, match="is empty"):
        read_token(tmp_path / "empty")
    with pytest.raises(InvalidInput, match="No such file"):
        read_token(tmp_path / "none")


@pytest.mark.parametrize("token", ["x", " ", "fifteen letters", "sixteen and mörè", "with\x07a control character"])
def test_a_token_that_can_be_guessed_or_not_be_sent_is_refused(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("DREAMGYM_TOKEN", token)
    with pytest.raises(InvalidInput, match="expected 16 or more printable ASCII characters"):
        read_token(None)


@pytest.mark.anyio
async def test_the_name_of_the_scheme_is_case_insensitive(stage: Stage) -> None:
    async with stage.serve(token="secret") as (_, http):
        assert (await http.get("/envs", headers={"authorization": "bearer secret"})).status_code == 200


@pytest.mark.anyio
async def test_only_the_servers_token_gets_reward_and_end(stage: Stage) -> None:
    async with stage.serve(token="secret") as (_, http):
        made = (await http.post("/envs/counter/episodes", json={}, headers={"Authorization": "Bearer secret"})).json()
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", "arguments": {"n": 1}}}
        asking = {"accept": "application/json", "X-DreamGym-Tell": "reward"}
        agent = await http.post(made["mcp_url"], json=body, headers=asking)
        trainer = await http.post(
            f"/envs/counter/episodes/{made['episode']}/mcp",
            json=body,
            headers={**asking, "Authorization": "Bearer secret"},
        )
    told = {"dreamgym/reward": 0, "dreamgym/terminated": False, "dreamgym/truncated": False}
    assert told.keys().isdisjoint(agent.json()["result"]["_meta"])
    assert told.items() <= trainer.json()["result"]["_meta"].items()
