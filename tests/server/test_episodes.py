"""Episodes: one step at a time, none twice, none lost, whatever clients, models and processes do."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack, suppress
from datetime import datetime, timedelta, tzinfo
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from answers import meta_of, text_of
from dreamgym_server.sessions import NOT_RECORDED, UNAVAILABLE, Episodes, Limits, NewEpisode
from dreamgym_server.sources import DreamWorlds, RealWorlds
from mcp import Client, MCPError
from server_stage import BreakableStore, CounterEnvironment, Someone, Stage, counter_spec, told

from dreamgym.dream.nearest import NearestModel
from dreamgym.errors import EnvironmentUnavailable, InvalidInput, PredictionError, StoreError, UnknownEpisode
from dreamgym.replay.episode_store import Episode
from dreamgym.types import Source, StopReason, ToolCall

pytestmark = pytest.mark.anyio

ADD = ToolCall(name="add", arguments={"n": 1})


def episodes_of(stage: Stage, *, real: bool = False, **spec: Any) -> Episodes:
    """A server process without HTTP."""
    world = (stage.real if real else stage.dream)(counter_spec(**spec))
    return Episodes({"counter": world}, stage.episodes, stage.buffer)


def hold(stage: Stage) -> tuple[asyncio.Event, asyncio.Event]:
    """Make the model wait. Returns two events: it was asked, and it may answer."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    def before(query: object) -> object:
        asked.set()
        return go_on.wait()

    stage.model.before = before
    return asked, go_on


async def send_and_vanish(url: str, asked: asyncio.Event, blanks: int) -> None:
    """Call `add`, with blanks after the request's JSON, and disconnect before the answer."""
    address = urlsplit(url)
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    params = {"name": "add", "arguments": {"n": 1}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode() + blanks * b" "
    head = f"POST {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Accept: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    await asked.wait()
    writer.close()
    await writer.wait_closed()


async def test_parallel_calls_in_one_episode_are_taken_one_after_the_other(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        async with Client(made["mcp_url"]) as client:
            results = await asyncio.gather(*(client.call_tool("add", {"n": n}) for n in (1, 2, 3)))
        state = (await http.get(f"/envs/counter/episodes/{made['episode']}")).json()
    assert sorted(meta_of(result)["dreamgym/step"] for result in results) == [1, 2, 3]
    assert state["step"] == 3
    assert max(int(text_of(result).split()[-1]) for result in results) == 6


async def test_two_identical_calls_of_a_waiting_client_are_two_steps(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        async with Client(made["mcp_url"]) as client:
            results = await asyncio.gather(*(client.call_tool("add", {"n": 1}) for _ in range(2)))
    assert sorted(text_of(result) for result in results) == ["count 1", "count 2"]


@pytest.mark.parametrize("blanks", [0, 300_000])  # the server stops reading within a long body
async def test_a_resend_after_a_broken_connection_is_the_same_step(stage: Stage, blanks: int) -> None:
    asked, go_on = hold(stage)
    async with stage.serve() as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        await send_and_vanish(made["mcp_url"], asked, blanks)
        async with Client(made["mcp_url"]) as client:
            again = asyncio.create_task(client.call_tool("add", {"n": 1}))
            await asyncio.wait({again}, timeout=0)
            go_on.set()
            assert meta_of(await again)["dreamgym/step"] == 1
            assert meta_of(await client.call_tool("add", {"n": 1}))["dreamgym/step"] == 2
    assert len(stage.model.asked) == 2


async def test_a_resend_joins_the_step_under_way_when_the_first_client_has_gone(stage: Stage) -> None:
    asked, go_on = hold(stage)
    episodes = episodes_of(stage)
    async with episodes.running():
        made = await episodes.create("counter", NewEpisode())
        first = asyncio.create_task(episodes.call("counter", made.id, ADD, Someone(gone=True)))
        await asked.wait()
        second = asyncio.create_task(episodes.call("counter", made.id, ADD, Someone()))
        await asyncio.wait({second}, timeout=0)
        go_on.set()
        assert (await first) == (await second)
        assert (await second).step == 1
        assert (await episodes.read("counter", made.id)).undelivered is False


@pytest.mark.parametrize("restarts", [False, True])
async def test_an_answer_that_reached_nobody_is_given_to_the_resend_and_only_once(stage: Stage, restarts: bool) -> None:
    episodes = episodes_of(stage)
    made = await episodes.create("counter", NewEpisode())
    first = await episodes.call("counter", made.id, ADD, Someone(gone=True))
    episodes = episodes_of(stage) if restarts else episodes
    resent = await episodes.call("counter", made.id, ADD, Someone())
    third = await episodes.call("counter", made.id, ADD, Someone())
    assert (first, resent.step, third.step) == (resent, 1, 2)
    assert len(stage.model.asked) == 2


async def test_the_last_answer_of_an_episode_is_redelivered_too(stage: Stage) -> None:
    episodes = episodes_of(stage, max_steps=1)
    made = await episodes.create("counter", NewEpisode())
    first = await episodes.call("counter", made.id, ADD, Someone(gone=True))
    assert first.result.truncated
    assert await episodes.call("counter", made.id, ADD, Someone()) == first
    assert (await episodes.call("counter", made.id, ADD, Someone())).uncounted == "ended"


async def test_another_call_after_an_undelivered_answer_is_a_step_of_its_own(stage: Stage) -> None:
    episodes = episodes_of(stage)
    made = await episodes.create("counter", NewEpisode())
    await episodes.call("counter", made.id, ADD, Someone(gone=True))
    other = await episodes.call("counter", made.id, ToolCall(name="add", arguments={"n": 3}), Someone())
    same = await episodes.call("counter", made.id, ADD, Someone())
    assert [other.step, same.step] == [2, 3]


async def test_a_client_that_cancels_its_request_makes_the_next_identical_call_a_resend(stage: Stage) -> None:
    asked, go_on = hold(stage)
    async with stage.serve() as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        body = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "add", "arguments": {"n": 1}}}
        first = asyncio.create_task(http.post(made["mcp_url"], json=body, headers={"accept": "application/json"}))
        await asked.wait()
        note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}
        await http.post(made["mcp_url"], json=note, headers={"accept": "application/json"})
        second = asyncio.create_task(http.post(made["mcp_url"], json=body, headers={"accept": "application/json"}))
        await asyncio.wait({second}, timeout=0)
        go_on.set()
        steps = [(await answer).json()["result"]["_meta"]["dreamgym/step"] for answer in (first, second)]
    assert steps == [1, 1]


async def test_a_step_that_outlives_its_request_is_given_to_the_resend(stage: Stage) -> None:
    asked, go_on = hold(stage)
    episodes = episodes_of(stage)
    async with episodes.running():
        made = await episodes.create("counter", NewEpisode())
        request = asyncio.create_task(episodes.call("counter", made.id, ADD, Someone()))
        await asked.wait()
        request.cancel()  # as a server does that stops
        await asyncio.wait({request})
        go_on.set()
    episodes = episodes_of(stage)
    steps = [(await episodes.call("counter", made.id, ADD, Someone())).step for _ in range(2)]
    assert steps == [1, 2]


async def test_a_step_that_does_not_end_is_given_up_when_the_server_stops(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dreamgym_server.sessions.LAST_STEPS_S", 0)
    asked, _ = hold(stage)
    episodes = episodes_of(stage)
    async with episodes.running():
        made = await episodes.create("counter", NewEpisode())
        call = asyncio.create_task(episodes.call("counter", made.id, ADD, Someone()))
        await asked.wait()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await episodes.read("counter", made.id)).version == 0


async def test_a_client_whose_step_a_stopping_server_gives_up_gets_503_and_may_send_it_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dreamgym_server.running.GRACE_S", 0)
    monkeypatch.setattr("dreamgym_server.sessions.LAST_STEPS_S", 0)
    asked, _ = hold(stage)
    async with AsyncExitStack() as other:
        async with stage.serve() as (_, http):
            made = (await http.post("/envs/counter/episodes", json={})).json()
            client = await other.enter_async_context(httpx2.AsyncClient())
            body = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "add", "arguments": {"n": 1}}}
            call = client.post(made["mcp_url"], json=body, headers={"accept": "application/json"})
            answer = asyncio.create_task(call)
            await asked.wait()
        assert (await answer).status_code == 503
    assert "send it again" in (await answer).json()["error"]
    assert (await answer).headers["retry-after"] == "5"


@pytest.mark.parametrize("part", ["step", "start"])
async def test_an_error_of_a_model_or_an_environment_is_one_line_of_the_log(
    stage: Stage, part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*asked: object, **options: object) -> None:
        raise EnvironmentUnavailable("no\r\nepisode e, step 3: forged\x1b[2K\u2028line")

    stage.model.before = fail
    async with stage.serve() as (url, _):
        if part == "start":
            monkeypatch.setattr("dreamgym.dream.environment.DreamEnvironment.reset", fail)
        async with Client(f"{url}/envs/counter/mcp", mode="legacy") as client:
            with suppress(MCPError):
                await client.call_tool("add", {"n": 1})
    told = [one.getMessage() for one in caplog.records if "forged" in one.getMessage()]
    assert told
    assert all(one.isprintable() for one in told)


async def test_an_answer_is_kept_until_a_resend_receives_it(stage: Stage) -> None:
    episodes = episodes_of(stage)
    made = await episodes.create("counter", NewEpisode())
    gone = [True, True, False, False]
    steps = [(await episodes.call("counter", made.id, ADD, Someone(gone=left))).step for left in gone]
    assert steps == [1, 1, 1, 2]


async def test_a_cancelled_id_that_two_clients_use_takes_no_answer_from_either(stage: Stage) -> None:
    asked, go_on = hold(stage)
    episodes = episodes_of(stage)
    made = await episodes.create("counter", NewEpisode())
    other = ToolCall(name="add", arguments={"n": 2})
    calls = [asyncio.create_task(episodes.call("counter", made.id, call, Someone(), 1)) for call in (ADD, other)]
    await asked.wait()
    await episodes.cancel(made.id, 1)
    go_on.set()
    steps = [(await call).step for call in calls]
    again = await episodes.call("counter", made.id, other, Someone(), 2)
    assert [*steps, again.step] == [1, 2, 3]


async def test_an_answer_to_a_question_that_is_not_a_json_number_is_refused(stage: Stage) -> None:
    episodes = episodes_of(stage, real=True)
    made = await episodes.create("counter", NewEpisode())
    call = ToolCall(name="peek", answers={"inputResponses": {"age": float("nan")}})
    answer = await episodes.call("counter", made.id, call, Someone())
    assert (answer.uncounted, answer.step) == ("refused", 0)


async def test_a_cancellation_without_an_id_is_ignored(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    async with stage.serve() as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"reason": "none"}}
        await http.post(made["mcp_url"], json=note, headers={"accept": "application/json"})
    assert "KeyError" not in caplog.text


@pytest.mark.parametrize("kind", ["dream", "real"])
async def test_an_episode_goes_on_after_a_restart(stage: Stage, kind: str) -> None:
    world = stage.dream if kind == "dream" else stage.real
    async with stage.serve(world()) as (_, http):
        made = (await http.post("/envs/counter/episodes", json={"task_id": "counter-2"})).json()
        async with Client(made["mcp_url"]) as client:
            await client.call_tool("add", {"n": 3})
    async with stage.serve(world()) as (url, http):
        async with Client(url + urlsplit(made["mcp_url"]).path) as client:
            result = await client.call_tool("add", {"n": 5})
        state = (await http.get(f"/envs/counter/episodes/{made['episode']}")).json()
    assert text_of(result) == "count 10"
    assert [t["next_state"] for t in state["trajectory"]["transitions"]] == ["count 5", "count 10"]


async def test_a_real_environment_that_cannot_be_restored_ends_the_episode_as_an_error(stage: Stage) -> None:
    async with stage.serve(stage.real()) as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        async with told(made["mcp_url"]) as client:
            await client.call_tool("add", {"n": 3})
    async with stage.serve(stage.real(salt="!")) as (url, http):
        async with told(url + urlsplit(made["mcp_url"]).path) as client:
            result = await client.call_tool("add", {"n": 5})
        state = (await http.get(f"/envs/counter/episodes/{made['episode']}")).json()
    assert result.is_error
    assert "dreamgym/reward" not in meta_of(result)
    assert (state["stop_reason"], state["step"]) == ("error", 1)
    assert "could not be restored" in state["error"]


async def test_two_processes_that_serve_one_episode_never_lose_or_repeat_a_step(stage: Stage) -> None:
    here, there = episodes_of(stage), episodes_of(stage)
    made = await here.create("counter", NewEpisode())
    for turn in range(6):
        answer = await (here, there)[turn % 2].call("counter", made.id, ADD, Someone())
        assert (answer.step, answer.text) == (turn + 1, f"count {turn + 1}")


async def test_the_last_allowed_step_is_truncated_and_not_terminated(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        made = (await http.post("/envs/counter/episodes", json={"max_steps": 2})).json()
        async with told(made["mcp_url"]) as client:
            results = [await client.call_tool("add", {"n": 1}) for _ in range(3)]
        state = (await http.get(f"/envs/counter/episodes/{made['episode']}")).json()
    assert [meta_of(result)["dreamgym/truncated"] for result in results] == [False, True, True]
    assert [result.is_error for result in results] == [False, False, True]
    assert (state["stop_reason"], state["terminated"], state["truncated"]) == ("max_steps", False, True)
    assert state["trajectory"]["transitions"][-1]["result"]["truncated"] is True


@pytest.mark.parametrize(
    "failure",
    [PredictionError("rubbish"), EnvironmentUnavailable("no model"), StoreError("no database"), ValueError("a bug")],
)
async def test_a_failed_step_is_a_tool_error_that_does_not_count(stage: Stage, failure: Exception) -> None:
    def fail_once(query: object) -> None:
        stage.model.before = lambda query: None
        raise failure

    stage.model.before = fail_once
    async with stage.serve() as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        async with told(made["mcp_url"]) as client:
            failed = await client.call_tool("add", {"n": 1})
            good = await client.call_tool("add", {"n": 1})
    assert failed.is_error
    assert text_of(failed) == UNAVAILABLE
    assert "dreamgym/reward" not in meta_of(failed)
    assert [meta_of(failed)["dreamgym/step"], meta_of(good)["dreamgym/step"]] == [0, 1]


async def test_the_answer_to_an_unrecorded_call_advises_against_trying_again(stage: Stage) -> None:
    async with stage.serve(DreamWorlds(counter_spec(), NearestModel(), stage.buffer)) as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        async with told(made["mcp_url"]) as client:
            unknown = await client.call_tool("add", {"n": 1})
    assert unknown.is_error
    assert text_of(unknown) == NOT_RECORDED
    assert "trying it again does not help" in NOT_RECORDED
    assert meta_of(unknown)["dreamgym/step"] == 0


async def test_three_failures_in_a_row_end_the_episode_as_an_error_outside_the_buffer(stage: Stage) -> None:
    def fail(query: object) -> None:
        if len(stage.model.asked) > 1:
            raise PredictionError("rubbish, twice")

    stage.model.before = fail
    async with stage.serve() as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        async with Client(made["mcp_url"]) as client:
            results = [await client.call_tool("add", {"n": 1}) for _ in range(5)]
        state = (await http.get(f"/envs/counter/episodes/{made['episode']}")).json()
    assert [result.is_error for result in results] == [False, True, True, True, True]
    assert (state["stop_reason"], state["error"], state["reward"]) == ("error", "rubbish, twice", None)
    assert await stage.buffer.trajectories("counter", sources=frozenset(Source)) == ()


@pytest.mark.parametrize(
    "failure",
    [PredictionError("rubbish"), EnvironmentUnavailable("no model"), StoreError("no database"), ValueError("a bug")],
)
@pytest.mark.parametrize("ends_it", ["finish", "sweep", "delete"])
async def test_an_episode_that_ends_at_a_failed_call_has_no_reward(
    stage: Stage, failure: Exception, ends_it: str
) -> None:
    def fail_second(query: object) -> None:
        if len(stage.model.asked) > 1:
            raise failure

    stage.model.before = fail_second
    episodes = episodes_of(stage)
    made = await episodes.create("counter", NewEpisode())
    await episodes.call("counter", made.id, ADD, Someone())
    failed = await episodes.call("counter", made.id, ADD, Someone())
    async with episodes.running():
        if ends_it == "finish":
            await episodes.finish("counter", made.id)
        elif ends_it == "sweep":
            stage.breakable.later = timedelta(hours=2)
            await episodes.sweep()
        else:
            await episodes.delete("counter", made.id)
        state = await stage.episodes.load(made.id) if ends_it != "delete" else None
    assert failed.uncounted == "unavailable"
    assert state is None or (state.stop_reason, state.final_reward, bool(state.error)) == (StopReason.ERROR, None, True)
    assert await stage.buffer.trajectories("counter", sources=frozenset(Source)) == ()


async def test_a_verdict_counts_after_a_failed_call_and_an_end_counts_after_the_call_was_sent_again(
    stage: Stage,
) -> None:
    def fail_once(query: object) -> None:
        stage.model.before = lambda query: None
        raise PredictionError("rubbish")

    async def finished(**verdict: Any) -> tuple[StopReason | None, float | None]:
        stage.model.before = fail_once
        made = await episodes.create("counter", NewEpisode())
        await episodes.call("counter", made.id, ADD, Someone())
        if not verdict:
            await episodes.call("counter", made.id, ADD, Someone())
        ended = await episodes.finish("counter", made.id, **verdict)
        return ended.stop_reason, ended.final_reward

    episodes = episodes_of(stage)
    assert await finished(success=False) == (StopReason.FINISHED, 0.0)
    assert await finished(success=True) == (StopReason.FINISHED, 1.0)
    assert await finished() == (StopReason.FINISHED, 0.0)


async def test_a_step_that_takes_too_long_does_not_count(stage: Stage) -> None:
    _, go_on = hold(stage)
    async with stage.serve(limits=Limits(step_s=0.01)) as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        async with Client(made["mcp_url"]) as client:
            result = await client.call_tool("add", {"n": 1})
    assert not go_on.is_set()
    assert (result.is_error, meta_of(result)["dreamgym/step"]) == (True, 0)


async def test_a_timeout_inside_the_environment_is_stored_as_what_it_is(stage: Stage) -> None:
    def fail(query: object) -> None:
        raise TimeoutError("read timed out at db.internal")

    stage.model.before = fail
    episodes = episodes_of(stage)
    made = await episodes.create("counter", NewEpisode())
    for _ in range(Limits().failures):
        await episodes.call("counter", made.id, ADD, Someone())
    assert (await episodes.read("counter", made.id)).error == "TimeoutError: read timed out at db.internal"


async def test_a_database_that_went_away_costs_the_step_and_not_the_episode(stage: Stage) -> None:
    class Flaky(BreakableStore):
        async def append(self, *args: Any, **options: Any) -> None:
            if self.broken:
                raise StoreError("the database cannot be reached")
            await super().append(*args, **options)

    stage.episodes = store = Flaky()
    episodes = episodes_of(stage, real=True)
    made = await episodes.create("counter", NewEpisode())
    store.broken = True
    failed = await episodes.call("counter", made.id, ADD, Someone())
    store.broken = False
    good = await episodes.call("counter", made.id, ADD, Someone())
    assert (failed.uncounted, good.step, good.text) == ("unavailable", 1, "count 1")


async def test_played_episodes_are_in_the_buffer_when_the_server_has_stopped(stage: Stage) -> None:
    worlds = stage.dream(counter_spec(deterministic=True)), stage.real(counter_spec("other"))
    async with stage.serve(*worlds) as (_, http):
        for env in ("counter", "other"):
            made = (await http.post(f"/envs/{env}/episodes", json={"policy_version": 3})).json()
            async with Client(made["mcp_url"]) as client:
                await client.call_tool("add", {"n": 10})
    (dreamed,) = await stage.buffer.trajectories("counter", sources=frozenset(Source))
    (real,) = await stage.buffer.trajectories("other", sources=frozenset(Source))
    assert (dreamed.source, dreamed.world, dreamed.policy_version) == (Source.SYNTHETIC, "counter-0", 3)
    assert (real.source, real.world, real.success) == (Source.REAL, "", True)


@pytest.mark.parametrize(("limits", "minutes"), [(Limits(idle_s=9999, episode_s=3600), 60), (Limits(), 30)])
async def test_an_episode_whose_time_is_over_or_that_nobody_uses_is_closed(
    stage: Stage, limits: Limits, minutes: int
) -> None:
    store = stage.breakable
    episodes = Episodes({"counter": stage.dream()}, store, stage.buffer, limits)
    made = await episodes.create("counter", NewEpisode())
    store.later = timedelta(minutes=minutes - 1)
    await episodes.sweep()
    assert (await episodes.read("counter", made.id)).stop_reason is None
    store.later = timedelta(minutes=minutes)
    await episodes.sweep()
    assert (await episodes.read("counter", made.id)).stop_reason is StopReason.CLOSED
    assert (await episodes.call("counter", made.id, ADD, Someone())).result.is_error


async def test_an_episode_that_cannot_be_closed_does_not_keep_the_others_open(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stage.breakable
    episodes = episodes_of(stage)
    bad, good = [await episodes.create("counter", NewEpisode()) for _ in range(2)]
    finish = store.finish

    async def refuses(episode_id: str, *args: Any, **options: Any) -> Episode:
        if episode_id == bad.id:
            raise InvalidInput("the database cannot store this")
        return await finish(episode_id, *args, **options)

    monkeypatch.setattr(store, "finish", refuses)
    store.later = timedelta(minutes=30)
    await episodes.sweep()
    assert [(await store.load(made.id)).stop_reason for made in (bad, good)] == [None, StopReason.CLOSED]


async def test_an_episode_with_a_step_under_way_does_not_keep_the_others_open(stage: Stage) -> None:
    asked, go_on = hold(stage)
    store = stage.breakable
    episodes = episodes_of(stage)
    busy, idle = [await episodes.create("counter", NewEpisode()) for _ in range(2)]
    step = asyncio.create_task(episodes.call("counter", busy.id, ADD, Someone()))
    await asked.wait()
    store.later = timedelta(minutes=30)
    await asyncio.wait_for(episodes.sweep(), 10)
    assert [(await store.load(made.id)).stop_reason for made in (busy, idle)] == [None, StopReason.CLOSED]
    go_on.set()
    assert (await step).step == 1


async def test_an_episode_that_is_used_is_not_closed_by_the_sweep_that_found_it_idle(stage: Stage) -> None:
    asked, go_on = hold(stage)
    store = stage.breakable
    episodes = episodes_of(stage)
    made = await episodes.create("counter", NewEpisode())
    step = asyncio.create_task(episodes.call("counter", made.id, ADD, Someone()))
    await asked.wait()
    store.later = timedelta(minutes=20)
    sweep = asyncio.create_task(episodes.sweep())
    await asyncio.wait({sweep}, timeout=0)
    go_on.set()
    await asyncio.gather(step, sweep)
    state = await episodes.read("counter", made.id)
    assert (state.version, state.stop_reason) == (1, None)


async def test_abandoned_episodes_do_not_count_as_open(stage: Stage) -> None:
    store = stage.breakable
    async with stage.serve(limits=Limits(open_episodes=1)) as (_, http):
        first = await http.post("/envs/counter/episodes", json={})
        store.later = timedelta(minutes=30)
        second = await http.post("/envs/counter/episodes", json={})
    assert [first.status_code, second.status_code] == [201, 201]


async def test_a_jump_of_the_machines_clock_closes_no_episode(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    episodes = episodes_of(stage)
    made = await episodes.create("counter", NewEpisode())

    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(days=1)

    for module in list(sys.modules.values()):
        if module.__name__.startswith("dreamgym") and hasattr(module, "datetime"):
            monkeypatch.setattr(module, "datetime", Tomorrow)
    await episodes.sweep()
    answer = await episodes.call("counter", made.id, ADD, Someone())
    assert (answer.step, answer.result.is_error) == (1, False)


async def test_episodes_of_another_servers_environment_are_not_swept(stage: Stage) -> None:
    spec = counter_spec("other")
    other = Episodes({"other": stage.real(spec)}, stage.episodes, stage.buffer)
    made: Episode = await other.create("other", NewEpisode())
    stage.breakable.later = timedelta(days=1)
    await episodes_of(stage).sweep()
    assert (await other.read("other", made.id)).stop_reason is None


async def test_two_first_calls_of_a_session_use_one_environment(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[CounterEnvironment] = []

    def create() -> CounterEnvironment:
        made.append(CounterEnvironment(counter_spec()))
        return made[-1]

    episodes = Episodes({"counter": RealWorlds(counter_spec(), create)}, stage.episodes, stage.buffer)
    store, steps = stage.episodes.create, []

    async def another_call_is_first(episode: Episode, **options: Any) -> Episode:
        stored = await store(episode, **options)
        steps.append((await episodes.call("counter", "session-1", ADD, Someone(), is_session=True)).step)
        return stored

    monkeypatch.setattr(stage.episodes, "create", another_call_is_first)
    async with episodes.running():
        steps.append((await episodes.call("counter", "session-1", ADD, Someone(), is_session=True)).step)
        assert [environment.closed for environment in made] == [True, False]
    assert steps == [1, 2]
    assert all(environment.closed for environment in made)


async def test_an_episode_finishes_after_the_step_under_way(stage: Stage) -> None:
    asked, go_on = hold(stage)
    episodes = episodes_of(stage)
    made = await episodes.create("counter", NewEpisode())
    step = asyncio.create_task(episodes.call("counter", made.id, ADD, Someone()))
    await asked.wait()
    finish = asyncio.create_task(episodes.finish("counter", made.id))
    await asyncio.wait({finish}, timeout=0)
    go_on.set()
    assert (await step).step == 1
    assert (await finish).version == 1


async def test_deleting_an_episode_forgets_it_here_and_in_the_store(stage: Stage) -> None:
    episodes = episodes_of(stage)
    made = await episodes.create("counter", NewEpisode())
    await episodes.delete("counter", made.id)
    with pytest.raises(UnknownEpisode):
        await episodes.call("counter", made.id, ADD, Someone())


REPORT_TOOL = {
    "name": "report",
    "inputSchema": {"type": "object"},
    "outputSchema": {"type": "object", "required": ["count"], "properties": {"count": {"type": "integer"}}},
}


@pytest.mark.parametrize(
    ("structured", "is_valid"), [({"count": 3}, True), ({"count": "three"}, False), ({}, False), (None, False)]
)
async def test_an_answer_counts_only_if_its_structured_content_matches_the_output_schema(
    stage: Stage, structured: object, is_valid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict = stage.model.predict

    async def report(query: Any) -> Any:
        return (await predict(query)).model_copy(update={"structured": structured})

    monkeypatch.setattr(stage.model, "predict", report)
    async with stage.serve(stage.dream(counter_spec(tools_list={"tools": [REPORT_TOOL]}))) as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        async with Client(made["mcp_url"]) as client:
            await client.list_tools()
            result = await client.call_tool("report", {})
    assert result.structured_content == (structured if is_valid else None)
    assert result.is_error is not is_valid
    assert meta_of(result)["dreamgym/step"] == (1 if is_valid else 0)
