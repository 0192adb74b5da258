"""A remote environment fulfils the Environment protocol and passes the server's messages on."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack, suppress
from threading import Thread
from typing import Any

import aiohttp
import pytest
from dreamgym_client import playing
from dreamgym_client.connection import Connection, with_token
from dreamgym_client.control import ControlClient
from dreamgym_client.environment import RemoteEnvironment
from dreamgym_client.playing import play_agent
from dreamgym_server.app import build
from dreamgym_server.running import running
from dreamgym_server.sources import RealWorlds
from pydantic import JsonValue
from server_stage import ADD_TOOL, PEEK_TOOL, CounterEnvironment, Stage, counter_spec, told
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from dreamgym.environment import Environment
from dreamgym.errors import (
    EnvironmentUnavailable,
    EpisodeFinished,
    InvalidInput,
    PredictionError,
    StoreError,
    UnknownEpisode,
)
from dreamgym.types import JsonObject, Source, StepResult, StopReason, Task, ToolCall

pytestmark = pytest.mark.anyio

TASK = Task(id="brought", env="counter", instruction="Reach 10.", initial_state="count 6")


def add(n: JsonValue) -> ToolCall:
    return ToolCall(name="add", arguments={"n": n})


@pytest.mark.parametrize("token", [None, "the server's own token"])
@pytest.mark.parametrize("kind", ["dream", "real"])
async def test_an_episode_is_played_and_remembered(stage: Stage, kind: str, token: str | None) -> None:
    world = stage.dream() if kind == "dream" else stage.real()
    async with stage.serve(world, token=token) as (url, _):
        environment: Environment = (remote := RemoteEnvironment(url, "counter", token, policy_version=4))
        first = await environment.reset(TASK, seed=3)
        results = [await environment.step(add(n)) for n in (1, 3)]
        trajectory = await remote.trajectory()
        await environment.close()
    assert first.observation == "count 6"
    assert [(r.observation, r.reward, r.terminated) for r in results] == [("count 7", 0, False), ("count 10", 1, True)]
    assert [t.result.observation for t in trajectory.transitions] == ["count 7", "count 10"]
    assert (trajectory.success, trajectory.policy_version, trajectory.task) == (True, 4, TASK)
    assert trajectory.source is (Source.SYNTHETIC if kind == "dream" else Source.REAL)


async def test_the_tools_are_the_raw_definitions(stage: Stage) -> None:
    async with stage.serve() as (url, _):
        remote = RemoteEnvironment(url, "counter")
        with pytest.raises(EnvironmentUnavailable, match="after its first reset"):
            _ = remote.tools
        await remote.reset(TASK)
        assert list(remote.tools) == [ADD_TOOL, PEEK_TOOL]
        await remote.close()


async def test_the_tools_are_those_of_all_pages(stage: Stage) -> None:
    paged = counter_spec(tools_list=[{"tools": [ADD_TOOL], "nextCursor": "2"}, {"tools": [PEEK_TOOL]}])
    async with stage.serve(stage.real(paged)) as (url, _):
        remote = RemoteEnvironment(url, "counter")
        await remote.reset(TASK)
        assert list(remote.tools) == [ADD_TOOL, PEEK_TOOL]
        await remote.close()


async def test_a_refused_call_is_a_result_and_not_a_step(stage: Stage) -> None:
    async with stage.serve() as (url, _):
        remote = RemoteEnvironment(url, "counter")
        await remote.reset(TASK)
        refused = await remote.step(add("four"))
        trajectory = await remote.trajectory()
        await remote.close()
    assert refused.is_error
    assert "n: 'four' is not of type 'integer'" in refused.observation
    assert trajectory.transitions == ()


async def test_a_step_after_the_end_or_before_the_start_is_refused(stage: Stage) -> None:
    async with stage.serve() as (url, _):
        remote = RemoteEnvironment(url, "counter")
        with pytest.raises(EpisodeFinished):
            await remote.step(add(1))
        await remote.reset(TASK)
        await remote.step(add(4))
        with pytest.raises(EpisodeFinished):
            await remote.step(add(1))
        await remote.close()


async def test_an_episode_ended_from_outside_is_finished_here_too(stage: Stage) -> None:
    async with stage.serve() as (url, _), ControlClient(url) as control:
        remote = RemoteEnvironment(url, "counter")
        await remote.reset(TASK)
        await control.finish("counter", remote.episode, answer="done")
        with pytest.raises(EpisodeFinished, match="session has ended"):
            await remote.step(add(1))
        assert (await remote.trajectory()).answer == "done"
        await remote.close()


async def test_a_failing_model_is_an_unavailable_environment_and_in_the_end_an_error(stage: Stage) -> None:
    def fail(query: object) -> None:
        raise PredictionError("rubbish")

    stage.model.before = fail
    async with stage.serve() as (url, _):
        remote = RemoteEnvironment(url, "counter")
        await remote.reset(TASK)
        for _ in range(3):
            with pytest.raises(EnvironmentUnavailable):
                await remote.step(add(1))
        trajectory = await remote.trajectory()
        await remote.close()
    assert (trajectory.stop_reason, trajectory.error) == (StopReason.ERROR, "rubbish")


async def test_closing_finishes_a_running_episode_and_may_be_repeated(stage: Stage) -> None:
    async with stage.serve() as (url, _), ControlClient(url) as control:
        remote = RemoteEnvironment(url, "counter")
        await remote.close()
        await remote.reset(TASK)
        await remote.step(add(1))
        await remote.close()
        await remote.close()
        state = await control.read("counter", remote.episode)
        assert (await remote.trajectory()).stop_reason is StopReason.FINISHED
    assert (state.stop_reason, state.step, state.reward) == (StopReason.FINISHED, 1, 0.0)


async def test_an_episode_that_was_lost_is_unavailable_and_may_be_closed(stage: Stage) -> None:
    async with stage.serve() as (url, _), ControlClient(url) as control:
        remote = RemoteEnvironment(url, "counter")
        await remote.reset(TASK)
        await control.delete("counter", remote.episode)
        with pytest.raises(EnvironmentUnavailable, match=r"answered 404: .*unknown episode"):
            await remote.step(add(1))
        await remote.close()
        with pytest.raises(UnknownEpisode):
            await remote.trajectory()


async def test_an_answer_that_is_not_json_is_an_unavailable_environment(stage: Stage) -> None:
    answers = {"broken": False}

    async def sometimes(scope: Scope, receive: Receive, send: Send) -> None:
        if answers["broken"] and scope["type"] == "http":
            return await PlainTextResponse("Internal Server Error", 500)(scope, receive, send)
        return await app(scope, receive, send)

    app = build([stage.dream()], stage.buffer, stage.episodes)
    async with running(sometimes) as url:
        remote = RemoteEnvironment(url, "counter")
        await remote.reset(TASK)
        answers["broken"] = True
        with pytest.raises(EnvironmentUnavailable, match="Internal Server Error"):
            await remote.step(add(1))
        answers["broken"] = False
        assert (await remote.step(add(1))).observation == "count 7"
        await remote.close()


async def test_a_new_reset_is_a_new_episode(stage: Stage) -> None:
    async with stage.serve() as (url, _):
        remote = RemoteEnvironment(url, "counter", max_steps=1)
        await remote.reset(TASK)
        first = remote.episode
        await remote.reset(TASK)
        assert remote.episode != first
        assert (await remote.step(add(1))).truncated
        await remote.close()


async def test_episodes_may_be_reset_stepped_and_closed_by_different_tasks_in_any_order(stage: Stage) -> None:
    async with stage.serve() as (url, _):
        remotes = [RemoteEnvironment(url, "counter") for _ in range(24)]
        await asyncio.gather(*(remote.reset(TASK) for remote in remotes))
        for _ in range(2):
            results = await asyncio.gather(*(remote.step(add(n % 3)) for n, remote in enumerate(remotes)))
        await asyncio.gather(*(remote.close() for remote in remotes))
    assert [result.observation for result in results] == [f"count {6 + 2 * (n % 3)}" for n in range(24)]


@pytest.mark.parametrize(
    ("env", "task", "error", "said"),
    [
        ("nope", TASK, InvalidInput, "unknown environment 'nope': expected one of counter"),
        ("counter", TASK.model_copy(update={"env": "nope"}), InvalidInput, "belongs to environment 'nope'"),
    ],
)
async def test_a_refused_reset_says_why(stage: Stage, env: str, task: Task, error: type[Exception], said: str) -> None:
    async with stage.serve() as (url, _):
        remote = RemoteEnvironment(url, env)
        with pytest.raises(error, match=said):
            await remote.reset(task)
        await remote.close()


async def test_a_server_that_is_full_or_stopped_is_unavailable(stage: Stage) -> None:
    from dreamgym_server.sessions import Limits

    async with stage.serve(limits=Limits(open_episodes=0)) as (url, _):
        remote = RemoteEnvironment(url, "counter")
        with pytest.raises(EnvironmentUnavailable, match="0 episodes are open"):
            await remote.reset(TASK)
        await remote.close()
    with pytest.raises(EnvironmentUnavailable, match="cannot be reached"):
        await remote.reset(TASK)
    await remote.close()


async def test_the_token_is_sent(stage: Stage) -> None:
    async with stage.serve(token="secret") as (url, _):
        stranger = RemoteEnvironment(url, "counter", "wrong")
        with pytest.raises(InvalidInput, match="expected the server's bearer token"):
            await stranger.reset(TASK)
        await stranger.close()
        remote = RemoteEnvironment(url, "counter", "secret")
        await remote.reset(TASK)
        assert (await remote.step(add(1))).observation == "count 7"
        await remote.close()


async def test_a_token_may_be_a_part_of_the_url(stage: Stage) -> None:
    async with stage.serve(token="secret") as (url, _):
        remote = RemoteEnvironment(with_token(url, "secret"), "counter")
        await remote.reset(TASK)
        assert (await remote.step(add(1))).observation == "count 7"
        await remote.close()


async def test_a_step_goes_on_over_a_connection_that_a_restart_has_closed(stage: Stage) -> None:
    async with stage.serve() as (url, _):
        port = int(url.rpartition(":")[2])
        remote = RemoteEnvironment(url, "counter")
        await remote.reset(TASK)
        await remote.step(add(1))
    async with stage.serve(port=port):
        assert (await remote.step(add(1))).observation == "count 8"
        await remote.close()


async def test_a_call_that_was_made_twice_since_its_answer_was_lost_on_the_way_voids_the_episode(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, lost = Connection._send_once, [True]

    async def losing(self: Connection, method: str, path: str, body: bytes | None, headers: Any) -> Any:
        answer = await send(self, method, path, body, headers)  # a proxy takes the answer of the server
        if b"tools/call" in (body or b"") and lost and lost.pop():
            raise aiohttp.ServerDisconnectedError
        return answer

    monkeypatch.setattr(Connection, "_send_once", losing)
    async with stage.serve() as (url, _):
        remote = RemoteEnvironment(url, "counter")
        await remote.reset(TASK)
        with pytest.raises(EnvironmentUnavailable, match="took the call of step 1 twice: the episode is void"):
            await remote.step(add(1))
        with pytest.raises(EpisodeFinished):
            await remote.step(add(1))
        with pytest.raises(EnvironmentUnavailable, match="the episode is void"):
            await remote.trajectory()
        async with ControlClient(url) as control:
            with pytest.raises(UnknownEpisode):
                await control.read("counter", remote.episode)
        await remote.close()


async def test_a_step_whose_answer_was_lost_and_a_resend_after_it_do_not_void_the_episode(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Connection._send_once
    faults: list[Exception] = [aiohttp.ServerDisconnectedError(), aiohttp.InvalidURL("lost")]

    async def losing(self: Connection, method: str, path: str, body: bytes | None, headers: Any) -> Any:
        if b"tools/call" not in (body or b"") or not faults:
            return await send(self, method, path, body, headers)
        fault = faults.pop()
        if isinstance(fault, aiohttp.InvalidURL):  # the step is taken, and its answer is lost
            await send(self, method, path, body, headers)
        raise fault

    monkeypatch.setattr(Connection, "_send_once", losing)
    async with stage.serve() as (url, _):
        remote = RemoteEnvironment(url, "counter")
        await remote.reset(TASK)
        with pytest.raises(EnvironmentUnavailable):
            await remote.step(add(1))
        assert (await remote.step(add(1))).observation == "count 8"
        await remote.close()


async def test_an_episode_that_could_not_be_finished_is_finished_when_it_is_closed_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage.serve() as (url, _), ControlClient(url) as control:
        remote = RemoteEnvironment(url, "counter")
        await remote.reset(TASK)
        check = stage.breakable._check
        monkeypatch.setattr(stage.breakable, "_check", failing)
        with pytest.raises(EnvironmentUnavailable, match="the database is away"):
            await remote.close()
        monkeypatch.setattr(stage.breakable, "_check", check)
        await remote.close()
        assert (await control.read("counter", remote.episode)).stop_reason is StopReason.FINISHED


def failing() -> None:
    raise StoreError("the database is away")


async def test_arguments_that_a_schema_marks_travel_in_headers_too(stage: Stage) -> None:
    tool = {
        "name": "add",
        "inputSchema": {
            "type": "object",
            "properties": {"n": {"type": "integer"}, "région": {"type": "string", "x-mcp-header": "Region"}},
        },
    }
    async with stage.serve(stage.dream(counter_spec(tools_list={"tools": [tool]}))) as (url, _):
        remote = RemoteEnvironment(url, "counter")
        await remote.reset(TASK)
        result = await remote.step(ToolCall(name="add", arguments={"n": 1, "région": "Île-de-France"}))
        await remote.close()
    assert result.observation == "count 7"


async def test_the_control_client_starts_reads_finishes_and_deletes(stage: Stage) -> None:
    async with stage.serve() as (url, _), ControlClient(url) as control:
        started = await control.create("counter", task_id="counter-2", seed=5, max_steps=3, idempotency_key="k")
        again = await control.create("counter", task_id="counter-2", idempotency_key="k")
        assert (started.episode, started.observation) == (again.episode, "count 2")
        assert (await control.read("counter", started.episode)).trajectory is None
        finished = await control.finish("counter", started.episode, answer="two")
        assert finished.trajectory is not None
        assert finished.trajectory.answer == "two"
        await control.delete("counter", started.episode)
        with pytest.raises(UnknownEpisode):
            await control.read("counter", started.episode)
        assert [one["name"] for one in await control.environments()] == ["counter"]


async def test_a_call_waits_for_a_server_that_is_slow_to_accept_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as others:
        for _ in range(3):  # more connections than the backlog holds
            other = others.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        loop = asyncio.get_running_loop()
        async with ControlClient(f"http://127.0.0.1:{full.getsockname()[1]}") as control:
            call = asyncio.create_task(control.environments())
            await turns(100)
            now = loop.time
            monkeypatch.setattr(loop, "time", lambda: now() + 120)
            await turns(100)
            is_over = call.done()
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
    assert not is_over


async def turns(number: int) -> None:
    """Let the event loop turn this many times."""
    for _ in range(number):
        await asyncio.sleep(0)


async def test_an_observation_keeps_the_lines_of_blocks_that_are_not_text(stage: Stage) -> None:
    class Showing(CounterEnvironment):
        async def step(self, action: ToolCall) -> StepResult:
            picture: JsonObject = {"type": "image", "mimeType": "image/png", "data": "AAAA"}
            blocks: JsonObject = {"content": [{"type": "text", "text": "see"}, picture]}
            return StepResult(observation="see\n[image image/png]", info=blocks)

    async with stage.serve(RealWorlds(counter_spec(), lambda: Showing(counter_spec()))) as (url, _):
        remote = RemoteEnvironment(url, "counter")
        await remote.reset(TASK)
        seen = await remote.step(add(1))
        (stored,) = (await remote.trajectory()).transitions
        await remote.close()
    assert seen.observation == stored.result.observation == "see\n[image image/png]"


async def test_a_counted_step_that_the_tool_refused_is_an_error_result(stage: Stage) -> None:
    class Refusing(CounterEnvironment):
        async def step(self, action: ToolCall) -> StepResult:
            error: JsonObject = {"error": {"code": -32602, "message": "no such thing"}}
            return StepResult(observation="no such thing", is_error=True, info=error)

    async with stage.serve(RealWorlds(counter_spec(), lambda: Refusing(counter_spec()))) as (url, _):
        remote = RemoteEnvironment(url, "counter")
        await remote.reset(TASK)
        seen = await remote.step(add(1))
        trajectory = await remote.trajectory()
        await remote.close()
    assert (seen.observation, seen.is_error, len(trajectory.transitions)) == ("no such thing", True, 1)


def answering(response: Response) -> ASGIApp:
    """Another program, which gives one answer to every request."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            return await response(scope, receive, send)
        return await Starlette()(scope, receive, send)

    return app


async def test_a_page_at_the_address_of_a_server_is_an_unavailable_environment() -> None:
    async with running(answering(PlainTextResponse("<html>Welcome!"))) as url, ControlClient(url) as control:
        with pytest.raises(EnvironmentUnavailable, match="answered 200, expected a JSON object, got '<html>Welcome!'"):
            await control.create("counter")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ([], r"expected a JSON object, got '\[\]': check the server's address"),
        (
            {"status": "ok", "key": "sk-1"},
            "did not answer as a DreamGym server: .* its fields are 'status', 'key': check",
        ),
    ],
)
async def test_json_of_another_program_is_an_unavailable_environment(body: JsonValue, said: str) -> None:
    async with running(answering(JSONResponse(body))) as url, ControlClient(url) as control:
        remote = RemoteEnvironment(url, "counter")
        for call in (
            control.create("counter"),
            control.fork("counter", "one", 1),
            control.read("counter", "one"),
            control.finish("counter", "one"),
            control.environments(),
            remote.reset(TASK),
        ):
            with pytest.raises(EnvironmentUnavailable, match=said):
                await call
        await remote.close()


async def test_a_refusal_of_another_program_says_what_to_check(stage: Stage) -> None:
    async with stage.serve() as (url, _), ControlClient(f"{url}/envs/counter/mcp") as control:
        with pytest.raises(InvalidInput, match=r"answered 404: .* got 'Not Found': check the server's address"):
            await control.create("counter")
    other = answering(JSONResponse({"detail": "Not Found"}, 404))
    async with running(other) as url, ControlClient(url) as control:
        with pytest.raises(InvalidInput, match=r"answered 404: expected a DreamGym server, got .*: check"):
            await control.create("counter")


async def test_a_post_that_a_redirect_would_make_a_get_names_the_right_address(stage: Stage) -> None:
    async with stage.serve() as (url, _):
        moved = RedirectResponse(f"{url}/envs/counter/episodes", 301)
        async with running(answering(moved)) as old, ControlClient(old) as control:
            with pytest.raises(EnvironmentUnavailable, match=f"{old} redirects to {url}: give the address"):
                await control.create("counter")


@pytest.mark.parametrize("address", ["", "localhost:8000", ":secret@localhost:8000", "ftp://localhost:8000", "http://"])
def test_an_address_that_is_not_a_servers_is_refused(address: str) -> None:
    for client in (ControlClient, lambda url: RemoteEnvironment(url, "counter")):
        with pytest.raises(InvalidInput, match=r"such as http://127\.0\.0\.1:8000, got") as refused:
            client(address)
        assert "secret" not in str(refused.value)


async def test_a_token_may_end_with_the_newline_of_its_file(stage: Stage) -> None:
    async with stage.serve(token="secret") as (url, _), ControlClient(url, "secret\n") as control:
        assert [one["name"] for one in await control.environments()] == ["counter"]


@pytest.mark.parametrize("kind", ["dream", "real"])
async def test_an_agent_whose_server_fails_for_a_moment_has_an_unknown_reward(
    stage: Stage, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(playing, "LOOK_EVERY_S", 0.0)
    stopped = asyncio.Event()

    async def waiting(task: str, mcp_url: str, policy_url: str) -> str:
        async with told(mcp_url) as client:
            await client.call_tool("add", {"n": 1})
            monkeypatch.setattr(stage.breakable, "_check", fail_once)
            try:
                await stopped.wait()
            finally:
                stopped.set()
        return "done"

    def fail_once() -> None:
        monkeypatch.setattr(stage.breakable, "_check", lambda: None)
        raise StoreError("the database is away")

    async with stage.serve(stage.dream() if kind == "dream" else stage.real()) as (url, _):
        with pytest.raises(EnvironmentUnavailable, match="the database is away"):
            await play_agent(url, "counter", waiting, "", TASK, 0)
    (stored,) = await stage.buffer.trajectories("counter", sources=frozenset(Source))
    assert (stored.stop_reason, stored.reward, len(stored.transitions)) == (StopReason.CLOSED, None, 1)
    assert stopped.is_set()


@pytest.mark.parametrize(("given", "stored"), [(None, ""), (42, "42"), ({"coin": 1}, "{'coin': 1}")])
async def test_an_answer_that_is_no_text_becomes_one(stage: Stage, given: object, stored: str) -> None:
    async def odd(task: str, mcp_url: str, policy_url: str) -> Any:
        return given

    async with stage.serve() as (url, _):
        played = await play_agent(url, "counter", odd, "", TASK, 0)
    assert (played.answer, played.trajectory.answer) == (stored, stored)


async def test_an_episode_whose_answer_the_server_refuses_is_over_and_keeps_its_steps(stage: Stage) -> None:
    async def unsayable(task: str, mcp_url: str, policy_url: str) -> str:
        async with told(mcp_url) as client:
            await client.call_tool("add", {"n": 1})
        return "a\0b"

    async with stage.serve() as (url, _):
        with pytest.raises(InvalidInput, match="answer: text must not contain a NUL"):
            await play_agent(url, "counter", unsayable, "", TASK, 0)
        played = await play_agent(url, "counter", unsayable, "", TASK, 0, keeps_failures=True)
    assert (played.trajectory.stop_reason, len(played.trajectory.transitions)) == (StopReason.ERROR, 1)
    stored = await stage.buffer.trajectories("counter", sources=frozenset(Source))
    assert [one.stop_reason for one in stored] == [StopReason.FINISHED] * 2


def test_an_agent_that_ignores_its_cancellation_does_not_keep_the_process_from_ending(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("LOOK_EVERY_S", "PATIENCE_S", "STOP_S"):
        monkeypatch.setattr(playing, limit, 0.01)
    played: list[StopReason | None] = []

    async def deaf(task: str, mcp_url: str, policy_url: str) -> str:
        async with told(mcp_url) as client:
            await client.call_tool("add", {"n": 4})
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async def play() -> None:
        async with stage.serve() as (url, _):
            episode = await play_agent(url, "counter", deaf, "", TASK, 0)
        played.append(episode.trajectory.stop_reason)

    process = Thread(target=asyncio.run, args=[play()], daemon=True)
    process.start()
    process.join(60)
    assert played == [StopReason.TERMINATED]
    assert not process.is_alive()


async def test_an_agent_that_cancels_itself_has_failed_like_one_that_raises(stage: Stage) -> None:
    async def leaking(task: str, mcp_url: str, policy_url: str) -> str:
        raise asyncio.CancelledError("of a scope of the agent's own")

    async with stage.serve() as (url, _):
        played = await play_agent(url, "counter", leaking, "", TASK, 0, keeps_failures=True)
        with pytest.raises(RuntimeError, match="the agent was cancelled before its episode was over"):
            await play_agent(url, "counter", leaking, "", TASK, 0)
    assert played.trajectory.stop_reason is StopReason.ERROR


async def test_the_episode_of_a_cancelled_agent_is_closed(stage: Stage) -> None:
    started = asyncio.Event()

    async def waiting(task: str, mcp_url: str, policy_url: str) -> str:
        async with told(mcp_url) as client:
            await client.call_tool("add", {"n": 1})
            started.set()
            await asyncio.Event().wait()
        return "never"

    async with stage.serve(stage.real()) as (url, _):
        playing_it = asyncio.create_task(play_agent(url, "counter", waiting, "", TASK, 0))
        await started.wait()
        playing_it.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing_it
    (stored,) = await stage.buffer.trajectories("counter")
    assert (stored.stop_reason, stored.reward, len(stored.transitions)) == (StopReason.CLOSED, None, 1)


async def test_an_agent_that_raises_ends_its_episode_at_once_without_success(stage: Stage) -> None:
    async def crashing(task: str, mcp_url: str, policy_url: str) -> str:
        async with told(mcp_url) as client:
            await client.call_tool("add", {"n": 1})
        raise ConnectionError("the agent lost its mind")

    async with stage.serve(stage.real()) as (url, _):
        with pytest.raises(ConnectionError, match="the agent lost its mind"):
            await play_agent(url, "counter", crashing, "", TASK, 0)
    (stored,) = await stage.buffer.trajectories("counter")
    assert (stored.stop_reason, stored.success, len(stored.transitions)) == (StopReason.FINISHED, False, 1)
