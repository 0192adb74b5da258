"""Tools that do more than answer: questions to the client, notices and errors of the protocol."""

from __future__ import annotations

from typing import Any

import pytest
from answers import text_of
from dreamgym_server.sources import RealWorlds
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import ElicitResult
from server_stage import CounterEnvironment, Stage, counter_spec

from dreamgym.replay.postgres import Store
from dreamgym.types import JsonObject, StepResult, ToolCall

pytestmark = pytest.mark.anyio

QUESTION: JsonObject = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Really?",
        "requestedSchema": {"type": "object", "properties": {"yes": {"type": "boolean"}}},
    },
}
NOTICES: list[JsonObject] = [
    {"method": "notifications/progress", "params": {"progress": 1, "total": 2}},
    {"method": "notifications/message", "params": {"level": "info", "data": "half of it"}},
]


class Talkative(CounterEnvironment):
    """Asks the client before it adds, sends its progress, and answers `peek` with an error of the protocol."""

    async def step(self, action: ToolCall) -> StepResult:
        if action.name == "peek":
            error: JsonObject = {"code": -32602, "message": "nothing to see", "data": {"try": "add"}}
            return StepResult(observation="nothing to see", is_error=True, info={"error": error})
        if not action.answers:
            asks: JsonObject = {"inputRequests": {"sure": QUESTION}, "requestState": "1"}
            return StepResult(observation="Really?", info={"asks": asks})
        result = await super().step(action)
        meta: JsonObject = {"vendor/view": 1, "dreamgym/uncounted": "ended", "dreamgym/confidence": 1.0}
        return result.model_copy(update={"info": {"notices": list(NOTICES), "meta": meta}})


async def accept(context: Any, params: Any) -> ElicitResult:
    """Accept every question."""
    return ElicitResult(action="accept", content={"yes": True})


@pytest.fixture
def talkative(stage: Stage) -> Any:
    """The source of `Talkative` environments for the server."""
    return RealWorlds(counter_spec(), lambda: Talkative(counter_spec()))


async def test_a_client_that_can_answer_is_asked_and_its_answer_reaches_the_tool(stage: Stage, talkative: Any) -> None:
    asked: list[str] = []
    reported: list[float] = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return await accept(context, params)

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reported.append(progress)

    async with stage.serve(talkative) as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        async with Client(made["mcp_url"], mode="2026-07-28", elicitation_callback=answer) as client:
            result = await client.call_tool("add", {"n": 2}, progress_callback=report)
        state = await http.post(f"/envs/counter/episodes/{made['episode']}/finish", json={})
    assert asked == ["Really?"]
    assert reported == [1]
    assert result.meta is not None
    assert (result.meta["vendor/view"], result.meta["dreamgym/step"]) == (1, 2)
    assert not {"dreamgym/uncounted", "dreamgym/confidence"} & {*result.meta}, "only the server says these"
    assert text_of(result) == "count 2"
    steps = state.json()["trajectory"]["transitions"]
    assert [step["action"].get("answers", {}).get("requestState") for step in steps] == [None, "1"]


async def test_a_client_that_cannot_answer_gets_an_error_with_the_missing_capability(
    stage: Stage, talkative: Any
) -> None:
    async with stage.serve(talkative) as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        async with Client(made["mcp_url"], mode="2026-07-28") as client:
            with pytest.raises(MCPError, match="needs a client with elicitation") as raised:
                await client.call_tool("add", {"n": 2})
    assert raised.value.error.code == -32021
    assert raised.value.error.data == {"requiredCapabilities": {"elicitation": {}}}


async def test_in_an_older_revision_a_question_is_a_tool_error(stage: Stage, talkative: Any) -> None:
    async with stage.serve(talkative) as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        async with Client(made["mcp_url"], mode="legacy") as client:
            result = await client.call_tool("add", {"n": 2})
    assert result.is_error
    assert text_of(result) == "This tool asks the client for elicitation, which needs revision 2026-07-28."


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_an_error_of_the_protocol_is_passed_on(stage: Stage, talkative: Any, mode: str) -> None:
    async with stage.serve(talkative) as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        async with Client(made["mcp_url"], mode=mode) as client:
            with pytest.raises(MCPError, match="nothing to see") as raised:
                await client.call_tool("peek", {})
    assert raised.value.error.data == {"try": "add"}


def test_a_call_with_answers_is_another_call() -> None:
    plain = ToolCall(name="add", arguments={"n": 1})
    answered = plain.model_copy(update={"answers": {"requestState": "1"}})
    assert plain.canonical() != answered.canonical()
    assert plain.model_dump() == {"name": "add", "arguments": {"n": 1}}
    assert ToolCall.model_validate_json(answered.model_dump_json()) == answered


async def test_the_answers_to_questions_are_stored_and_come_back_from_postgresql(store: Store) -> None:
    stage = Stage(store.buffer, store.episodes)
    async with stage.serve(RealWorlds(counter_spec(), lambda: Talkative(counter_spec()))) as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        async with Client(made["mcp_url"], mode="2026-07-28", elicitation_callback=accept) as client:
            await client.call_tool("add", {"n": 2})
        await http.post(f"/envs/counter/episodes/{made['episode']}/finish", json={})
    stored = await store.episodes.load(made["episode"])
    (played,) = await store.buffer.trajectories("counter")
    for steps in (stored.transitions, played.transitions):
        assert [step.action.answers.get("requestState") for step in steps] == [None, "1"]
