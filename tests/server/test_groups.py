"""The episodes of a group differ only by the policy: later recordings do not change their demonstrations."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from dreamgym_client.environment import RemoteEnvironment
from dreamgym_server.sources import DreamWorlds
from server_stage import Stage, counter_spec

from dreamgym.dream.language_model import LanguageModel
from dreamgym.llm import Message, ScriptedLLM
from dreamgym.replay.postgres import Store
from dreamgym.types import Source, ToolCall

pytestmark = pytest.mark.anyio


def as_shown(messages: Sequence[Message]) -> str:
    """Answer with the number of demonstrations in the prompt. As a judge, never accept a success."""
    if "You check" in messages[0].content:
        return json.dumps({"reasoning": "", "accomplished": False})
    block = re.search(r"<recorded>\n(.*?)\n</recorded>", messages[-1].content, re.DOTALL)
    assert block is not None
    shown = [line for line in block[1].split("\n") if line != "(none)"]
    answer = {"reasoning": "", "observation": f"shown {len(shown)}", "state": "count 0"}
    return json.dumps({**answer, "error": False, "terminated": False, "success": False})


@pytest.fixture
def env() -> str:
    """An environment name of this test's own, because the database is shared."""
    return f"counter-{uuid.uuid4().hex[:12]}"


@asynccontextmanager
async def server(store: Store, env: str) -> AsyncIterator[str]:
    """Serve the store with new objects, as a server process of its own does. Yields the URL."""
    stage = Stage(store.buffer, store.episodes)
    world = DreamWorlds(counter_spec(env), LanguageModel(ScriptedLLM(as_shown)), store.buffer)
    async with stage.serve(world) as (url, _):
        yield url


async def seen(url: str, env: str, *, group: str | None, seed: int = 1, adds: Sequence[int] = (1, 2)) -> list[str]:
    """Play an episode and return its answers. It then has ended and will soon be in the buffer."""
    remote = RemoteEnvironment(url, env, group=group)
    await remote.reset(counter_spec(env).tasks[0], seed=seed)
    answers = [(await remote.step(ToolCall(name="add", arguments={"n": n}))).observation for n in adds]
    await remote.close()
    return answers


async def test_a_stored_episode_is_a_demonstration_for_later_groups_and_not_for_its_own(store: Store, env: str) -> None:
    async with server(store, env) as url:
        first = await seen(url, env, group="a", adds=(5, 6))
    # the first server stored its episode before it stopped; the second one uses the same database
    assert len(await store.buffer.trajectories(env, sources=frozenset(Source))) == 1
    async with server(store, env) as url:
        second = await seen(url, env, group="a", adds=(5, 6))
        other_seed = await seen(url, env, group="a", seed=2, adds=(5, 6))
        later = await seen(url, env, group="b", adds=(5, 6))
        alone = await seen(url, env, group=None, adds=(5, 6))
    assert first == second == ["shown 0", "shown 0"]
    assert "shown 0" not in other_seed + later + alone


async def test_a_fork_stays_in_the_group_of_its_episode(store: Store, env: str) -> None:
    stage = Stage(store.buffer, store.episodes)
    async with server(store, env) as url:
        await seen(url, env, group="a")
    world = DreamWorlds(counter_spec(env), LanguageModel(ScriptedLLM(as_shown)), store.buffer)
    async with stage.serve(world) as (_, http):
        made = (await http.post(f"/envs/{env}/episodes", json={"group": "a", "seed": 1})).json()
        path = f"/envs/{env}/episodes/{made['episode']}"
        forked = (await http.post(f"{path}/fork", json={"step": 0})).json()
        episodes = [await store.episodes.load(one["episode"]) for one in (made, forked)]
    assert [episode.as_of for episode in episodes] == [0, 0]
    assert await store.buffer.watermark(env) == 1
