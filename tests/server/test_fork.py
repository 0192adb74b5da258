"""A fork is a new episode that begins with the first steps of another one."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from answers import text_of
from dreamgym_client.control import ControlClient
from dreamgym_server.sources import RealWorlds
from mcp import Client
from server_stage import CounterEnvironment, Stage, counter_spec

from dreamgym.errors import InvalidInput, UnknownEpisode
from dreamgym.types import Source

pytestmark = pytest.mark.anyio

EPISODES = "/envs/counter/episodes"


async def played(http: httpx2.AsyncClient, *adds: int, **order: object) -> dict[str, Any]:
    """Play an episode that adds these numbers. Returns the answer to its creation."""
    made: dict[str, Any] = (await http.post(EPISODES, json=order)).json()
    async with Client(made["mcp_url"]) as client:
        for n in adds:
            await client.call_tool("add", {"n": n})
    return made


async def add(url: str, n: int) -> str:
    async with Client(url) as client:
        return text_of(await client.call_tool("add", {"n": n}))


@pytest.mark.parametrize("kind", ["dream", "real"])
async def test_a_fork_goes_on_from_its_step_and_leaves_the_first_episode_alone(stage: Stage, kind: str) -> None:
    async with stage.serve(stage.dream() if kind == "dream" else stage.real()) as (_, http):
        made = await played(http, 1, 2, 3, seed=5, group="g", policy_version=4, task_id="counter-1", max_steps=7)
        forked = await http.post(f"{EPISODES}/{made['episode']}/fork", json={"step": 2})
        assert await add(forked.json()["mcp_url"], 4) == "count 8"
        assert await add(made["mcp_url"], 1) == "count 8"
        first = await stage.episodes.load(made["episode"])
        second = await stage.episodes.load(forked.json()["episode"])
    assert (forked.status_code, set(forked.json())) == (201, set(made))
    assert forked.json()["observation"] == "count 4"
    assert second.transitions[:2] == first.transitions[:2]
    assert [step.action.arguments["n"] for step in second.transitions] == [1, 2, 4]
    followed = ("task", "seed", "group", "policy_version", "max_steps", "initial")
    assert [getattr(second, name) for name in followed] == [getattr(first, name) for name in followed]


async def test_a_finished_episode_is_forked_before_its_end_and_both_are_kept(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        made = await played(http, 1, 9)
        forked = (await http.post(f"{EPISODES}/{made['episode']}/fork", json={"step": 1})).json()
        assert await add(forked["mcp_url"], 2) == "count 3"
        await http.post(f"{EPISODES}/{forked['episode']}/finish", json={"success": False})
    first, second = await stage.buffer.trajectories("counter", sources=frozenset(Source))
    assert [(one.success, len(one.transitions)) for one in (first, second)] == [(True, 2), (False, 2)]


async def test_an_episode_that_was_finished_may_be_forked_at_its_last_step(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        made = await played(http, 1)
        await http.post(f"{EPISODES}/{made['episode']}/finish", json={"answer": "enough"})
        forked = (await http.post(f"{EPISODES}/{made['episode']}/fork", json={"step": 1})).json()
        assert await add(forked["mcp_url"], 2) == "count 3"
        assert (await stage.episodes.load(forked["episode"])).answer is None


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"step": 3}, 400, "cannot fork at step 3: episode '{id}' has 2 steps; choose a step from 0 to 2"),
        ({"step": 2}, 400, "cannot fork at step 2: it ended episode '{id}'; choose a step from 0 to 1"),
        ({"step": -1}, 400, "request body: step: Input should be greater than or equal to 0"),
        ({}, 400, "request body: step: Field required"),
        ({"step": 1, "seed": 2}, 400, "request body: seed: unknown key; the keys are idempotency_key, step"),
    ],
)
async def test_a_fork_at_an_impossible_step_is_refused_with_the_reason(
    stage: Stage, body: Any, status: int, said: str
) -> None:
    async with stage.serve() as (_, http):
        made = await played(http, 1, 9)
        answer = await http.post(f"{EPISODES}/{made['episode']}/fork", json=body)
    assert (answer.status_code, answer.json()["error"]) == (status, said.replace("{id}", made["episode"]))


async def test_an_unknown_episode_or_environment_cannot_be_forked(stage: Stage) -> None:
    async with stage.serve(stage.dream(), stage.dream(counter_spec("other"))) as (_, http):
        made = await played(http, 1)
        paths = [f"{EPISODES}/nope/fork", "/envs/nope/episodes/x/fork", f"/envs/other/episodes/{made['episode']}/fork"]
        answers = [await http.post(path, json={"step": 0}) for path in paths]
    assert [answer.status_code for answer in answers] == [404, 404, 404]


async def test_a_real_environment_that_cannot_be_restored_cannot_be_forked(stage: Stage) -> None:
    async with stage.serve(stage.real()) as (_, http):
        made = await played(http, 1)
    async with stage.serve(stage.real(salt="!")) as (_, http):
        answer = await http.post(f"{EPISODES}/{made['episode']}/fork", json={"step": 1})
        state = (await http.get(f"{EPISODES}/{made['episode']}")).json()
    assert answer.status_code == 409
    assert "could not be restored: step 0 answered 'count 0' before and 'count 0!'" in answer.json()["error"]
    assert state["stop_reason"] is None


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("kind", ["dream", "real"])
async def test_a_server_does_not_fork_or_continue_episodes_of_the_other_kind(
    stage: Stage, kind: str, steps: int
) -> None:
    here, there = (stage.dream(), stage.real()) if kind == "dream" else (stage.real(), stage.dream())
    async with stage.serve(here) as (_, http):
        made = await played(http, *[1] * steps)
    async with stage.serve(there) as (url, http):
        forked = await http.post(f"{EPISODES}/{made['episode']}/fork", json={"step": steps})
        assert "The session has ended." in await add(url + urlsplit(made["mcp_url"]).path, 1)
        state = (await http.get(f"{EPISODES}/{made['episode']}")).json()
    kinds = ("synthetic", "real") if kind == "dream" else ("real", "synthetic")
    fault = "the episode is {}, but this server's episodes of 'counter' are {}: go on at a server of".format(*kinds)
    assert (forked.status_code, state["step"], state["stop_reason"]) == (409, steps, "error")
    assert forked.json()["error"].startswith(fault)
    assert state["error"].startswith(fault)
    assert await stage.buffer.trajectories("counter", sources=frozenset(Source)) == ()


async def test_the_steps_of_a_server_that_keeps_nothing_are_not_stored_although_a_keeping_one_began_the_episode(
    stage: Stage,
) -> None:
    spec = counter_spec()
    async with stage.serve(stage.real(spec)) as (_, http):
        made = await played(http, 1)
    async with stage.serve(RealWorlds(spec, lambda: CounterEnvironment(spec), keeps=False)) as (url, http):
        forked = (await http.post(f"{EPISODES}/{made['episode']}/fork", json={"step": 1})).json()
        assert await add(forked["mcp_url"], 9) == "count 10"
        assert "The session has ended." in await add(url + urlsplit(made["mcp_url"]).path, 9)
    assert await stage.buffer.trajectories("counter", sources=frozenset(Source)) == ()


async def test_another_process_continues_the_fork(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        made = await played(http, 1, 2)
        forked = (await http.post(f"{EPISODES}/{made['episode']}/fork", json={"step": 1})).json()
    async with stage.serve() as (url, _):
        assert await add(url + urlsplit(forked["mcp_url"]).path, 4) == "count 5"


async def test_an_idempotency_key_counts_for_one_environment_and_one_verb(stage: Stage) -> None:
    async with stage.serve(stage.dream(), stage.dream(counter_spec("other"))) as (url, http):
        made = await played(http, 1, 2, idempotency_key="k")
        async with ControlClient(url) as control:
            other = await control.create("other", idempotency_key="k")
            forks = [await control.fork("counter", made["episode"], step, idempotency_key="k") for step in (1, 1, 2)]
            again = await control.create("counter", idempotency_key="k")
    assert (again.episode, other.task.env) == (made["episode"], "other")
    assert forks[0] == forks[1]
    assert len({made["episode"], other.episode, forks[0].episode, forks[2].episode}) == 4
    assert [fork.observation for fork in forks[1:]] == ["count 1", "count 3"]


async def test_the_control_client_forks_and_a_request_sent_twice_makes_one_fork(stage: Stage) -> None:
    async with stage.serve() as (url, http), ControlClient(url) as control:
        made = await played(http, 1, 2)
        forks = [await control.fork("counter", made["episode"], 1, idempotency_key=key) for key in "aab"]
        assert (forks[0].episode == forks[1].episode, forks[1].episode == forks[2].episode) == (True, False)
        assert (await control.read("counter", forks[0].episode)).step == 1
        with pytest.raises(InvalidInput, match="has 2 steps"):
            await control.fork("counter", made["episode"], 9)
        with pytest.raises(UnknownEpisode):
            await control.fork("counter", "nope", 0)
