"""The recorder changes, adds and hides nothing: both sides get the same messages as without it."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from dreamgym_server.running import running
from mcp import Client, StdioServerParameters
from mcp.client.context import ClientRequestContext
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ElicitRequestParams, ElicitResult
from recorder_stage import (
    BIN,
    ENVIRON,
    ODD,
    RawHttp,
    call,
    events,
    http_odd,
    node_server,
    raw_stdio,
    recording,
    request,
)

from dreamgym.recordings.log import Exchange

pytestmark = pytest.mark.anyio
LONG = pytest.mark.long

ODDITIES = [
    call("echo", 2, text="ünï\u2028 \U0001f600", number=0.1, big=2**70, nested={"b": [None, True], "a": {}}),
    call("count", 3),
    request("tools/list", 4),
    call("nope", 5, why="an unknown tool"),
    request("no/such/method", 6, {"z": 1, "a": 2}),
    call("garbage", 7),
]


def record(out: Path, *options: str) -> list[str]:
    """`dreamgym record` over stdio."""
    return [str(BIN / "dreamgym"), "record", "odd", "--out", str(out), *options]


async def test_over_stdio_the_agent_gets_exactly_the_bytes_of_the_server(tmp_path: Path) -> None:
    said = []
    for command in (ODD, record(tmp_path / "odd", "--run", "r", "--", *ODD)):
        async with raw_stdio(command) as server:
            await server.shake_hands()
            for message in ODDITIES:
                # the agent's messages have odd spacing, and the server repeats what it read
                await server.send(json.dumps(message, separators=(" , ", " : ")).encode() + b"\r\n")
            lines = [await server.line() for _ in range(len(ODDITIES) + 1)]
            rest, _ = await server.leave()
            said.append((lines, rest))
    assert said[0] == said[1]
    recorded = [event for event in events(tmp_path / "odd" / "recordings", "r") if isinstance(event, Exchange)]
    assert [event.method for event in recorded] == [
        "initialize",
        "tools/call",
        "tools/call",
        "tools/list",
        "tools/call",
        "no/such/method",
        "tools/call",
    ]
    answers = [json.loads(line) for line in said[0][0] if line.startswith(b"{")]
    assert [(event.result, event.error) for event in recorded[1:]] == [
        (answer.get("result"), answer.get("error")) for answer in answers
    ]


async def test_http_in_front_of_stdio_keeps_every_field_and_the_order_of_keys(tmp_path: Path) -> None:
    async with raw_stdio(ODD) as direct, recording(ODD, tmp_path) as recorder:
        client = recorder.client("r")
        assert await direct.shake_hands() == await client.shake_hands()
        for message in ODDITIES[:-1]:
            # json.dumps keeps the order of the keys
            assert json.dumps(await direct.ask(message)) == json.dumps(await client.ask(message))


async def test_over_http_bodies_go_both_ways_byte_for_byte(tmp_path: Path) -> None:
    async with http_odd() as url, recording(f"{url}/mcp?key=of-the-url", tmp_path) as recorder:
        client = recorder.client("r", **{"x-mine": "1", "authorization": "Bearer of-the-agent", "mcp-name": "a"})
        client.url += "?more=%2F1"
        sent = b'{"id":  1,"method":"tools/call" ,"params":{"name":"a"}}'
        status, body = await client.post(sent)
    seen = json.loads(body)["result"]
    assert status == 203
    assert body.startswith(b'{"id" : 1,\r\n "result": ')
    assert body.endswith(b',  "jsonrpc":"2.0"}')
    assert seen["body"].encode() == sent
    assert seen["query"] == "key=of-the-url&more=%2F1"
    expected = {"x-mine": "1", "authorization": "Bearer of-the-agent", "mcp-name": "a"}
    assert expected.items() <= seen["headers"].items()
    assert seen["headers"]["host"] == url.removeprefix("http://")
    assert client.headers["mcp-session-id"] == "s-1"


async def test_the_run_header_is_used_by_the_recorder_and_not_passed_on(tmp_path: Path) -> None:
    async with http_odd() as url, recording(f"{url}/mcp", tmp_path) as recorder:
        _, body = await recorder.client(**{"x-dreamgym-run": "named"}).post(call("a", 1))
    assert "x-dreamgym-run" not in json.loads(body)["result"]["headers"]
    assert len(recorder.calls("named")) == 1


async def test_an_event_stream_goes_through_byte_for_byte_and_is_recorded(tmp_path: Path) -> None:
    async with (
        http_odd() as url,
        recording(f"{url}/stream", tmp_path) as recorder,
        aiohttp.ClientSession() as http,
    ):
        direct = await RawHttp(http, f"{url}/stream").post(call("a", 1))
        through = await recorder.client("r").post(call("a", 1))
    assert direct == through
    assert [event.result for event in recorder.calls("r")] == [{}]


async def test_the_agents_capabilities_are_presented_to_the_server(tmp_path: Path) -> None:
    async with recording(ODD, tmp_path) as recorder:
        answer = await recorder.client("r").shake_hands()
    assert answer["result"]["capabilities"]["x-seen"] == {"elicitation": {}}


async def elicited(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="accept", content={"sure": True})


def sdk_server() -> MCPServer:
    """A server of the SDK with a tool that reports progress and a tool that fails."""
    server = MCPServer("sdk")

    @server.tool()
    async def work(context: Context, steps: int) -> str:
        for step in range(steps):
            await context.report_progress(step, steps, f"step {step}")
        return "worked"

    @server.tool()
    def fail(why: str) -> str:
        raise ValueError(why)

    return server


async def observed(client: Client) -> list[object]:
    """Everything that a client of the SDK can see of that server."""
    noted: list[object] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        noted.append((progress, total, message))

    listed = await client.list_tools()
    worked = await client.call_tool("work", {"steps": 3}, progress_callback=note)
    failed = await client.call_tool("fail", {"why": "because"})
    return [
        client.protocol_version,
        client.server_capabilities,
        *(answer.model_dump() for answer in (listed, worked, failed)),
        noted,
    ]


@pytest.mark.parametrize(
    ("mode", "front"),
    [("legacy", "http"), ("2026-07-28", "http"), ("2026-07-28", "stdio"), pytest.param("legacy", "stdio", marks=LONG)],
)
async def test_an_http_server_and_its_progress_look_the_same_in_both_protocol_eras(
    mode: Any, front: str, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(running(sdk_server().streamable_http_app()))
        between: str | StdioServerParameters
        if front == "http":
            recorder = await stack.enter_async_context(recording(f"{url}/mcp", tmp_path / "recordings"))
            between = f"{recorder.url}/record/r/mcp"
        else:
            command = record(tmp_path, "--run", "r", "--upstream", f"{url}/mcp")
            between = StdioServerParameters(command=command[0], args=command[1:], env=ENVIRON)
        seen = []
        for place in (f"{url}/mcp", between):
            async with Client(place, mode=mode) as client:
                seen.append(await observed(client))
    assert seen[0] == seen[1]
    assert len(seen[0][-1]) == 3  # type: ignore[arg-type]
    kept = [event for event in events(tmp_path / "recordings", "r") if isinstance(event, Exchange)]
    assert [event.method for event in kept if event.method == "tools/call"] == ["tools/call"] * 2
    assert {event.protocol for event in kept} == {seen[0][0]}


@pytest.mark.parametrize(
    ("mode", "front"),
    [("auto", "http"), ("legacy", "http"), ("auto", "stdio"), pytest.param("legacy", "stdio", marks=LONG)],
)
async def test_a_public_stdio_server_looks_the_same(mode: Any, front: str, tmp_path: Path) -> None:
    command = node_server("everything", "stdio")
    direct = StdioServerParameters(command=command[0], args=command[1:], env=ENVIRON)

    async def seen_of(place: Any) -> list[object]:
        async with Client(place, mode=mode, elicitation_callback=elicited) as client:
            return [
                client.server_info,
                client.instructions,
                client.server_capabilities,
                (await client.list_tools()).model_dump(),
                (await client.list_prompts()).model_dump(),
                (await client.list_resource_templates()).model_dump(),
                (await client.call_tool("get-tiny-image", {})).model_dump(),
                (await client.call_tool("get-structured-content", {"location": "Chicago"})).model_dump(),
                (await client.call_tool("get-sum", {"a": "x"})).model_dump(),
                (await client.call_tool("trigger-elicitation-request", {})).model_dump(),
            ]

    async with AsyncExitStack() as stack:
        if front == "http":
            recorder = await stack.enter_async_context(recording(command, tmp_path / "recordings"))
            between: Any = f"{recorder.url}/record/r/mcp"
        else:
            through = record(tmp_path, "--run", "r", "--", *command)
            between = StdioServerParameters(command=through[0], args=through[1:], env=ENVIRON)
        assert await seen_of(direct) == await seen_of(between)
    kept = [event for event in events(tmp_path / "recordings", "r") if isinstance(event, Exchange)]
    assert len([event for event in kept if event.method == "tools/call"]) == 4


async def test_over_http_a_server_can_ask_the_agent_and_gets_its_answer(tmp_path: Path) -> None:
    async with recording(ODD, tmp_path) as recorder:
        client = recorder.client("r")
        await client.shake_hands()
        body = json.dumps(call("ask", 1)).encode()
        async with client.http.post(client.url, data=body, headers=client.headers) as response:
            question = await next_event(response)
            assert question["method"] == "elicitation/create"
            status, _ = await client.post({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}})
            answer = await next_event(response)
    assert status == 202
    assert answer["result"]["structuredContent"] == {"value": {"action": "accept"}}
    assert [event.result for event in recorder.calls("r")] == [answer["result"]]


async def next_event(response: aiohttp.ClientResponse) -> Any:
    """The next message of an event stream."""
    async for line in response.content:
        if line.startswith(b"data: "):
            return json.loads(line[6:])
    raise AssertionError("the stream ended")
