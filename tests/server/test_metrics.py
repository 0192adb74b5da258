"""`/metrics`: the counters and timings of a server, for Prometheus."""

from __future__ import annotations

import json
from collections.abc import Sequence

import httpx2
import pytest
from dreamgym_server.sources import DreamWorlds
from mcp import Client
from prometheus_client.parser import text_string_to_metric_families
from server_stage import Stage, counter_spec

from dreamgym.dream.language_model import LanguageModel
from dreamgym.dream.model import Query
from dreamgym.dream.questions import CachedLLM, MemoryPredictions
from dreamgym.errors import BudgetSpent, EnvironmentUnavailable
from dreamgym.llm import Completion, Message, ScriptedLLM
from dreamgym.replay.postgres import Store
from dreamgym.types import JsonObject

pytestmark = pytest.mark.anyio

TOKEN = "a-token-of-the-server"
AUTHORIZED = {"authorization": f"Bearer {TOKEN}"}


class CountingLLM(ScriptedLLM):
    """Predicts `count 1`, with 30 prompt tokens and 7 completion tokens. Fails for 13; the budget is spent at 14."""

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        schema: JsonObject | None = None,
        max_tokens: int = 512,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Completion:
        if "13" in messages[-1].content:
            raise EnvironmentUnavailable("the endpoint is away")
        if "14" in messages[-1].content:
            raise BudgetSpent("the budget of 1 call is spent")
        said = {"reasoning": "", "observation": "count 1", "state": None}
        flags = {"error": False, "terminated": False, "success": False}
        return Completion(text=json.dumps({**said, **flags}), prompt_tokens=30, completion_tokens=7)


async def samples(http: httpx2.AsyncClient, **headers: str) -> dict[tuple[str, ...], float]:
    """Return every sample by its name and its labels' values, in the order of the labels' names."""
    answer = await http.get("/metrics", headers=headers)
    assert answer.status_code == 200
    families = text_string_to_metric_families(answer.text)
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


async def created(http: httpx2.AsyncClient) -> str:
    return str((await http.post("/envs/counter/episodes", json={})).json()["mcp_url"])


async def test_calls_are_counted_by_environment_tier_and_outcome(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        async with Client(await created(http)) as client:
            for arguments in ({"n": 4}, {"n": "four"}, {"n": 6}, {"n": 1}):
                await client.call_tool("add", arguments)
        counted = await samples(http)
    assert counted["dreamgym_tool_calls_total", "counter", "step", "model"] == 2
    assert counted["dreamgym_tool_calls_total", "counter", "refused", ""] == 1
    assert counted["dreamgym_tool_calls_total", "counter", "ended", ""] == 1
    assert counted["dreamgym_tool_call_seconds_count", "counter", "model"] == 2
    assert counted["dreamgym_tool_call_seconds_sum", "counter", "model"] > 0


async def test_open_episodes_and_those_that_wait_for_the_buffer_are_gauges(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        urls = [await created(http) for _ in range(3)]
        await http.post(urls[0].removesuffix("/mcp") + "/finish", json={"success": True})
        counted = await samples(http)
    assert counted["dreamgym_open_episodes",] == 2
    assert counted["dreamgym_archive_backlog",] in {0, 1}


async def test_requests_to_the_model_are_counted_with_their_tokens_and_a_cached_answer_costs_none(
    stage: Stage,
) -> None:
    model = LanguageModel(CachedLLM(CountingLLM([]), MemoryPredictions()))
    async with stage.serve(DreamWorlds(counter_spec(), model, stage.buffer)) as (_, http):
        for n in (1, 1, 13, 14):
            async with Client(await created(http)) as client:
                await client.call_tool("add", {"n": n})
        counted = await samples(http)
    assert counted["dreamgym_model_calls_total", "answered"] == 1
    assert counted["dreamgym_model_calls_total", "cached"] == 1
    assert counted["dreamgym_model_calls_total", "failed"] == 1
    assert counted["dreamgym_model_calls_total", "refused"] == 1
    assert counted["dreamgym_model_tokens_total", "prompt"] == 30
    assert counted["dreamgym_model_tokens_total", "completion"] == 7
    assert counted["dreamgym_model_call_seconds_count",] == 1
    assert counted["dreamgym_tool_calls_total", "counter", "unavailable", ""] == 2


async def test_the_store_s_operations_are_timed_and_their_failures_counted(store: Store) -> None:
    stage = Stage(store.buffer, store.episodes)
    async with stage.serve() as (_, http):
        async with Client(await created(http)) as client:
            await client.call_tool("add", {"n": 1})
            counted = await samples(http)
            await store.database.close()
            await client.call_tool("add", {"n": 1})
            refused = [await http.post("/envs/counter/episodes", json=body) for body in ({}, {"idempotency_key": "k"})]
        failed = await samples(http)
    for operation in ("create", "append", "nearest"):
        assert counted["dreamgym_store_seconds_count", operation] == 1, operation
    assert sum(value for key, value in failed.items() if key[0] == "dreamgym_store_failures_total") > 2
    # an episode that does not start is seen in these numbers too
    assert [answer.status_code for answer in refused] == [503, 503]
    assert [failed["dreamgym_store_failures_total", operation] for operation in ("running", "find")] == [1, 1]


async def test_the_metrics_of_two_servers_in_one_process_are_apart(stage: Stage) -> None:
    async with stage.serve() as (_, here), stage.serve() as (_, there):
        async with Client(await created(here)) as client:
            await client.call_tool("add", {"n": 1})
        counted = await samples(there)
    assert not [key for key in counted if key[0] == "dreamgym_tool_calls_total"]


async def test_metrics_need_the_servers_token_and_refuse_that_of_an_episode(stage: Stage) -> None:
    async with stage.serve(token=TOKEN) as (_, http):
        made = (await http.post("/envs/counter/episodes", json={}, headers=AUTHORIZED)).json()
        refused = [
            await http.get("/metrics"),
            await http.get("/metrics", headers={"authorization": f"Bearer {made['token']}"}),
        ]
        counted = await samples(http, **AUTHORIZED)
    assert [answer.status_code for answer in refused] == [401, 401]
    assert ("dreamgym_open_episodes",) in counted


async def test_no_label_has_a_value_that_a_client_can_choose(stage: Stage) -> None:
    secret = "hunter2-in-every-place"

    def fail(query: Query) -> None:
        raise EnvironmentUnavailable(secret)

    async with stage.serve() as (url, http):
        task = {"id": secret, "env": "counter", "instruction": secret, "initial_state": "count 0"}
        made = (await http.post("/envs/counter/episodes", json={"task": task, "group": secret})).json()
        async with Client(made["mcp_url"]) as client:
            await client.call_tool("add", {"n": 1})
            await client.call_tool("add", {"n": secret})
            await client.call_tool(secret, {secret: secret})
            stage.model.before = fail
            await client.call_tool("add", {"n": 2})
        await http.get(f"/envs/{secret}")
        await http.post(f"{url}/envs/{secret}/mcp", json={})
        params = {"session_id": f"openenv-{32 * '0'}", "name": "add"}
        openenv = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        await http.post(f"{url}/envs/{secret}/openenv/mcp", json=openenv)
        text = (await http.get("/metrics")).text
    assert secret not in text
    assert made["episode"] not in text
