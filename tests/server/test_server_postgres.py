"""The server over PostgreSQL: replicas share episodes, a restart loses nothing, and played episodes are kept."""

from __future__ import annotations

import asyncio
import uuid
from urllib.parse import urlsplit

import psycopg
import pytest
from answers import meta_of, text_of
from dreamgym_client.environment import RemoteEnvironment
from dreamgym_server.sources import RealWorlds
from mcp import Client
from mcp.shared.exceptions import MCPError
from server_stage import CounterEnvironment, Stage, counter_spec, told

from dreamgym.errors import EnvironmentUnavailable, UnknownName
from dreamgym.replay.postgres import Store
from dreamgym.replay.postgres.forget import forget, held_of
from dreamgym.types import Source, StepResult, ToolCall

pytestmark = pytest.mark.anyio


@pytest.fixture
def env() -> str:
    """An environment name of this test's own, because the database is shared."""
    return f"counter-{uuid.uuid4().hex[:12]}"


@pytest.mark.parametrize("kind", ["dream", "real"])
async def test_sixteen_parallel_episodes_go_on_after_a_restart_and_end_in_the_buffer(
    store: Store, env: str, kind: str
) -> None:
    stage = Stage(store.buffer, store.episodes)
    spec = counter_spec(env)
    world = stage.dream if kind == "dream" else stage.real
    async with stage.serve(world(spec)) as (_, http):
        made = [
            (await http.post(f"/envs/{env}/episodes", json={"task_id": f"{env}-{n % 3}", "seed": n})).json()
            for n in range(16)
        ]

        async def begin(number: int) -> str:
            async with told(made[number]["mcp_url"], mode="legacy" if number % 2 else "auto") as client:
                return text_of(await client.call_tool("add", {"n": 1 + number % 2}))

        begun = await asyncio.gather(*map(begin, range(16)))
    async with stage.serve(world(spec)) as (url, http):

        async def end(number: int) -> float:
            count = number % 3 + 1 + number % 2
            async with told(url + urlsplit(made[number]["mcp_url"]).path) as client:
                result = await client.call_tool("add", {"n": 10 - count})
                return float(meta_of(result)["dreamgym/reward"])

        rewards = await asyncio.gather(*map(end, range(16)))
    played = await store.buffer.trajectories(env, sources=frozenset(Source))
    assert begun == [f"count {n % 3 + 1 + n % 2}" for n in range(16)]
    assert rewards == [1.0] * 16
    assert {trajectory.id for trajectory in played} == {one["episode"] for one in made}
    assert {trajectory.source for trajectory in played} == {Source.SYNTHETIC if kind == "dream" else Source.REAL}


async def test_any_replica_serves_any_call_and_no_step_is_lost_or_taken_twice(store: Store, env: str) -> None:
    stage = Stage(store.buffer, store.episodes)
    spec = counter_spec(env)
    async with stage.serve(stage.dream(spec)) as (_, http), stage.serve(stage.dream(spec)) as (there, _):
        made = (await http.post(f"/envs/{env}/episodes", json={})).json()
        urls = [made["mcp_url"], there + urlsplit(made["mcp_url"]).path]

        async def call(turn: int) -> int:
            async with Client(urls[turn % 2]) as client:
                return int(meta_of(await client.call_tool("add", {"n": 1}))["dreamgym/step"])

        steps = [await call(turn) for turn in range(4)]
        state = (await http.get(f"/envs/{env}/episodes/{made['episode']}")).json()
    assert steps == [1, 2, 3, 4]
    assert state["step"] == 4


async def test_a_remote_environment_is_played_over_the_database(store: Store, env: str) -> None:
    stage = Stage(store.buffer, store.episodes)
    spec = counter_spec(env)
    async with stage.serve(stage.real(spec)) as (url, _):
        remote = RemoteEnvironment(url, env)
        await remote.reset(spec.tasks[1])
        result = await remote.step(ToolCall(name="add", arguments={"n": 9}))
        trajectory = await remote.trajectory()
        await remote.close()
    assert (result.observation, trajectory.success, trajectory.task.id) == ("count 10", True, spec.tasks[1].id)


async def test_an_episode_of_a_real_environment_that_keeps_nothing_never_enters_the_buffer(
    store: Store, env: str
) -> None:
    stage = Stage(store.buffer, store.episodes)
    spec = counter_spec(env)
    unkept = RealWorlds(spec, lambda: CounterEnvironment(spec), keeps=False)
    async with stage.serve(unkept) as (_, http):
        finished, deleted, left = [(await http.post(f"/envs/{env}/episodes", json={})).json() for _ in range(3)]
        for made in (finished, deleted, left):
            async with told(made["mcp_url"]) as client:
                await client.call_tool("add", {"n": 1})
        await http.post(f"/envs/{env}/episodes/{finished['episode']}/finish", json={})
        await http.delete(f"/envs/{env}/episodes/{deleted['episode']}")
        forked = (await http.post(f"/envs/{env}/episodes/{left['episode']}/fork", json={"step": 1})).json()
    async with stage.serve(stage.dream(spec)) as (_, http):
        for made in (left, forked):
            await http.post(f"/envs/{env}/episodes/{made['episode']}/finish", json={})
    assert await store.episodes.unarchived([env], limit=9) == ()
    assert await store.buffer.trajectories(env, sources=frozenset(Source)) == ()


async def test_a_server_goes_on_when_its_environment_is_forgotten_and_its_episodes_are_unknown(
    store: Store, env: str
) -> None:
    stage = Stage(store.buffer, store.episodes)
    spec = counter_spec(env)
    async with stage.serve(stage.dream(spec)) as (url, http):
        over, begun = [(await http.post(f"/envs/{env}/episodes", json={})).json() for _ in range(2)]
        for made in (over, begun):
            async with told(made["mcp_url"]) as client:
                await client.call_tool("add", {"n": 1})
        await http.delete(f"/envs/{env}/episodes/{over['episode']}")
        done = await forget(store.database, env)
        assert (done.trajectories, done.episodes) == (1, 1)
        assert (await http.get(f"/envs/{env}/episodes/{begun['episode']}")).status_code == 404
        async with Client(begun["mcp_url"]) as client:
            with pytest.raises(MCPError, match="unknown episode"):
                await client.call_tool("add", {"n": 1})
        async with Client(f"{url}/envs/{env}/mcp") as client:
            assert text_of(await client.call_tool("add", {"n": 1}))
        made = (await http.post(f"/envs/{env}/episodes", json={})).json()
        await http.delete(f"/envs/{env}/episodes/{made['episode']}")
    with pytest.raises(UnknownName):
        await forget(store.database, "nothing of this name")


async def test_episodes_of_an_environment_without_recordings_are_shown_and_forgotten(store: Store, env: str) -> None:
    stage = Stage(store.buffer, store.episodes)
    spec = counter_spec(env)
    unkept = RealWorlds(spec, lambda: CounterEnvironment(spec), keeps=False)
    async with stage.serve(unkept) as (_, http):
        await http.post(f"/envs/{env}/episodes", json={})
    assert (await held_of(store.database, env)).episodes == 1
    assert (await forget(store.database, env)).episodes == 1
    with pytest.raises(UnknownName):
        await held_of(store.database, env)


async def test_an_error_text_that_postgresql_cannot_store_does_not_keep_its_episode_open(
    store: Store, env: str
) -> None:
    class Panicking(CounterEnvironment):
        async def step(self, action: ToolCall) -> StepResult:
            raise EnvironmentUnavailable("panic at \x00 \udc80")

    stage, spec = Stage(store.buffer, store.episodes), counter_spec(env)
    async with stage.serve(RealWorlds(spec, lambda: Panicking(spec))) as (_, http):
        made = (await http.post(f"/envs/{env}/episodes", json={})).json()
        async with Client(made["mcp_url"]) as client:
            for _ in range(3):
                await client.call_tool("add", {"n": 1})
        state = (await http.get(f"/envs/{env}/episodes/{made['episode']}")).json()
    assert (state["stop_reason"], state["error"]) == ("error", "panic at \ufffd ?")


async def test_a_server_whose_database_takes_no_writes_is_not_ready(
    store: Store, dsn: str, env: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dreamgym_server.readiness.KEPT_S", 0.0)
    stage = Stage(store.buffer, store.episodes)
    async with stage.serve(stage.dream(counter_spec(env))) as (_, http):
        ready = await http.get("/readyz")
        with psycopg.connect(dsn, autocommit=True) as owner:
            owner.execute(f"ALTER DATABASE {owner.info.dbname} SET default_transaction_read_only = on")
            owner.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
        refused = await http.get("/readyz")
    assert (ready.status_code, refused.status_code) == (200, 503)
    assert refused.json()["error"] == "the database does not answer or takes no writes"
