"""Servers that die, hang, send garbage or change: each fault gives one clear message, and good calls stay recorded."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from dreamgym_server.recorder import child, http_to_http, http_to_stdio
from dreamgym_server.running import running
from pydantic import JsonValue
from recorder_stage import BIN, HANDSHAKE, INITIALIZED, ODD, RawHttp, call, events, raw_stdio, recording, request
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from dreamgym.recordings.log import Exchange, Loss
from dreamgym.types import JsonObject

pytestmark = pytest.mark.anyio


def record(out: Path, *options: str) -> list[str]:
    return [str(BIN / "dreamgym"), "record", "odd", "--out", str(out), "--run", "r", *options]


def on_disk(out: Path) -> tuple[list[JsonValue], list[str]]:
    """The names of the recorded tool calls, and the reasons of the losses."""
    read = events(out / "recordings", "r")
    calls = [event.params["name"] for event in read if isinstance(event, Exchange) and event.method == "tools/call"]
    return calls, [event.reason for event in read if isinstance(event, Loss)]


async def test_over_stdio_the_recorder_ends_with_the_exit_code_of_a_server_that_dies(tmp_path: Path) -> None:
    async with raw_stdio(record(tmp_path, "--", *ODD)) as server:
        await server.shake_hands()
        await server.ask(call("count", 1))
        await server.send(call("die", 2))
        assert await server.line() == b""
        _, said = await server.leave()
        assert server.process.returncode == 3
    assert on_disk(tmp_path) == (
        ["count"],
        ["the server ended with exit code 3", "tools/call 'die' has no answer: the server ended with exit code 3"],
    )
    assert b"dreamgym record: r: the server ended with exit code 3\n" in said


async def test_over_http_open_calls_of_a_server_that_dies_get_an_error_and_a_new_handshake_restarts_it(
    tmp_path: Path,
) -> None:
    async with recording(ODD, tmp_path) as recorder:
        client = recorder.client("r")
        await client.shake_hands()
        await client.ask(call("count", 1))
        hanging = asyncio.create_task(client.ask(call("hang", 2)))
        died = await client.ask(call("die", 3))
        after = [await hanging, await client.ask(call("count", 4))]
        again = recorder.client("r")
        await again.shake_hands()
        counted = await again.ask(call("count", 1))
    closed = {"code": -32000, "message": "Connection closed: the server ended with exit code 3"}
    assert [answer["error"] for answer in (died, *after)] == [closed] * 3
    assert counted["result"]["structuredContent"] == {"value": 1}
    assert [exchange.params["name"] for exchange in recorder.calls("r")] == ["count", "count"]
    assert len({exchange.session for exchange in recorder.calls("r")}) == 2
    assert sorted(recorder.losses("r")) == [
        "tools/call 'die' has no answer: the server ended with exit code 3",
        "tools/call 'hang' has no answer: the server ended with exit code 3",
    ]


@pytest.mark.parametrize(
    "broken",
    [
        {"jsonrpc": "1.0"},
        {"jsonrpc": None},
        {"id": None},
        {"id": True},
        {"id": [1]},
        {"method": 7},
        {"params": "none"},
        {"params": None},
    ],
    ids=str,
)
async def test_a_message_that_a_stdio_server_would_not_answer_is_refused_and_blocks_nobody(
    tmp_path: Path, broken: JsonObject
) -> None:
    async with recording(ODD, tmp_path) as recorder:
        status, said = await recorder.client("r").post({**HANDSHAKE, **broken})
        assert status == 400
        assert b"JSON-RPC 2.0" in said
        client = recorder.client("r")
        await client.shake_hands()
        assert "result" in await client.ask(call("count", 1))


async def test_a_call_that_hangs_is_reported_when_the_agent_cancels_it_or_leaves(tmp_path: Path) -> None:
    async with raw_stdio(record(tmp_path, "--", *ODD)) as server:
        await server.shake_hands()
        await server.send(call("hang", 1))
        cancelled: JsonObject = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        await server.send(cancelled)
        await server.ask(call("count", 2))
        await server.send(call("hang", 3))
        await server.leave()
    assert on_disk(tmp_path) == (
        ["count"],
        [
            "tools/call 'hang' has no answer: the agent cancelled it",
            "tools/call 'hang' has no answer: the agent left",
        ],
    )


async def test_a_call_that_the_end_of_the_recording_cuts_off_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dreamgym_server.running.GRACE_S", 0)
    async with aiohttp.ClientSession() as http:
        async with recording(ODD, tmp_path) as recorder:
            client = RawHttp(http, recorder.client("r").url)
            await client.shake_hands()
            hanging = asyncio.create_task(client.post(call("hang", 1)))
            for number in range(2, 5):  # the server takes one call after the other
                await client.ask(call("count", number))
        status, said = await hanging
    assert status == 503
    assert b"the recording has ended, and the server had not answered yet" in said


async def test_a_stream_that_the_end_of_the_recording_cuts_off_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dreamgym_server.running.GRACE_S", 0)
    async with aiohttp.ClientSession() as http:
        async with recording(ODD, tmp_path) as recorder:
            client = RawHttp(http, recorder.client("r").url)
            await client.shake_hands()
            stream = await http.post(client.url, json=call("ask", 1), headers=client.headers)
        assert b"elicitation/create" in await stream.read()


async def test_over_stdio_garbage_is_passed_on_and_reported_and_the_rest_is_recorded(tmp_path: Path) -> None:
    async with raw_stdio(record(tmp_path, "--", *ODD)) as server:
        await server.shake_hands()
        await server.send(call("garbage", 1))
        lines = [await server.line(), await server.line()]
        await server.leave()
    assert lines[0] == b"Debug: the cat sat on the mat\n"
    assert on_disk(tmp_path) == (
        ["garbage"],
        ["the server sent something other than JSON-RPC; it was passed on and is not recorded"],
    )


DEEP = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    deep = "[" * asked["params"]["arguments"]["depth"]
    answer = {"jsonrpc": "2.0", "id": asked["id"], "result": {"id": 7, "structuredContent": {"a": "DEEP"}}}
    print(json.dumps(answer).replace('"DEEP"', deep + "]" * len(deep)), flush=True)
"""


async def test_an_answer_that_is_nested_too_deeply_is_an_error_for_its_call_alone(tmp_path: Path) -> None:
    async with recording([sys.executable, "-c", DEEP], tmp_path) as recorder:
        client = recorder.client("r")
        # from about 980 levels on it cannot be written, and a little later it cannot be read either
        for depth in (10, *range(940, 1000), 100_000):
            answered = await client.ask(call("f", 7, depth=depth))
            assert answered["id"] == 7
        assert answered["error"]["message"] == "the server's answer is nested too deeply to be passed on"
        assert "result" in await client.ask(call("f", 8, depth=10))


UNREADABLE = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    said = {"7": b"7" * 5000, "é": b'"\\xe9"'}[asked["params"]["arguments"]["of"]]
    os.write(1, b'{"jsonrpc":"2.0","id":%d,"result":{"content":[],"a":%s}}\\n' % (asked["id"], said))
"""


@pytest.mark.parametrize("of", ["7", "é"])
async def test_an_answer_that_cannot_be_read_is_an_error_for_its_call(of: str, tmp_path: Path) -> None:
    async with recording([sys.executable, "-c", UNREADABLE], tmp_path) as recorder:
        answered = await recorder.client("r").ask(call("f", 7, of=of))
    assert answered["id"] == 7
    assert answered["error"]["message"] == (
        "the server's answer cannot be passed on: it has a number of too many digits or is not UTF-8"
    )


async def test_half_a_surrogate_pair_passes_as_valid_json_and_is_recorded(tmp_path: Path) -> None:
    echo = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": asked["params"]["arguments"]}), flush=True)
"""
    async with recording([sys.executable, "-c", echo], tmp_path) as recorder:
        _, body = await recorder.client("r").post(call("f", 7, text="cut emoji \ud83d here"))
        await recorder.seen()
    assert b"cut emoji \\ud83d here" in body
    assert [exchange.result for exchange in recorder.calls("r")] == [{"text": "cut emoji ? here"}]


async def test_a_line_that_is_longer_than_the_bound_ends_the_server_and_its_open_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "MAX_LINE_BYTES", 2**16)
    async with recording([sys.executable, "-c", DEEP], tmp_path) as recorder:
        answered = await recorder.client("r").ask(call("f", 7, depth=2**17))
    assert answered["error"]["message"].startswith("Connection closed: the server wrote a line of more than")


async def test_a_line_on_stderr_that_is_longer_than_the_bound_is_left_out_and_the_server_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "MAX_STDERR_LINE_BYTES", 2**16)
    async with recording(ODD, tmp_path) as recorder:
        client = recorder.client("r")
        await client.shake_hands()
        for text in ("long " * 2**16, "long " * 2**16, "short"):
            assert "result" in await client.ask(call("mutter", 1, text=text))
        said = recorder.said
    assert [line for line in said if line.startswith("server")] == [f"server | {child.TOO_LONG_LINE}"] * 2 + [
        "server | short"
    ]


async def test_a_tool_list_that_changes_is_recorded_as_it_was_each_time(tmp_path: Path) -> None:
    async with recording(ODD, tmp_path) as recorder:
        client = recorder.client("r")
        await client.shake_hands()
        for number in range(0, 9, 3):
            for message in (request("tools/list", number), request("tools/list", number + 1), call("grow", number + 2)):
                await client.ask(message)
    listings = [
        len(event.result["tools"])  # type: ignore[arg-type, index]
        for event in recorder.events("r")
        if isinstance(event, Exchange) and event.method == "tools/list"
    ]
    assert listings == [10, 11, 12]


async def test_a_command_that_cannot_be_started_is_reported_to_the_agent(tmp_path: Path) -> None:
    script = tmp_path / "server"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o700)
    async with recording([str(script)], tmp_path) as recorder:
        status, body = await recorder.client("r").post(request("initialize", 1))
    assert status == 502
    assert b"the server could not be started: No such file or directory" in body
    assert recorder.losses("r") == ["the server could not be started: No such file or directory"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_an_unreachable_http_server_gives_an_error_with_the_id_of_the_request(tmp_path: Path) -> None:
    port = free_port()
    async with recording(f"http://127.0.0.1:{port}/mcp", tmp_path) as recorder:
        answer = await recorder.client("r").ask(call("count", 7))
    assert answer["id"] == 7
    told = f"the server 127.0.0.1:{port} cannot be reached or closed the connection"
    assert answer["error"]["message"].startswith(told)
    assert recorder.losses("r") == [f"tools/call 'count' has no answer: {answer['error']['message']}"]


async def test_over_stdio_an_unreachable_http_server_gives_an_error_and_exit_code_1(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/mcp"
    async with raw_stdio(record(tmp_path, "--upstream", url)) as server:
        answer = await server.ask(request("initialize", 7))
        _, said = await server.leave()
    assert answer["id"] == 7
    assert (
        answer["error"]["message"]
        == "Connection closed: the server cannot be reached or closed the connection: ConnectError"
    )
    assert server.process.returncode == 1
    assert b"Traceback" not in said


async def test_over_stdio_a_message_with_half_an_emoji_is_refused_with_its_id_and_a_long_one_is_read_at_once(
    tmp_path: Path,
) -> None:
    url = f"http://127.0.0.1:{free_port()}/mcp"
    async with raw_stdio(record(tmp_path, "--upstream", url)) as server:
        halved = await server.ask(call("count", 7, text="\ud83d"))
        nameless = await server.ask({**call("count", 7), "id": "\ud83d"})
        long = await server.ask(call("count", 8, text="a" * 8_000_000))
        await server.leave()
    assert halved["id"] == 7
    assert "half of a surrogate pair" in halved["error"]["message"]
    assert nameless["id"] is None
    assert long["id"] == 8


@asynccontextmanager
async def failing_server() -> AsyncIterator[str]:
    """An HTTP server whose endpoints fail in different ways; yields its URL."""

    async def breaks_off(request: Request) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            yield b'event: message\ndata: {"jsonrpc":"2.0","method":"notifications/message","params":{}}\n\n'
            yield b'event: message\ndata: {"jsonrpc":"2.0","id":1,"res'
            raise ConnectionResetError

        return StreamingResponse(chunks(), media_type="text/event-stream")

    async def proxy_error(request: Request) -> Response:
        return PlainTextResponse("<html>Bad gateway for hunter2</html>", 502, media_type="text/html")

    async def never(request: Request) -> Response:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        return Response()

    async def moved(request: Request) -> Response:
        return Response(status_code=307, headers={"location": "/there/"})

    async def elsewhere(request: Request) -> Response:
        return Response(status_code=int(request.query_params["status"]), headers={"location": "https://localhost/mcp"})

    async def astray(request: Request) -> Response:
        return Response("gone", status_code=307, headers={"location": "http://[there"})

    async def forgets(request: Request) -> Response:
        error = '{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"Session not found"}}'
        return Response(error, 404, media_type="application/json")

    async def endless(request: Request) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            yield b'event: message\ndata: {"jsonrpc":"2.0","id":1,"result":{"a":"'
            while not await request.is_disconnected():
                yield b"x" * 1024

        return StreamingResponse(chunks(), media_type=request.query_params["type"])

    async def there(request: Request) -> Response:
        return Response('{"jsonrpc":"2.0","id":1,"result":{"content":[]}}', media_type="application/json")

    routes = [
        Route(f"/{endpoint.__name__}", endpoint, methods=["POST"])
        for endpoint in (breaks_off, proxy_error, never, moved, elsewhere, astray, forgets, endless)
    ]
    async with running(Starlette(routes=[*routes, Route("/there/", there, methods=["POST"])])) as url:
        yield url


async def test_an_answer_that_breaks_off_breaks_off_for_the_agent_too_and_is_a_loss(tmp_path: Path) -> None:
    async with failing_server() as url, recording(f"{url}/breaks_off", tmp_path) as recorder:
        with pytest.raises(aiohttp.ClientPayloadError):
            await recorder.client("r").post(call("count", 1))
    (cut, unanswered) = recorder.losses("r")
    assert cut.startswith("the last message was cut off: the server 127.0.0.1:")
    assert unanswered.startswith("tools/call 'count' has no answer")


async def test_an_answer_without_an_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_to_http, "MAX_MESSAGE_BYTES", 2**16)
    why = "the server sent a message of more than 65,536 bytes"
    async with failing_server() as url, recording(f"{url}/endless?type=application/json", tmp_path) as recorder:
        answer = await recorder.client("r").ask(call("count", 1))
    assert (answer["id"], answer["error"]["message"]) == (1, why)
    async with failing_server() as url, recording(f"{url}/endless?type=text/event-stream", tmp_path) as recorder:
        with pytest.raises(aiohttp.ClientPayloadError):
            await recorder.client("s").post(call("count", 1))
    unanswered = f"tools/call 'count' has no answer: {why}"
    assert recorder.losses("r") == [unanswered]
    assert recorder.losses("s") == [f"the last message was cut off: {why}", unanswered]


async def test_an_error_page_is_passed_on_and_not_recorded(tmp_path: Path) -> None:
    async with failing_server() as url, recording(f"{url}/proxy_error", tmp_path) as recorder:
        status, body = await recorder.client("r").post(call("count", 1))
    assert (status, body) == (502, b"<html>Bad gateway for hunter2</html>")
    assert recorder.losses("r") == [
        "the server sent an HTTP 502 without a JSON-RPC message; it was passed on and is not recorded",
        "tools/call 'count' has no answer: the server's response ended without it",
    ]
    assert "hunter2" not in (tmp_path / "r.jsonl").read_text()


async def test_an_agent_that_gives_up_on_an_http_server_is_reported(tmp_path: Path) -> None:
    async with failing_server() as url, recording(f"{url}/never", tmp_path) as recorder:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(recorder.client("r").post(call("count", 1)), 0.3)
    (reason,) = recorder.losses("r")
    assert reason.startswith("tools/call 'count' has no answer: the agent gave up after 0.")


async def test_a_redirect_within_the_server_is_followed_so_that_the_agent_stays_with_the_recorder(
    tmp_path: Path,
) -> None:
    async with failing_server() as url, recording(f"{url}/moved", tmp_path) as recorder:
        answer = await recorder.client("r").ask(call("count", 1))
    assert answer["result"] == {"content": []}
    assert len(recorder.calls("r")) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_another_server_is_refused_with_what_to_do(status: int, tmp_path: Path) -> None:
    async with failing_server() as url, recording(f"{url}/elsewhere?status={status}", tmp_path) as recorder:
        given, body = await recorder.client("r").post(call("count", 1))
    reason = "the server redirects to https://localhost: give --upstream its address there"
    assert (given, json.loads(body)["error"]["message"]) == (502, reason)
    assert recorder.losses("r") == [f"tools/call 'count' has no answer: {reason}"]


async def test_a_redirect_to_something_that_is_not_a_url_is_passed_on(tmp_path: Path) -> None:
    async with failing_server() as url, recording(f"{url}/astray", tmp_path) as recorder:
        ours = f"{recorder.url}/record/r/mcp"
        async with recorder.http.post(ours, json=call("count", 1), allow_redirects=False) as answer:
            assert (answer.status, await answer.read()) == (307, b"gone")


@pytest.mark.parametrize("session", ["one", None])
async def test_the_answer_to_a_session_that_has_ended_is_passed_on_and_is_not_the_answer_of_the_tool(
    session: str | None, tmp_path: Path
) -> None:
    headers = {"mcp-session-id": session} if session else {}
    async with failing_server() as url, recording(f"{url}/forgets", tmp_path) as recorder:
        status, body = await recorder.client("r", **headers).post(call("count", 1))
    assert (status, b"Session not found" in body) == (404, True)
    assert len(recorder.calls("r")) == (0 if session else 1)
    ended = "tools/call 'count' has no answer: the server has ended the session (HTTP 404)"
    assert recorder.losses("r") == ([ended] if session else [])


async def test_an_invalid_message_is_refused_before_a_stdio_server_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_to_stdio, "MAX_SERVERS", 1)
    async with recording(ODD, tmp_path) as recorder:
        statuses = [(await recorder.client("a").post(body))[0] for body in (b"{", b"[]", b'"x"', b"[" * 100_000)]
        valid = [(await recorder.client(run).post(INITIALIZED))[0] for run in ("b", "a")]
    assert statuses == [400] * 4
    assert valid == [202, 503], "the only server that may run is that of the first valid message"


async def test_a_request_that_is_longer_than_the_bound_is_refused_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_to_http, "MAX_BODY_BYTES", 4096)
    async with recording(ODD, tmp_path) as recorder:
        client = recorder.client("r")
        await client.shake_hands()
        status, said = await client.post(b" " * 5000)
        after = await client.ask(call("count", 1))
    assert status == 413
    assert b"at most 4,096 bytes" in said
    assert "result" in after


async def test_servers_run_up_to_the_limit_and_a_finished_run_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_to_stdio, "MAX_SERVERS", 2)
    async with recording(ODD, tmp_path) as recorder:
        first, second = recorder.client("a"), recorder.client("b")
        for client in (first, second):
            await client.shake_hands()
        status, said = await recorder.client("c").post(request("initialize", 1, HANDSHAKE))
        assert status == 503
        assert b"finish one" in said
        async with recorder.http.post(f"{recorder.url}/record/a/finish", json={}) as finished:
            assert finished.status == 200
        assert (await recorder.client("c").shake_hands())["result"]
        left, going_on = await first.ask(call("count", 1)), await second.ask(call("count", 1))
    assert "error" in left, "the session of the finished run is open, but its process gave way"
    assert "result" in going_on
