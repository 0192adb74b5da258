"""The agent's door: answers to MCP clients of older and newer revisions, which must not reveal the reward."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest
from answers import meta_of, text_of
from dreamgym_server.doors import agent
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from server_stage import ADD_TOOL, BreakableStore, Stage, counter_spec, told

from dreamgym.errors import UnknownEpisode

pytestmark = pytest.mark.anyio

MODES = ["legacy", "auto", "2026-07-28"]
HANDSHAKE = {"mcp-protocol-version": "2025-11-25"}
MODERN = {"mcp-protocol-version": "2026-07-28"}
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


async def create(http: httpx2.AsyncClient, env: str = "counter", **order: Any) -> dict[str, Any]:
    """Create an episode and return the server's answer."""
    answer = await http.post(f"/envs/{env}/episodes", json=order)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def ask(
    http: httpx2.AsyncClient, url: str, method: str, params: dict[str, Any], headers: dict[str, str]
) -> httpx2.Response:
    """Send one raw JSON-RPC request."""
    if headers.get("mcp-protocol-version") == "2026-07-28":
        params = {**params, "_meta": ENVELOPE}
        headers = {**headers, "mcp-method": method, **({"mcp-name": params["name"]} if "name" in params else {})}
    return await http.post(
        url,
        json={"jsonrpc": "2.0", "id": 7, "method": method, "params": params},
        headers={"accept": "application/json, text/event-stream", **headers},
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["dream", "real"])
async def test_an_episode_is_played_to_its_end(stage: Stage, mode: str, kind: str) -> None:
    world = stage.dream() if kind == "dream" else stage.real()
    async with stage.serve(world) as (_, http):
        made = await create(http, task_id="counter-1")
        async with Client(made["mcp_url"], mode=mode) as client:
            first = await client.call_tool("add", {"n": 4})
            last = await client.call_tool("add", {"n": 5})
        state = (await http.get(f"/envs/counter/episodes/{made['episode']}")).json()
    assert made["observation"] == "count 1"
    assert [text_of(first), text_of(last)] == ["count 5", "count 10"]
    assert [state[key] for key in ("step", "reward", "terminated", "stop_reason")] == [2, 1.0, True, "terminated"]
    assert state["trajectory"]["source"] == ("synthetic" if kind == "dream" else "real")


CALL = {"name": "add", "arguments": {"n": 4}, "_meta": ENVELOPE}
REQUESTS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "a step": (CALL, {}),
    "a step told to a trainer": (CALL, {"x-dreamgym-tell": "reward"}),
    "no arguments": ({"name": "add", "_meta": ENVELOPE}, {}),
    "arguments off the schema": ({**CALL, "arguments": {"n": "four"}}, {}),
    "arguments that are a list": ({**CALL, "arguments": [4]}, {}),
    "a tool that there is not": ({**CALL, "name": "subtract"}, {"mcp-name": "subtract"}),
    "a name that is a number": ({**CALL, "name": 4}, {"mcp-name": "4"}),
    "another name in the header": (CALL, {"mcp-name": "subtract"}),
    "another method in the header": (CALL, {"mcp-method": "tools/list"}),
    "another revision in the header": (CALL, {"mcp-protocol-version": "2099-01-01"}),
    "no envelope": ({"name": "add", "arguments": {"n": 4}}, {}),
    "an envelope without capabilities": ({**CALL, "_meta": dict([*ENVELOPE.items()][:1])}, {}),
    "an answer that the client does not take": (CALL, {"accept": "text/html"}),
    "an answer of nearly that type": (CALL, {"accept": "application/json-seq"}),
    "an answer that the client would rather not": (CALL, {"accept": "text/html, application/json;q=0.5"}),
    "a body of another type, as a web page may send": (CALL, {"content-type": "text/plain"}),
    "a body with an encoding": (CALL, {"content-type": "application/json; charset=utf-8"}),
    "an episode of another name": (CALL, {"url": "/envs/counter/episodes/nobody/mcp"}),
    "no episode": (CALL, {"url": "/envs/counter/mcp"}),
}


@pytest.mark.parametrize("request_of", list(REQUESTS))
async def test_a_tool_call_of_the_newest_revision_is_answered_as_the_sdk_answers_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, request_of: str
) -> None:
    params, headers = REQUESTS[request_of]
    checked, taken = agent.plain_call, []

    def noted(*given: Any) -> Any:
        taken.append(checked(*given))
        return taken[-1]

    async def answered() -> list[tuple[int, dict[str, str], str]]:
        made = await create(http, task_id="counter-1")
        sent = {"accept": "application/json", "mcp-method": "tools/call", "mcp-name": "add", **MODERN, **headers}
        url = sent.pop("url", made["mcp_url"])
        found = []
        for number in range(3):  # the third comes after the end of an episode that takes two steps
            body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
            answer = await http.post(url, json=body, headers=sent)
            told = {name: value for name, value in answer.headers.items() if name != "date"}
            found.append((answer.status_code, told, answer.text.replace(made["episode"], "EPISODE")))
        return found

    async with stage.serve() as (_, http):
        monkeypatch.setattr(agent, "plain_call", noted)
        ours = await answered()
        monkeypatch.setattr(agent, "plain_call", lambda *_: None)
        theirs = await answered()
    assert ours == theirs
    if request_of == "a step":
        assert all(call is not None for call in taken)
        assert [json.loads(text)["id"] for _, _, text in ours] == [0, 1, 2]


async def test_a_routing_header_that_comes_twice_is_refused_and_takes_no_step(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        made = await create(http)
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": CALL}
        named = [("mcp-name", "add"), ("mcp-name", "subtract"), ("mcp-method", "tools/call"), *MODERN.items()]
        answer = await http.post(made["mcp_url"], json=body, headers=[("accept", "application/json"), *named])
        state = (await http.get(f"/envs/counter/episodes/{made['episode']}")).json()
    assert answer.status_code == 400
    assert "more than once" in answer.text
    assert state["step"] == 0


@pytest.mark.parametrize("headers", [HANDSHAKE, MODERN])
async def test_the_tool_listing_is_the_recorded_one_byte_for_byte(stage: Stage, headers: dict[str, str]) -> None:
    async with stage.serve() as (_, http):
        made = await create(http)
        listed = (await ask(http, made["mcp_url"], "tools/list", {}, headers)).text
    recorded = json.dumps(counter_spec().tools_list[0]["tools"], separators=(",", ":"))
    assert f'"tools":{recorded}' in listed
    assert '"vendorNote":"kept"' in listed


async def test_a_listing_has_one_page_and_refuses_a_cursor(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        made = await create(http)
        answer = (await ask(http, made["mcp_url"], "tools/list", {"cursor": "x"}, HANDSHAKE)).json()
    assert answer["error"]["code"] == -32602


@pytest.mark.parametrize("mode", MODES)
async def test_the_server_presents_itself_as_the_environment(stage: Stage, mode: str) -> None:
    async with stage.serve(stage.dream(), stage.dream(counter_spec("other"))) as (_, http):
        made = await create(http, "other")
        async with Client(made["mcp_url"], mode=mode) as client:
            await client.list_tools()
            listed = await client.call_tool("peek", {})
            if mode != "2026-07-28":  # that mode never asks who the server is
                assert client.server_info is not None
                assert client.server_info.name == "other"
    if mode != "legacy":
        assert meta_of(listed)["io.modelcontextprotocol/serverInfo"]["name"] == "other"


@pytest.mark.parametrize("mode", MODES)
async def test_the_agent_sees_the_real_tools_and_no_reward(stage: Stage, mode: str) -> None:
    async with stage.serve() as (_, http):
        made = await create(http)
        async with told(made["mcp_url"], mode=mode) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            result = await client.call_tool("add", {"n": 10})
            assert client.server_capabilities.prompts is None
            assert client.server_capabilities.resources is None
    assert names == ["add", "peek"]
    assert text_of(result) == "count 10"
    assert result.structured_content is None
    assert meta_of(result)["dreamgym/reward"] == 1.0
    assert "reward" not in json.dumps([block.model_dump() for block in result.content])


async def test_an_answer_to_an_agent_contains_neither_reward_nor_end(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        made = await create(http)
        answer = await ask(http, made["mcp_url"], "tools/call", {"name": "add", "arguments": {"n": 10}}, MODERN)
    assert "reward" not in answer.text
    assert "terminated" not in answer.text


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "'n' is a required property"),
        ({"n": "four"}, "n: 'four' is not of type 'integer'"),
        ({"n": -1}, "n: -1 is less than the minimum of 0"),
        ({"n": 1, "m": 2}, "'m' was unexpected"),
        ({"n": 1, "a": "x" * 70_000}, "the arguments exceed 65536 bytes"),
    ],
)
async def test_arguments_that_violate_the_schema_are_a_tool_error_before_any_model_is_asked(
    stage: Stage, arguments: dict[str, Any], named: str
) -> None:
    async with stage.serve() as (_, http):
        made = await create(http)
        async with Client(made["mcp_url"]) as client:
            result = await client.call_tool("add", arguments)
        state = (await http.get(f"/envs/counter/episodes/{made['episode']}")).json()
    assert result.is_error
    assert named in text_of(result)
    assert text_of(result).startswith("Input validation error")
    assert stage.model.asked == []
    assert state["step"] == 0


async def test_arguments_nested_too_deep_are_refused_and_harm_nothing(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        made = await create(http)
        deep = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"peek","arguments":{"a":%s}}}' % (
            "[" * 20_000 + "]" * 20_000
        )
        answer = await http.post(
            made["mcp_url"], content=deep, headers={"accept": "application/json", "content-type": "application/json"}
        )
        async with Client(made["mcp_url"]) as client:
            after = await client.call_tool("add", {"n": 1})
    assert answer.status_code in {200, 400}
    assert "error" in answer.text.lower()
    assert meta_of(after)["dreamgym/step"] == 1


@pytest.mark.parametrize("mode", MODES)
async def test_an_unknown_tool_is_a_tool_error_and_not_a_step(stage: Stage, mode: str) -> None:
    async with stage.serve() as (_, http):
        made = await create(http)
        async with Client(made["mcp_url"], mode=mode) as client:
            result = await client.call_tool("nope", {})
    assert result.is_error
    assert text_of(result) == "MCP error -32602: Tool nope not found"
    assert meta_of(result)["dreamgym/step"] == 0


@pytest.mark.parametrize("mode", MODES)
async def test_a_finished_episode_refuses_another_call(stage: Stage, mode: str) -> None:
    async with stage.serve() as (_, http):
        made = await create(http)
        async with told(made["mcp_url"], mode=mode) as client:
            await client.call_tool("add", {"n": 10})
            again = await client.call_tool("add", {"n": 1})
        state = (await http.get(f"/envs/counter/episodes/{made['episode']}")).json()
    assert again.is_error
    assert text_of(again) == "The session has ended."
    assert meta_of(again)["dreamgym/terminated"] is True
    assert "dreamgym/reward" not in meta_of(again)
    assert state["step"] == 1


@pytest.mark.parametrize("headers", [HANDSHAKE, MODERN])
async def test_an_unknown_episode_is_not_found(stage: Stage, headers: dict[str, str]) -> None:
    async with stage.serve() as (_, http):
        answer = await ask(http, "/envs/counter/episodes/nope/mcp", "tools/call", {"name": "peek"}, headers)
    assert answer.status_code == 404
    assert "unknown episode 'nope': it was closed, expired, or never started" in answer.text


async def test_an_episode_of_another_environment_is_unknown_here(stage: Stage) -> None:
    async with stage.serve(stage.dream(), stage.dream(counter_spec("other"))) as (_, http):
        made = await create(http, "other")
        path = f"/envs/counter/episodes/{made['episode']}"
        call = await ask(http, f"{path}/mcp", "tools/call", {"name": "peek"}, HANDSHAKE)
        assert [call.status_code, (await http.get(path)).status_code] == [404, 404]


async def test_an_unknown_environment_is_not_found_and_the_others_are_listed(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        answer = await ask(http, "/envs/nope/mcp", "tools/list", {}, HANDSHAKE)
    assert answer.status_code == 404
    assert answer.json() == {"error": "unknown environment 'nope': expected one of counter"}


async def test_a_stream_or_a_deletion_at_an_episodes_url_is_not_allowed(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        made = await create(http)
        statuses = [(await http.request(verb, made["mcp_url"])).status_code for verb in ("GET", "DELETE")]
    assert statuses == [405, 405]


@pytest.mark.parametrize("mode", MODES)
async def test_the_episode_header_names_the_episode_at_the_bare_url(stage: Stage, mode: str) -> None:
    async with stage.serve() as (url, http):
        made = await create(http, task_id="counter-2")
        async with httpx2.AsyncClient(headers={"X-DreamGym-Episode": made["episode"]}) as named:
            for expected in ("count 4", "count 6"):  # one session per call, as some clients do
                transport = streamable_http_client(f"{url}/envs/counter/mcp", http_client=named)
                async with Client(transport, mode=mode) as client:
                    assert text_of(await client.call_tool("add", {"n": 2})) == expected


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_bare_url_gives_each_session_an_episode_of_the_first_task(stage: Stage, mode: str) -> None:
    async def life(url: str, n: int) -> list[str]:
        async with Client(f"{url}/envs/counter/mcp", mode=mode) as client:
            return [text_of(await client.call_tool("add", {"n": n})) for _ in range(3)]

    async with stage.serve() as (url, _):
        lives = await asyncio.gather(*(life(url, n) for n in (1, 2)))
    assert lives == [["count 1", "count 2", "count 3"], ["count 2", "count 4", "count 6"]]


async def test_a_client_without_a_handshake_is_refused_at_the_bare_url(stage: Stage) -> None:
    async with stage.serve() as (url, http):
        answer = await ask(http, "/envs/counter/mcp", "tools/call", {"name": "peek"}, MODERN)
        async with Client(f"{url}/envs/counter/mcp", mode="2026-07-28") as client:
            with pytest.raises(MCPError, match="this URL contains no episode"):
                await client.call_tool("add", {"n": 1})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == -32022
    assert "2025-11-25" in answer.json()["error"]["data"]["supported"]


@pytest.mark.parametrize("plays", [True, False])
async def test_a_deleted_session_is_not_found_even_after_a_restart_if_it_had_played(stage: Stage, plays: bool) -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    call = ("tools/call", {"name": "add", "arguments": {"n": 1}})
    async with stage.serve() as (_, http):
        opened = await ask(http, "/envs/counter/mcp", "initialize", hello, {})
        session = {"mcp-session-id": opened.headers["mcp-session-id"], **HANDSHAKE}
        if plays:
            assert (await ask(http, "/envs/counter/mcp", *call, session)).status_code == 200
        assert (await http.delete("/envs/counter/mcp", headers=session)).status_code == 200
        assert (await ask(http, "/envs/counter/mcp", "tools/list", {}, session)).status_code == 404
        assert (await ask(http, "/envs/counter/mcp", *call, session)).status_code == 404
    async with stage.serve() as (_, http):
        assert (await ask(http, "/envs/counter/mcp", *call, session)).status_code == (404 if plays else 200)


async def test_a_session_that_is_invented_and_deleted_creates_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dreamgym_server.doors.agent.REMEMBERED_SESSIONS", 2)
    sessions = [f"session-{number:032x}" for number in range(3)]
    async with stage.serve() as (_, http):
        deleted = [await http.delete("/envs/counter/mcp", headers={"mcp-session-id": name}) for name in sessions]
        listed = [
            (await ask(http, "/envs/counter/mcp", "tools/list", {}, {"mcp-session-id": name, **HANDSHAKE})).status_code
            for name in sessions
        ]
    assert [answer.status_code for answer in deleted] == [200] * 3
    assert listed == [200, 404, 404], "the server remembers only the last two deleted sessions"
    for name in sessions:
        with pytest.raises(UnknownEpisode):
            await stage.episodes.load(name)


async def test_a_session_that_was_never_opened_is_not_found(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        call = {"name": "add", "arguments": {"n": 1}}
        invented = await ask(http, "/envs/counter/mcp", "tools/call", call, {"mcp-session-id": "x", **HANDSHAKE})
        none = await ask(http, "/envs/counter/mcp", "tools/call", call, HANDSHAKE)
    assert [invented.status_code, none.status_code] == [404, 404]


async def test_sixteen_parallel_episodes_keep_their_states_apart(stage: Stage) -> None:
    async def play(http: httpx2.AsyncClient, number: int) -> tuple[list[str], dict[str, Any]]:
        made = await create(http, task_id=f"counter-{number % 3}")
        async with Client(made["mcp_url"], mode=MODES[number % 3]) as client:
            seen = [text_of(await client.call_tool("add", {"n": 1})) for _ in range(number % 5)]
        return seen, (await http.get(f"/envs/counter/episodes/{made['episode']}")).json()

    async with stage.serve(stage.dream()) as (_, http):
        played = await asyncio.gather(*(play(http, number) for number in range(16)))
    for number, (seen, state) in enumerate(played):
        assert seen == [f"count {number % 3 + step}" for step in range(1, number % 5 + 1)]
        assert state["step"] == number % 5


async def test_neither_a_handshake_nor_a_listing_asks_the_database(stage: Stage) -> None:
    async with stage.serve() as (url, _):
        assert isinstance(stage.episodes, BreakableStore)
        stage.episodes.broken = True
        async with Client(f"{url}/envs/counter/mcp", mode="legacy") as client:
            assert (await client.list_tools()).tools[0].name == ADD_TOOL["name"]
