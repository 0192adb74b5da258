"""The recorder assigns each call to a run, and decides when a run ends."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from dreamgym_server.recorder.http_to_http import until_left
from dreamgym_server.recorder.runs import Runs, checked
from dreamgym_server.recorder.writer import append_event
from dreamgym_server.running import running
from recorder_stage import ODD, call, recording
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from dreamgym.errors import InvalidInput
from dreamgym.recordings.folder.runs import read_runs
from dreamgym.types import JsonObject

pytestmark = pytest.mark.anyio


class Clock:
    """A clock that moves only when a test moves it."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_calls_at_the_bare_url_belong_to_one_run_until_it_was_silent_for_the_idle_time(tmp_path: Path) -> None:
    clock = Clock()
    runs = Runs(tmp_path, idle_s=60, clock=clock)
    first = runs.current
    for _ in range(5):
        with runs.asking(runs.current):
            clock.now += 59
        clock.now += 59
    assert runs.current == first
    clock.now += 2
    assert runs.current != first


def test_a_run_is_not_idle_while_a_call_is_under_way(tmp_path: Path) -> None:
    clock = Clock()
    runs = Runs(tmp_path, idle_s=60, clock=clock)
    first = runs.current
    with runs.asking(first):
        pass
    with runs.asking(first):
        clock.now += 600
        assert runs.current == first


@asynccontextmanager
async def hanging_server(hangs: asyncio.Event, *, streams: bool) -> AsyncIterator[str]:
    """URL of an HTTP server that answers `count` and never `hang`, whose response it may begin."""

    async def answer(request: Request) -> Response:
        asked = await request.json()
        if "id" not in asked:
            return Response(status_code=202)
        if asked["method"] == "initialize":
            begun = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {}})
            return Response(begun, headers={"mcp-session-id": str(uuid4())})
        if asked["params"]["name"] == "count":
            return Response(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {"content": []}}))

        async def silence() -> AsyncIterator[bytes]:
            yield b": wait\n\n"
            await until_left(request.receive)

        hangs.set()
        if streams:
            return StreamingResponse(silence(), media_type="text/event-stream")
        await until_left(request.receive)
        return Response()

    async with running(Starlette(routes=[Route("/mcp", answer, methods=["POST"])])) as url:
        yield f"{url}/mcp"


@pytest.mark.parametrize("front", ["stdio", "http", "http stream"])
async def test_a_cancelled_call_ends_and_does_not_keep_its_run_open(front: str, tmp_path: Path) -> None:
    clock, hangs = Clock(), asyncio.Event()
    async with AsyncExitStack() as stack:
        http = hanging_server(hangs, streams="stream" in front)
        upstream = ODD if front == "stdio" else await stack.enter_async_context(http)
        recorder = await stack.enter_async_context(recording(upstream, tmp_path, idle_s=300, clock=clock))
        client = recorder.client()
        await client.shake_hands()
        hanging = asyncio.create_task(client.post(call("hang", 1)))
        if front == "stdio":
            for number in range(2, 5):  # the server takes one call after the other
                await client.ask(call("count", number))
        else:
            await hangs.wait()
        await client.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        await hanging
        await client.ask(call("count", 5))
        async with recorder.http.get(recorder.url):  # by its answer, the request before it is over
            clock.now += 301
        other = recorder.client()
        await other.shake_hands()
        await other.ask(call("count", 1))
        runs = await recorder.seen()
        assert len(runs) == 2
        assert recorder.losses(runs[0]) == ["tools/call 'hang' has no answer: the agent cancelled it"]


async def test_a_cancellation_does_not_end_the_request_of_an_agent_with_another_session_or_none(tmp_path: Path) -> None:
    hangs = asyncio.Event()
    async with hanging_server(hangs, streams=False) as url, recording(url, tmp_path) as recorder:
        alone, *others = recorder.client(), recorder.client(), recorder.client()
        await others[0].shake_hands()
        hanging = asyncio.create_task(alone.post(call("hang", 1)))
        await hangs.wait()
        for other in others:
            await other.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        await alone.ask(call("count", 2))
        assert not hanging.done()
        hanging.cancel()


async def test_a_run_that_begins_in_the_process_of_an_earlier_run_is_named(tmp_path: Path) -> None:
    messages = list[str]()
    async with recording(ODD, tmp_path / "recordings") as recorder:
        client = recorder.client()
        await client.shake_hands()
        await client.ask(call("count", 1))
        recorder.runs.finish(recorder.runs.current)
        await client.ask(call("count", 2))
    first, second = (run.id for run in read_runs(tmp_path, messages.append))
    assert messages == [
        f"{second}: the agent went on in its session of {first}, so the same server process answered: if the server "
        f"keeps its world in memory, this run began in the world that {first} had left"
    ]


def test_a_run_without_calls_does_not_become_idle(tmp_path: Path) -> None:
    clock = Clock()
    runs = Runs(tmp_path, idle_s=60, clock=clock)
    first = runs.current
    clock.now += 600
    assert runs.current == first


@pytest.mark.parametrize(
    ("said", "ends"), [({"answer": "42"}, True), ({"success": False}, True), ({"task": "t"}, False)]
)
def test_a_label_from_another_process_ends_the_run_if_it_contains_the_outcome(
    said: JsonObject, ends: bool, tmp_path: Path
) -> None:
    runs = Runs(tmp_path)
    first = runs.current
    append_event(tmp_path, {"kind": "note", "run": first, **said, "at": 1.0})
    assert (runs.current != first) is ends


def test_text_in_the_traffic_that_looks_like_a_label_does_not_end_the_run(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    first = runs.current
    text = '\n{"kind":"note","answer":"x"}\n'
    append_event(tmp_path, {"kind": "exchange", "run": first, "result": {"text": text}})
    assert runs.current == first


@pytest.mark.parametrize("run", ["../up", "a/b", "", ".hidden", "a" * 129, "a\n"])
def test_a_run_id_that_is_not_a_file_name_is_refused(run: str) -> None:
    with pytest.raises(InvalidInput, match=r"run id '.*': expected .*, of which the first is a letter or a digit"):
        checked(run)


async def test_a_run_is_named_by_the_url_or_by_the_header(tmp_path: Path) -> None:
    async with recording(ODD, tmp_path) as recorder:
        await recorder.client("of-the-url").shake_hands()
        await recorder.client("of-the-url").ask(call("count", 1))
        await recorder.client(**{"x-dreamgym-run": "of-the-header"}).ask(call("count", 1))
        refused, body = await recorder.client(**{"x-dreamgym-run": "../x"}).post(call("count", 1))
    assert len(recorder.calls("of-the-url")) == len(recorder.calls("of-the-header")) == 1
    assert refused == 400
    assert b"run id" in body


async def test_a_client_that_opens_a_session_per_call_has_one_run_and_one_server(tmp_path: Path) -> None:
    counts = []
    async with recording(ODD, tmp_path) as recorder:
        for _ in range(3):
            client = recorder.client()
            await client.shake_hands()
            counts.append((await client.ask(call("count", 1)))["result"]["structuredContent"]["value"])
            async with client.http.delete(client.url, headers=client.headers) as gone:
                assert gone.status == 200
            assert (await client.post(call("count", 2)))[0] == 404
        (run,) = await recorder.seen()
    assert counts == [1, 2, 3]
    methods = [getattr(event, "method", None) for event in recorder.events(run)]
    assert methods == ["initialize", *["tools/call"] * 3]


async def test_sixteen_parallel_runs_have_sixteen_servers(tmp_path: Path) -> None:
    async with recording(ODD, tmp_path) as recorder:

        async def play(number: int) -> list[int]:
            client = recorder.client(f"run-{number}")
            await client.shake_hands()
            answers = [await client.ask(call("count", step)) for step in range(4)]
            return [answer["result"]["structuredContent"]["value"] for answer in answers]

        played = await asyncio.gather(*map(play, range(16)))
    assert played == [[1, 2, 3, 4]] * 16
    assert [len(recorder.calls(f"run-{number}")) for number in range(16)] == [4] * 16


async def test_agents_of_one_run_that_use_the_same_ids_at_once_get_their_own_answers(tmp_path: Path) -> None:
    async with recording(ODD, tmp_path) as recorder:
        clients = [recorder.client("r") for _ in range(8)]
        await asyncio.gather(*(client.shake_hands() for client in clients))
        answers = await asyncio.gather(
            *(client.ask(call("echo", 1, who=number)) for number, client in enumerate(clients))
        )
    assert [answer["result"]["structuredContent"]["value"]["who"] for answer in answers] == list(range(8))
    assert {answer["id"] for answer in answers} == {1}
    assert sum(getattr(event, "method", "") == "initialize" for event in recorder.events("r")) == 1


async def test_a_finished_run_ends_its_server_and_the_next_call_at_the_bare_url_begins_a_run(tmp_path: Path) -> None:
    async with recording(ODD, tmp_path) as recorder:
        first = recorder.client()
        await first.shake_hands()
        await first.ask(call("count", 1))
        async with first.http.delete(first.url, headers=first.headers):
            pass
        (run,) = await recorder.seen()
        async with recorder.http.post(f"{recorder.url}/record/{run}/finish", json={"success": True}) as finished:
            assert (await finished.json())["finished"] is True
        second = recorder.client()
        await second.shake_hands()
        answer = await second.ask(call("count", 1))
    assert answer["result"]["structuredContent"] == {"value": 1}
    assert len(recorder.calls(run)) == 1


async def test_calls_keep_their_order_if_the_clock_is_set_back_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = time.time
    async with recording(ODD, tmp_path / "recordings") as recorder:
        client = recorder.client("r")
        await client.shake_hands()
        await client.ask(call("echo", 1, text="first"))
        monkeypatch.setattr(time, "time", lambda: clock() - 86_400)
        await client.ask(call("echo", 2, text="second"))
    (run,) = read_runs(tmp_path, print)
    called = [one for one in run.exchanges if one.method == "tools/call"]
    assert [one.params["arguments"] for one in called] == [{"text": "first"}, {"text": "second"}]
    assert 0 <= called[1].started_at - called[0].ended_at < 3_600
