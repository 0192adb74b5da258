"""`/readyz` shows an orchestrator if a server can answer calls: its database and its model's endpoint must answer."""

from __future__ import annotations

import asyncio

import pytest
from dreamgym_integrations.models.chat_server import Reply, chat_server
from dreamgym_integrations.models.openai import OpenAIModel
from dreamgym_server.sources import DreamWorlds
from server_stage import CounterModel, Stage, counter_spec

from dreamgym.budget import open_ledger
from dreamgym.dream.language_model import LanguageModel
from dreamgym.dream.questions import CachedLLM, MemoryPredictions
from dreamgym.errors import BudgetSpent, EnvironmentUnavailable
from dreamgym.runs.serve import serving

pytestmark = pytest.mark.anyio


class Away(CounterModel):
    """A model whose endpoint cannot be reached or, if it `hangs`, never answers."""

    def __init__(self, *, hangs: bool = False) -> None:
        super().__init__()
        self.pings = 0
        self.away = True
        self._hangs = hangs

    async def ping(self) -> None:
        self.pings += 1
        if self._hangs:
            await asyncio.Event().wait()
        if self.away:
            raise EnvironmentUnavailable("http://user:secret@host/v1 cannot be reached")


async def test_a_server_whose_model_is_away_is_not_ready_and_says_so_without_the_address(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dreamgym_server.readiness.KEPT_S", 0.0)
    stage.model = model = Away()
    async with stage.serve(token="a-token-of-the-server") as (_, http):
        away = await http.get("/readyz")
        model.away = False
        ready = await http.get("/readyz")
    sentence = "the experience model's endpoint does not answer"
    assert (away.status_code, away.json()) == (503, {"status": "unavailable", "error": sentence})
    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})


async def test_a_server_whose_model_hangs_is_not_ready(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dreamgym_server.readiness.MODEL_LIMIT_S", 0.01)
    stage.model = Away(hangs=True)
    async with stage.serve() as (_, http):
        assert (await http.get("/readyz")).status_code == 503


async def test_many_probes_within_a_second_ping_the_model_once(stage: Stage) -> None:
    stage.model = model = Away()
    model.away = False
    async with stage.serve() as (_, http):
        answers = await asyncio.gather(*(http.get("/readyz") for _ in range(16)))
        answers.append(await http.get("/readyz"))
    assert {answer.status_code for answer in answers} == {200}
    assert model.pings == 1


async def test_a_model_without_an_endpoint_is_not_required(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        assert (await http.get("/readyz")).status_code == 200


async def test_a_server_whose_budget_has_refused_a_call_is_not_ready_and_starts_no_episode(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dreamgym_server.readiness.KEPT_S", 0.0)
    with open_ledger("3 calls") as ledger:
        async with stage.serve() as (_, http):
            asked = {"task_id": "counter-0", "idempotency_key": "first"}
            before = [await http.get("/readyz"), await http.post("/envs/counter/episodes", json=asked)]
            with pytest.raises(BudgetSpent):
                ledger.reserve(4.0)
            ready = await http.get("/readyz")
            again = await http.post("/envs/counter/episodes", json=asked)
            new = await http.post("/envs/counter/episodes", json={"task_id": "counter-0"})
            fork = await http.post(f"/envs/counter/episodes/{again.json()['episode']}/fork", json={"step": 0})
    assert [answer.status_code for answer in (*before, ready, again, new, fork)] == [200, 201, 503, 201, 503, 503]
    assert "budget" in ready.json()["error"]
    assert "the budget of 3 calls is spent" in new.json()["error"]


async def test_an_endpoint_is_pinged_through_cache_and_experience_model_without_a_prompt(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dreamgym_server.readiness.KEPT_S", 0.0)
    asked: list[object] = []

    def policy(messages: object, tools: object) -> Reply:
        asked.append(messages)
        return Reply(text="no")

    async with chat_server(policy) as url:
        llm = CachedLLM(OpenAIModel(url, None), MemoryPredictions())
        worlds = DreamWorlds(counter_spec(), LanguageModel(llm), stage.buffer)
        async with stage.serve(worlds) as (_, http):
            there = await http.get("/readyz")
    async with stage.serve(worlds) as (_, http):
        gone = await http.get("/readyz")
    await llm.close()
    assert (there.status_code, gone.status_code, asked) == (200, 503, [])


async def test_a_server_warns_at_its_start_if_the_model_does_not_answer(
    dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def told(model: str) -> list[str]:
        async with serving(["coin"], model=model, port=0, dsn=dsn, encoder="trigram", takes_in=False):
            return [line for line in capsys.readouterr().err.splitlines() if "does not answer now" in line]

    async with chat_server(lambda messages, tools: Reply(text="no")) as url:
        assert await told(url) == []
    (away,) = await told(url)
    assert url in away
    assert "unavailable until it does" in away
