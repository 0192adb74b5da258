"""Every limit has its own error, tested over HTTP."""

from __future__ import annotations

import json
import random
import uuid
from typing import Any

import httpx2
import pytest
from answers import text_of
from dreamgym_server.connections import MAX_BODY_BYTES, MAX_DEPTH, is_too_deep
from dreamgym_server.sessions import UNAVAILABLE, Limits
from growth import grows_linearly
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client
from server_stage import Stage, counter_spec

from dreamgym.replay.postgres import Store
from dreamgym.types import Source

pytestmark = pytest.mark.anyio

EPISODES = "/envs/counter/episodes"
HEADERS = {"accept": "application/json", "content-type": "application/json"}


def nested(depth: int, opened: str = "[", closed: str = "]") -> str:
    return opened * depth + closed * depth


def call_with(value: str) -> bytes:
    """A tool call with this JSON as an argument, as bytes."""
    head = '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", "arguments": {"n": 1, "a": '
    return f"{head}{value}}}}}}}".encode()


async def started(http: httpx2.AsyncClient, **order: object) -> dict[str, Any]:
    made: dict[str, Any] = (await http.post(EPISODES, json=order)).json()
    return made


@pytest.mark.parametrize("deep", [nested(100_000), nested(100_000, '{"a":', "}"), "[" * 100_000, nested(MAX_DEPTH + 1)])
@pytest.mark.parametrize("version", ["2025-06-18", "2026-07-28"])
async def test_arguments_nested_too_deep_are_refused_in_both_eras(stage: Stage, deep: str, version: str) -> None:
    async with stage.serve() as (_, http):
        made = await started(http)
        headers = {**HEADERS, "mcp-protocol-version": version}
        answer = await http.post(made["mcp_url"], content=call_with(deep), headers=headers)
        assert (await http.get(f"{EPISODES}/{made['episode']}")).json()["step"] == 0
    assert (answer.status_code, answer.json()) == (400, {"error": "the request body is nested deeper than 64 levels"})
    assert stage.model.asked == []


@pytest.mark.parametrize("path", [EPISODES, f"{EPISODES}/x/finish", f"{EPISODES}/x/fork"])
async def test_the_trainers_door_refuses_deep_json_too(stage: Stage, path: str) -> None:
    async with stage.serve() as (_, http):
        answer = await http.post(path, content=b'{"task": ' + nested(100_000).encode() + b"}")
    assert answer.status_code == 400


async def test_a_body_of_allowed_depth_is_read(stage: Stage) -> None:
    spec = counter_spec(tools_list={"tools": [{"name": "add", "inputSchema": {"type": "object"}}]})
    async with stage.serve(stage.dream(spec)) as (_, http):
        made = await started(http)
        answer = await http.post(made["mcp_url"], content=call_with(nested(MAX_DEPTH - 3)), headers=HEADERS)
    assert answer.json()["result"]["isError"] is False


def depth_of(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


@given(
    value=st.recursive(
        st.text('[]{}"\\ax', max_size=6), lambda part: st.lists(part) | st.dictionaries(st.text(), part)
    ),
    wrapped=st.integers(0, MAX_DEPTH + 2),
    ascii_only=st.booleans(),
)
def test_depth_is_that_of_the_value_whatever_its_strings_contain(value: object, wrapped: int, ascii_only: bool) -> None:
    for level in range(wrapped):
        value = [value, "]"] if level % 2 else {"[": value}
    body = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert is_too_deep(body) is (depth_of(value) > MAX_DEPTH)


@pytest.mark.parametrize(
    "piece",
    [b"[", b"]", b"[]", b'"', b'\\"', b"\\", b'"\\', b'["\\"', b'{"a":"', b'"a"', b'[{"":""},', b"\xff["],
)
@pytest.mark.parametrize("before", [b"", b'"', b"[" * (MAX_DEPTH + 1), b"[" * (MAX_DEPTH + 1) + b'"'])
def test_the_depth_of_a_body_is_found_in_linear_time(before: bytes, piece: bytes) -> None:
    assert grows_linearly(is_too_deep, lambda size: before + piece * (size // len(piece)))


def test_brackets_are_found_in_another_encoding_too() -> None:
    assert is_too_deep(nested(1000).encode("utf-16"))


async def test_a_body_with_very_many_faults_is_refused_with_only_their_number(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        answer = await http.post(EPISODES, json={f"k{n}": n for n in range(2_000)})
    assert answer.status_code == 400
    assert "2000 faults" in answer.json()["error"]
    assert "k0" not in answer.json()["error"]


@pytest.mark.parametrize("path", [EPISODES, "/envs/counter/mcp", f"{EPISODES}/x/mcp"])
async def test_a_body_that_is_too_large_is_refused_however_it_is_sent(stage: Stage, path: str) -> None:
    async def chunks() -> Any:
        for _ in range(5):
            yield b" " * (MAX_BODY_BYTES // 4)

    async with stage.serve() as (_, http):
        answers = [
            await http.post(path, content=b" " * (MAX_BODY_BYTES + 1), headers=HEADERS),
            await http.post(path, content=chunks(), headers=HEADERS),
        ]
    assert [answer.status_code for answer in answers] == [413, 413]


async def test_arguments_that_are_too_long_are_a_tool_error_and_no_model_is_asked(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        made = await started(http)
        async with Client(made["mcp_url"]) as client:
            result = await client.call_tool("add", {"n": 1, "a": "x" * 70_000})
    assert result.is_error
    assert "exceed 65536 bytes" in text_of(result)
    assert stage.model.asked == []


async def test_a_trainer_may_ask_for_as_many_steps_as_allowed_and_no_more(stage: Stage) -> None:
    async with stage.serve(limits=Limits(max_steps=30)) as (_, http):
        answers = [await http.post(EPISODES, json={"max_steps": steps}) for steps in (30, 31)]
    assert [answer.status_code for answer in answers] == [201, 400]
    assert answers[1].json()["error"] == "max_steps 31 is more than this server allows: ask for at most 30"


async def test_an_environments_own_step_limit_may_always_be_asked_for(stage: Stage) -> None:
    async with stage.serve(limits=Limits(max_steps=5)) as (_, http):
        assert (await http.post(EPISODES, json={"max_steps": 20})).status_code == 201


async def test_an_episode_takes_no_step_when_its_time_is_over(stage: Stage) -> None:
    async with stage.serve(limits=Limits(episode_s=0)) as (_, http):
        made = await started(http)
        async with Client(made["mcp_url"]) as client:
            result = await client.call_tool("add", {"n": 1})
        state = (await http.get(f"{EPISODES}/{made['episode']}")).json()
    assert (result.is_error, text_of(result)) == (True, "The session has ended.")
    assert (state["stop_reason"], state["step"], stage.model.asked) == ("closed", 0, [])


async def test_open_episodes_are_counted_over_all_replicas_forks_included(stage: Stage) -> None:
    limits = Limits(open_episodes=2)
    async with stage.serve(limits=limits) as (_, here), stage.serve(limits=limits) as (_, there):
        made = [await started(here), await started(there)]
        fork = f"{EPISODES}/{made[0]['episode']}/fork"
        refused = [await here.post(EPISODES, json={}), await there.post(fork, json={"step": 0})]
        await there.post(f"{EPISODES}/{made[1]['episode']}/finish")
        again = await here.post(fork, json={"step": 0})
    assert [answer.status_code for answer in (*refused, again)] == [429, 429, 201]
    assert refused[0].json()["error"].startswith("2 episodes are open")
    assert "retry-after" in refused[0].headers


async def test_abandoned_episodes_count_as_open_only_as_long_as_they_may_run(stage: Stage) -> None:
    async with stage.serve(limits=Limits(open_episodes=1, episode_s=0)) as (_, http):
        await started(http)
        assert (await http.post(EPISODES, json={})).status_code == 201


@pytest.mark.parametrize(("kind", "fails"), [("dream", True), ("real", False)])
async def test_a_simulated_answer_that_is_too_long_is_a_failed_step_and_a_real_one_is_kept(
    stage: Stage, kind: str, fails: bool
) -> None:
    world = stage.dream() if kind == "dream" else stage.real()
    async with stage.serve(world, limits=Limits(observation_characters=6)) as (_, http):
        made = await started(http)
        async with Client(made["mcp_url"]) as client:
            result = await client.call_tool("add", {"n": 1})
        state = (await http.get(f"{EPISODES}/{made['episode']}")).json()
    assert (result.is_error, state["step"]) == (fails, 0 if fails else 1)
    assert (text_of(result) == UNAVAILABLE) is fails


async def test_text_that_cannot_be_stored_is_refused(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        made = await started(http)
        answers = [
            await http.post(f"{EPISODES}/{made['episode']}/finish", json={"answer": "a\x00"}),
            await http.post(EPISODES, json={"idempotency_key": "a\x00"}),
        ]
        assert (await http.get(f"{EPISODES}/{made['episode']}")).json()["stop_reason"] is None
    assert [answer.status_code for answer in answers] == [400, 400]
    assert "text must not contain a NUL character" in answers[0].json()["error"]


@pytest.mark.parametrize("name", ["x" * 513, "a\x00b"])
@pytest.mark.parametrize("field", ["task_id", "task.id", "task.world", "group", "idempotency_key"])
async def test_a_name_that_cannot_be_indexed_is_refused(stage: Stage, field: str, name: str) -> None:
    task = {"id": "t", "env": "counter", "instruction": "", "metadata": {"world": "w"}}
    order = {
        "task.id": {"task": {**task, "id": name}},
        "task.world": {"task": {**task, "metadata": {"world": name}}},
    }.get(field, {field: name})
    async with stage.serve() as (_, http):
        answer = await http.post(EPISODES, json=order)
    expected = "at most 512 characters" if len(name) > 512 else "text must not contain a NUL character"
    assert answer.status_code == 400
    assert field.partition(".")[0] in answer.json()["error"]
    assert expected in answer.json()["error"]


async def test_names_of_the_greatest_length_are_stored(store: Store) -> None:
    env, letters = f"counter-{uuid.uuid4().hex[:12]}", random.Random(0).choices("𐀀𐁀𐂀𐃀" + "\U00010900\U0001f600", k=2048)
    names = ["".join(letters[start : start + 512]) for start in (0, 512, 1024, 1536)]
    stage = Stage(store.buffer, store.episodes)
    task = {"id": names[0], "env": env, "instruction": "", "metadata": {"world": names[3]}, "initial_state": "count 0"}
    async with stage.serve(stage.dream(counter_spec(env, deterministic=True))) as (_, http):
        order = {"task": task, "group": names[1], "idempotency_key": names[2]}
        made = (await http.post(f"/envs/{env}/episodes", json=order)).json()
        async with Client(made["mcp_url"]) as client:
            await client.call_tool("add", {"n": 10})
    assert len(await store.buffer.trajectories(env, sources=frozenset(Source))) == 1


async def test_a_final_answer_has_a_limit(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        made = await started(http)
        answer = await http.post(f"{EPISODES}/{made['episode']}/finish", json={"answer": "x" * 70_000})
        assert (await http.get(f"{EPISODES}/{made['episode']}")).json()["stop_reason"] is None
    assert (answer.status_code, answer.json()["error"]) == (
        400,
        "request body: answer: String should have at most 65536 characters",
    )


async def test_a_session_over_the_limit_is_refused_at_its_first_call(stage: Stage) -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "0"}}
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "add", "arguments": {"n": 1}}}
    async with stage.serve(limits=Limits(open_episodes=1)) as (_, http):
        await started(http)
        opened = await http.post(
            "/envs/counter/mcp",
            json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
            headers={"accept": "application/json, text/event-stream"},
        )
        refused = await http.post(
            "/envs/counter/mcp",
            json=call,
            headers={
                "accept": "application/json, text/event-stream",
                "mcp-session-id": opened.headers["mcp-session-id"],
                "mcp-protocol-version": "2025-11-25",
            },
        )
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == -32602
    assert refused.json()["error"]["message"].startswith("1 episodes are open")
