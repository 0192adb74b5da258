"""Answered steps are never lost silently: abandoned episodes, failing stores, and histories that become shorter."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import pytest
from answers import text_of
from dreamgym_client.environment import RemoteEnvironment
from dreamgym_server.sessions import LOST, NOT_RECORDED, UNAVAILABLE, UNCONFIRMED, Episodes, NewEpisode
from mcp import Client
from server_stage import BreakableStore, Someone, Stage, counter_spec

from dreamgym.embedding import TrigramEncoder
from dreamgym.errors import EnvironmentUnavailable, EpisodeFinished, InvalidInput, NotRecorded, StoreError
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.replay.postgres import Store
from dreamgym.types import Source, StopReason, Task, ToolCall, Trajectory

pytestmark = pytest.mark.anyio

ADD = ToolCall(name="add", arguments={"n": 1})
ALL = frozenset(Source)
EPISODES = "/envs/counter/episodes"


class FailingAppends(BreakableStore):
    """Fails in `append` while `fails` is set: before the step is stored or, if `stores` is set, after it."""

    fails = False
    stores = False

    async def append(self, *args: Any, **options: Any) -> None:
        if self.fails and not self.stores:
            raise StoreError("the disk is full")
        await super().append(*args, **options)
        if self.fails:
            raise StoreError("the connection was lost")


class TellingBuffer(MemoryBuffer):
    """Sets an event when something is added. Refuses every trajectory of a task called `bad`."""

    def __init__(self) -> None:
        super().__init__(TrigramEncoder())
        self.added = asyncio.Event()

    async def add(self, trajectories: Sequence[Trajectory]) -> int:
        if any(trajectory.task.id == "bad" for trajectory in trajectories):
            raise InvalidInput("too long for an index")
        added = await super().add(trajectories)
        self.added.set()
        return added


def server(stage: Stage, env: str = "counter") -> Episodes:
    """A server process without HTTP. It adds nothing to the buffer by itself, like a server that is killed at once."""
    return Episodes({env: stage.dream(counter_spec(env))}, stage.episodes, stage.buffer)


async def left_behind(stage: Stage, env: str = "counter", **order: Any) -> str:
    """Play and finish an episode that does not reach the buffer. Returns its id."""
    killed = server(stage, env)
    made = await killed.create(env, NewEpisode(**order))
    await killed.call(env, made.id, ADD, Someone())
    return (await killed.finish(env, made.id, success=True)).id


async def kept(stage: Stage, env: str = "counter") -> list[str]:
    return sorted(trajectory.id for trajectory in await stage.buffer.trajectories(env, sources=ALL))


async def test_an_episode_that_a_killed_server_finished_is_stored_when_the_next_one_starts() -> None:
    buffer = TellingBuffer()
    stage = Stage(buffer, BreakableStore())
    episode = await left_behind(stage)
    assert await kept(stage) == []
    async with stage.serve():
        await buffer.added.wait()
        assert await kept(stage) == [episode]
    assert await stage.episodes.unarchived(["counter"], limit=9) == ()


async def test_two_replicas_that_find_the_same_episodes_store_each_once(store: Store) -> None:
    stage, env = Stage(store.buffer, store.episodes), f"counter-{uuid.uuid4().hex[:12]}"
    episodes = [await left_behind(stage, env) for _ in range(3)]
    await asyncio.gather(server(stage, env).sweep(), server(stage, env).sweep())
    await server(stage, env).sweep()
    assert await kept(stage, env) == sorted(episodes)


async def test_a_dream_that_was_retired_does_not_come_back(store: Store) -> None:
    stage, env = Stage(store.buffer, store.episodes), f"counter-{uuid.uuid4().hex[:12]}"
    for _ in range(2):
        await left_behind(stage, env)
    await server(stage, env).sweep()
    for version in range(2):
        await store.buffer.record_outcomes(env, f"{env}-0", version, [1.0] * 8)
    assert await store.buffer.retire(env, keep=1) == 1
    await server(stage, env).sweep()
    assert len(await kept(stage, env)) == 1


async def test_a_failed_or_empty_episode_is_swept_only_once(stage: Stage) -> None:
    killed = server(stage)
    empty, failed = [await killed.create("counter", NewEpisode()) for _ in range(2)]
    await killed.finish("counter", empty.id)
    await killed.call("counter", failed.id, ADD, Someone())
    await killed.finish("counter", failed.id, StopReason.ERROR)
    await server(stage).sweep()
    assert await kept(stage) == []
    assert await stage.episodes.unarchived(["counter"], limit=9) == ()


async def test_an_episode_that_could_not_be_stored_in_time_counts_until_the_sweep_has_stored_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dreamgym_server.archive.ATTEMPTS", 0)
    episodes = server(stage)
    async with episodes.running():
        made = await episodes.create("counter", NewEpisode())
        await episodes.call("counter", made.id, ADD, Someone())
        await episodes.finish("counter", made.id, success=True)
        await episodes.archived()
        before = episodes.unarchived
        await episodes.sweep()
    assert (before, episodes.unarchived, await kept(stage)) == (1, 0, [made.id])


async def test_a_deleted_episode_is_kept_in_the_buffer(stage: Stage) -> None:
    killed = server(stage)
    made = await killed.create("counter", NewEpisode())
    await killed.call("counter", made.id, ADD, Someone())
    await killed.delete("counter", made.id)
    assert await kept(stage) == [made.id]


@pytest.mark.parametrize("at", ["the sweep", "the end"])
async def test_a_trajectory_that_cannot_be_stored_does_not_affect_the_others(at: str) -> None:
    stage = Stage(TellingBuffer(), BreakableStore())
    tasks = [Task(id=name, env="counter", instruction="", initial_state="count 0") for name in ("a", "bad", "c")]
    if at == "the sweep":
        made = [await left_behind(stage, task=task) for task in tasks]
        await server(stage).sweep()
    else:
        async with stage.serve() as (_, http):
            started = [(await http.post(EPISODES, json={"task": task.model_dump(mode="json")})) for task in tasks]
            made = [answer.json()["episode"] for answer in started]

            async def play(url: str) -> None:
                async with Client(url) as client:
                    await client.call_tool("add", {"n": 10})

            await asyncio.gather(*(play(answer.json()["mcp_url"]) for answer in started))
    assert await kept(stage) == sorted([made[0], made[2]])
    left = [episode.id for episode in await stage.episodes.unarchived(["counter"], limit=9)]
    assert left == [made[1]], "the next server tries it again"


async def test_a_text_that_is_too_long_for_an_index_is_not_reported_as_an_unreachable_database(store: Store) -> None:
    long = "".join(uuid.uuid4().hex for _ in range(200))
    with pytest.raises(InvalidInput, match="cannot store this: index row"):
        await store.buffer.add_tasks([Task(id=long, env="counter", instruction="")])


async def test_failures_of_the_store_do_not_end_an_episode(stage: Stage) -> None:
    stage.episodes = store = FailingAppends()
    episodes = server(stage)
    made = await episodes.create("counter", NewEpisode())
    store.fails = True
    answers = [await episodes.call("counter", made.id, ADD, Someone()) for _ in range(5)]
    store.fails = False
    good = await episodes.call("counter", made.id, ADD, Someone())
    assert {answer.uncounted for answer in answers} == {"unavailable"}
    assert not any(answer.result.done for answer in answers)
    assert (good.step, good.text) == (1, "count 1")


async def test_a_stored_step_without_confirmation_is_the_answer_to_the_same_call(stage: Stage) -> None:
    stage.episodes = store = FailingAppends()
    store.stores = True
    episodes = server(stage)
    made = await episodes.create("counter", NewEpisode())
    store.fails = True
    failed = await episodes.call("counter", made.id, ADD, Someone())
    store.fails = False
    again = await episodes.call("counter", made.id, ADD, Someone())
    after = await episodes.call("counter", made.id, ADD, Someone())
    assert (failed.text, failed.uncounted) == (UNCONFIRMED, "unavailable")
    assert UNCONFIRMED != UNAVAILABLE, "UNAVAILABLE says that the call had no effect"
    assert [(answer.step, answer.text) for answer in (again, after)] == [(1, "count 1"), (2, "count 2")]


def forget_last_step(store: BreakableStore, episode: str) -> None:
    """Remove the last step, as a restored database does, or one that does not wait for its disk."""
    stored = store._episodes[episode]
    store._episodes[episode] = stored.model_copy(update={"transitions": stored.transitions[:-1]})


async def test_a_failure_after_a_resend_was_stored_is_told_as_itself(stage: Stage) -> None:
    def fail(query: object) -> None:
        raise NotRecorded("no recording")

    store = FailingAppends()
    episodes = Episodes({"counter": stage.dream()}, store, stage.buffer)
    made = await episodes.create("counter", NewEpisode())
    store.fails = True
    unconfirmed = await episodes.call("counter", made.id, ADD, Someone())
    store.fails = False
    resent = await episodes.call("counter", made.id, ADD, Someone())
    stage.model.before = fail
    failed = await episodes.call("counter", made.id, ADD, Someone())
    assert (unconfirmed.text, resent.step, failed.text) == (UNCONFIRMED, 1, NOT_RECORDED)


async def test_an_agent_gets_an_error_if_an_answered_step_is_lost(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        made = (await http.post(EPISODES, json={})).json()
        async with Client(made["mcp_url"]) as client:
            for _ in range(2):
                await client.call_tool("add", {"n": 1})
            forget_last_step(stage.breakable, made["episode"])
            result = await client.call_tool("add", {"n": 1})
        state = (await http.get(f"{EPISODES}/{made['episode']}")).json()
    assert (result.is_error, text_of(result)) == (True, LOST)
    assert (state["stop_reason"], state["step"]) == ("error", 1)
    assert state["error"] == "the database has 1 steps of this episode, but 2 were answered"
    assert await kept(stage) == []


async def test_an_episode_that_lost_a_step_cannot_be_finished_as_if_it_had_not(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        made = (await http.post(EPISODES, json={})).json()
        async with Client(made["mcp_url"]) as client:
            await client.call_tool("add", {"n": 1})
        forget_last_step(stage.breakable, made["episode"])
        state = (await http.post(f"{EPISODES}/{made['episode']}/finish", json={"success": True})).json()
    assert (state["stop_reason"], state["reward"]) == ("error", None)


async def test_a_remote_environment_notices_a_lost_step_whichever_server_it_reaches(stage: Stage) -> None:
    async with stage.serve() as (url, _):
        port = urlsplit(url).port or 0
        remote = RemoteEnvironment(url, "counter")
        await remote.reset(counter_spec().tasks[0])
        for _ in range(2):
            await remote.step(ADD)
    forget_last_step(stage.breakable, remote.episode)
    async with stage.serve(port=port):
        with pytest.raises(EnvironmentUnavailable, match="has lost step 2, which it had answered"):
            await remote.step(ADD)
        with pytest.raises(EpisodeFinished):
            await remote.step(ADD)
        await remote.close()


async def test_readiness_asks_the_database_and_liveness_does_not(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dreamgym_server.readiness.KEPT_S", 0.0)
    async with stage.serve(token="secret") as (_, http):
        ready = await http.get("/readyz")
        stage.breakable.broken = True
        away = await http.get("/readyz")
        alive = await http.get("/healthz")
    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
    assert (away.status_code, away.json()) == (
        503,
        {"status": "unavailable", "error": "the database does not answer or takes no writes"},
    )
    assert (alive.status_code, alive.json()) == (200, {"status": "alive", "see": "/readyz"})
