"""If a server reports its state, the state is recorded and no agent sees it, for every pair of transports."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path

import aiohttp
import pytest
from dreamgym_integrations.environments.mcp import McpEnvironment, McpOptions
from dreamgym_server.recorder.strip_state import Events, Lines, shown
from dreamgym_server.running import running
from dreamgym_server.sources import RealWorlds
from hypothesis import given
from hypothesis import strategies as st
from recorder_stage import BIN, HERE, RawHttp, RawStdio, call, events, raw_stdio, recording
from server_stage import Stage
from telling_server import TOOLS, Shop, telling_app

from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import EnvironmentSpec
from dreamgym.recordings.log import Exchange
from dreamgym.replay.memory import MemoryBuffer, MemoryEpisodeStore
from dreamgym.state import parsed
from dreamgym.types import Task

TELLING = [sys.executable, str(HERE / "telling_server.py")]
CALLS = [call("look", 1, sku="S-1"), call("buy", 2, sku="S-1"), call("buy", 3, sku="S-2"), call("nope", 4)]
PAIRS = ["stdio-stdio", "http-stdio", "stdio-json", "stdio-events", "http-json", "http-events"]
SECOND = {"stdio-json", "stdio-events"}
"""Pairs of which each side is also tested in another pair."""


@asynccontextmanager
async def agent(pair: str, out: Path) -> AsyncIterator[RawStdio | RawHttp]:
    """A raw client that talks to the server through the recorder."""
    front, upstream = pair.split("-")
    async with AsyncExitStack() as stack:
        server: Sequence[str] | str = TELLING
        if upstream != "stdio":
            server = f"{await stack.enter_async_context(running(telling_app(upstream)))}/mcp"
        if front == "http":
            recorder = await stack.enter_async_context(recording(server, out / "recordings"))
            yield recorder.client("r")
            return
        command = [str(BIN / "dreamgym"), "record", "shop", "--out", str(out), "--run", "r"]
        command += ["--upstream", server] if isinstance(server, str) else ["--", *server]
        async with raw_stdio(command) as process:
            yield process
            await process.leave()


@pytest.mark.anyio
@pytest.mark.parametrize(
    "pair", [pytest.param(pair, marks=pytest.mark.long if pair in SECOND else ()) for pair in PAIRS]
)
async def test_the_state_is_recorded_and_not_in_the_answers_to_the_agent(pair: str, tmp_path: Path) -> None:
    async with agent(pair, tmp_path) as client:
        await client.shake_hands()
        seen = [await client.ask(message) for message in CALLS]
    real = Shop()
    expected = [real.answer(message) for message in CALLS]
    kept = [event for event in events(tmp_path / "recordings", "r") if isinstance(event, Exchange)]
    recorded = [event for event in kept if event.method == "tools/call"]
    assert [event.result for event in recorded] == [answer.get("result") for answer in expected if answer]
    assert "dreamgym" not in json.dumps(seen)
    for answer in expected[:3]:
        assert answer is not None
        del answer["result"]["_meta"]["dreamgym/before"], answer["result"]["_meta"]["dreamgym/state"]
    assert seen == expected


def test_meta_that_contains_only_the_state_is_removed_entirely() -> None:
    told = b'{"id": 1, "result": {"content": [], "_meta": {"dreamgym/state": {"a": 1}}}}\r\n'
    assert shown(told) == b'{"id": 1, "result": {"content": []}}\r\n'


def test_each_answer_of_a_batch_is_shown_without_state() -> None:
    answer = {"id": 1, "result": {"_meta": {"dreamgym/before": {}}}}
    assert json.loads(shown(json.dumps([answer, 3, answer]).encode())) == [
        {"id": 1, "result": {}},
        3,
        {"id": 1, "result": {}},
    ]


@pytest.mark.parametrize(
    "text",
    [
        b'{"id" : 1, "result": {"_meta": {"dreamgym/episode": 2.50}}}',
        b'{"id" : 1, "result": {"content": ["dreamgym/state"]}}',
        b'{"method" : "dreamgym/state", "params": {"_meta": {"dreamgym/state": 1}}}',
        b"dreamgym/state is no message",
    ],
)
def test_a_message_without_a_state_keeps_every_byte(text: bytes) -> None:
    assert shown(text) == text


TOLD = b'{"result":{"_meta":{"dreamgym/state":{"a":"b"}}}}'
CLEAN = b'{"result": {}}'
PIECES = st.lists(st.sampled_from([TOLD, b"dreamgym", b'{"id":  1}', b"", b"x\r", b": ping", b"\xff"]), max_size=6)


def chunked(text: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in pairwise(places)]


@given(PIECES, st.lists(st.integers(0, 999), max_size=8), st.booleans())
def test_lines_cut_anywhere_pass_unchanged_except_for_states(pieces: list[bytes], cuts: list[int], whole: bool) -> None:
    text = b"\n".join(pieces) + (b"\n" if whole else b"")
    lines = Lines()
    passed = b"".join([lines.pass_on(chunk) for chunk in chunked(text, cuts)]) + lines.end()
    assert passed == b"\n".join(CLEAN if piece == TOLD else piece for piece in pieces) + (b"\n" if whole else b"")


@given(PIECES, st.lists(st.integers(0, 999), max_size=8), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_events_cut_anywhere_pass_unchanged_except_for_states(
    pieces: list[bytes], cuts: list[int], ending: bytes
) -> None:
    def stream(told: bytes) -> bytes:
        lines = [told if piece == TOLD else piece.strip() for piece in pieces]
        return b"".join(b"id: 1" + ending + b"data: " + line + ending + ending for line in lines)

    passing = Events()
    passed = b"".join([passing.pass_on(chunk) for chunk in chunked(stream(TOLD), cuts)]) + passing.end()
    assert passed == stream(CLEAN)


def test_an_event_over_several_lines_loses_its_state_and_a_comment_passes_at_once() -> None:
    passing = Events()
    first = passing.pass_on(b': ping\r\ndata: {"result":{"_meta":\r\nda')
    rest = passing.pass_on(b'ta: {"dreamgym/state":{}}}}\r\nid: 2\r\n\r\n')
    assert (first, rest) == (b": ping\r\n", b'data: {"result": {}}\r\nid: 2\r\n\r\n')


@pytest.mark.anyio
async def test_an_agent_in_an_episode_of_the_real_environment_does_not_see_its_state() -> None:
    spec = EnvironmentSpec(
        name="shop", tools_list=({"tools": [*TOOLS]},), tasks=(Task(id="buy", env="shop", instruction="Buy."),)
    )
    stage = Stage(MemoryBuffer(TrigramEncoder()), MemoryEpisodeStore())
    worlds = RealWorlds(spec, lambda: McpEnvironment(McpOptions(command=tuple(TELLING))))
    async with stage.serve(worlds) as (_, control), aiohttp.ClientSession() as http:
        made = (await control.post("/envs/shop/episodes", json={"task_id": "buy"})).json()
        client = RawHttp(http, made["mcp_url"])
        await client.shake_hands()
        answers = [(await client.post(message))[1] for message in CALLS[:3]]
        episode = (await control.post(f"/envs/shop/episodes/{made['episode']}/finish", json={})).json()
    assert b"Lamp" in answers[0]
    assert all(b"stock" not in answer and b"dreamgym/state" not in answer for answer in answers)
    states = [parsed(step["next_state"]) for step in episode["trajectory"]["transitions"]]
    assert [state and state["clock"] for state in states] == [0, 1, 1]
