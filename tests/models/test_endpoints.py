"""Endpoints of every kind: each question is answered in the end, or fails with the reason in one sentence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import virtual_time
from aiohttp import web
from dreamgym_client.connection import STEP_TIMEOUT_S
from dreamgym_integrations.agents import langgraph, openai_agents, react
from dreamgym_integrations.models import endpoint as endpoint_module
from dreamgym_integrations.models.limiter import Limiter, limit_of, retry_after_s
from dreamgym_integrations.models.openai import OpenAIModel
from dreamgym_server.limits import Limits
from fake_endpoints import KINDS, REASONING, Body, FakeEndpoint, Windows, refused, room_of, running, serving
from growth import grows_linearly
from limited_runs import RUNS, Run, outcome
from virtual_time import VirtualTimeLoop

from dreamgym.budget import metered, open_ledger
from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.language_model import LanguageModel
from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import EnvironmentUnavailable, PredictionError
from dreamgym.llm import Message
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.types import JsonObject, StepResult, Task, ToolCall

pytestmark = pytest.mark.anyio

ASKED = [Message(role="user", content="Go.")]
SCHEMA: JsonObject = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
SPEC = EnvironmentSpec(
    name="notes", tools_list=({"tools": [{"name": "note", "inputSchema": {"type": "object"}}]},), max_steps=100
)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Use virtual time, in which minutes of limits and pauses pass at once."""
    return "asyncio", {"loop_factory": VirtualTimeLoop}


@asynccontextmanager
async def model_at(endpoint: FakeEndpoint) -> AsyncIterator[OpenAIModel]:
    async with serving(endpoint) as url:
        model = OpenAIModel(url, "m")
        try:
            yield model
        finally:
            await model.close()


def completed(text: str) -> web.Response:
    answer = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    whole = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [answer], "usage": usage}
    return web.json_response(whole)


def now() -> float:
    return asyncio.get_running_loop().time()


async def steps(model: OpenAIModel, number: int, count: int) -> list[StepResult]:
    """Play an episode that takes notes, and return its answers."""
    environment = DreamEnvironment(SPEC, LanguageModel(model), MemoryBuffer(TrigramEncoder()))
    await environment.reset(Task(id=str(number), env="notes", instruction="Take notes."), seed=number)
    return [
        await environment.step(ToolCall(name="note", arguments={"text": f"{number}-{step}"})) for step in range(count)
    ]


@pytest.mark.parametrize("said", ["noted \ud83d", "noted \\ud83d"], ids=["itself", "escaped"])
async def test_half_a_surrogate_in_a_call_and_in_its_answer_is_asked_about_again(said: str) -> None:
    answer = f'{{"reasoning": "", "observation": "{said}", "state": null, "error": false, "terminated": false'

    def before(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        if "<action>" not in str(body) or len(body["messages"]) > 2:
            return None
        return completed(f'{answer}, "success": false}}')

    endpoint = FakeEndpoint(before=before)
    async with model_at(endpoint) as model:
        environment = DreamEnvironment(SPEC, LanguageModel(model), MemoryBuffer(TrigramEncoder()))
        await environment.reset(Task(id="1", env="notes", instruction="Take notes."), seed=0)
        with pytest.raises(PredictionError, match="not even when asked again"):
            await environment.step(ToolCall(name="note", arguments={"text": "half of an emoji: \ud83d"}))
    assert len(endpoint.asked[-1]["messages"]) == 4


@pytest.mark.parametrize("kind", KINDS)
async def test_every_step_is_answered_whatever_the_endpoint_takes_and_however_it_is_limited(kind: str) -> None:
    async with model_at(KINDS[kind]()) as model:
        episodes = await asyncio.gather(*(steps(model, number, 4) for number in range(16)))
    said = [[step.observation for step in episode] for episode in episodes]
    assert said == [[f"noted {number}-{step}" for step in range(4)] for number in range(16)]


async def test_all_models_of_an_endpoint_share_one_probe_of_its_parameters() -> None:
    async def asked_by(number: int) -> list[Body]:
        endpoint = FakeEndpoint(refuses=REASONING, formats=frozenset({"json_object"}))
        async with serving(endpoint) as url:
            models = [OpenAIModel(url, "m") for _ in range(number)]
            await asyncio.gather(*(model.complete(ASKED, schema=SCHEMA) for model in models))
            for model in models:
                await model.close()
        return endpoint.asked

    alone, together = await asked_by(1), await asked_by(3)
    probes = [body for body in alone if "Go." not in str(body)]
    assert (len(alone), len(together)) == (len(probes) + 1, len(probes) + 3)
    assert {*together[-1]} == {"model", "messages", "max_completion_tokens", "response_format"}


@pytest.mark.parametrize("lost", ["temperature", "seed", "max_tokens", "response_format"])
async def test_a_refusal_that_names_no_parameter_costs_only_the_refused_one(lost: str) -> None:
    def before(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        return refused(400, "bad request") if lost in body else None

    endpoint = FakeEndpoint(before=before)
    async with model_at(endpoint) as model:
        await model.complete(ASKED, schema=SCHEMA)
    others = {"temperature", "seed", "max_tokens", "response_format"} - {lost}
    instead = {"max_completion_tokens"} if lost == "max_tokens" else set()
    assert {*endpoint.asked[-1]} == {"model", "messages", *others, *instead}


async def test_a_parameter_that_is_refused_in_mid_run_is_given_up_and_the_run_goes_on() -> None:
    endpoint = FakeEndpoint()
    async with model_at(endpoint) as model:
        await model.complete(ASKED, schema=SCHEMA)
        endpoint.refuses, endpoint.formats = frozenset({"temperature"}), frozenset()
        for _ in range(2):
            assert (await model.complete(ASKED, schema=SCHEMA)).text == '{"ok": true}'
    asked = [("temperature" in body, body.get("response_format", {}).get("type")) for body in endpoint.asked[2:]]
    refused_question, *probes, again, later = asked
    assert refused_question == (True, "json_schema")
    assert len(probes) == 4
    assert again == later == (False, None)


async def test_thoughts_have_room_of_their_own_and_tokens_spent_in_vain_are_counted() -> None:
    endpoint = FakeEndpoint(refuses=REASONING, thinks=lambda number: 12_000 if number > 1 else 100)
    async with model_at(endpoint) as model:
        completion = await model.complete(ASKED, schema=SCHEMA, max_tokens=500)
    assert (completion.text, completion.finish_reason) == ('{"ok": true}', "stop")
    assert [room_of(body) for body in endpoint.asked[-2:]] == [500 + 8_192, 500 + 16_384]
    assert completion.completion_tokens == 500 + 8_192 + 12_000 + 4


async def test_an_answer_that_is_too_long_itself_is_not_asked_for_with_more_room() -> None:
    async with model_at(FakeEndpoint()) as model:
        await model.complete(ASKED, schema=SCHEMA)
        cut = await model.complete(ASKED, schema=SCHEMA, max_tokens=2)
    assert cut.finish_reason == "length"


async def test_thoughts_that_fill_the_widest_room_are_asked_to_be_short() -> None:
    def before(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        endpoint.thinks = lambda number: 50 if "reasoning_effort" in body else 9_000
        return None

    endpoint = FakeEndpoint(refuses=REASONING, before=before, most_tokens=6_000)
    async with model_at(endpoint) as model:
        assert (await model.complete(ASKED, schema=SCHEMA)).text == '{"ok": true}'
    assert endpoint.asked[-1]["reasoning_effort"] == "low"


async def test_an_endpoint_without_thoughts_short_enough_ends_as_cut_off() -> None:
    endpoint = FakeEndpoint(refuses=REASONING | {"reasoning_effort"}, thinks=lambda number: 9_000, most_tokens=6_000)
    async with model_at(endpoint) as model:
        assert (await model.complete(ASKED, schema=SCHEMA)).finish_reason == "length"


@pytest.mark.parametrize("reason", ["Unsupported: reasoningEffort", "bad request"])
async def test_an_effort_that_two_questions_were_refused_is_not_sent_again_even_if_it_is_not_named_so(
    reason: str,
) -> None:
    def before(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        endpoint.thinks = lambda number: 90_000 if "Hard." in str(body) else 300
        return refused(400, reason) if "reasoning_effort" in body else None

    endpoint = FakeEndpoint(before=before)
    async with model_at(endpoint) as model:
        hard = await model.complete([Message(role="user", content="Hard.")], schema=SCHEMA)
        for _ in range(2):
            assert (await model.complete(ASKED, schema=SCHEMA)).text == '{"ok": true}'
    assert hard.finish_reason == "length"
    assert sum("reasoning_effort" in body for body in endpoint.asked) == 2


async def test_a_fault_of_one_moment_leaves_later_questions_their_short_thoughts() -> None:
    faults = iter(range(1))

    def before(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        endpoint.thinks = lambda number: 50 if "reasoning_effort" in body else 300 if "Go." in str(body) else 90_000
        is_fault = "reasoning_effort" in body and next(faults, None) is not None
        return refused(400, "bad request") if is_fault else None

    endpoint = FakeEndpoint(before=before)
    async with model_at(endpoint) as model:
        await model.complete([Message(role="user", content="Hard.")], schema=SCHEMA)
        await model.complete(ASKED, schema=SCHEMA)
    assert endpoint.asked[-1]["reasoning_effort"] == "low"


async def test_a_prompt_that_is_refused_with_any_effort_leaves_later_questions_their_short_thoughts() -> None:
    def before(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        endpoint.thinks = lambda number: 50 if "reasoning_effort" in body else 90_000
        return refused(400, "bad request") if "Long." in str(body) else None

    endpoint = FakeEndpoint(before=before)
    async with model_at(endpoint) as model:
        await model.complete(ASKED, schema=SCHEMA)
        with pytest.raises(EnvironmentUnavailable, match="bad request"):
            await model.complete([Message(role="user", content="Long.")], schema=SCHEMA)
        assert (await model.complete(ASKED, schema=SCHEMA)).text == '{"ok": true}'
    assert endpoint.asked[-1]["reasoning_effort"] == "low"


async def test_thoughts_that_fill_the_context_end_as_cut_off_after_a_few_questions() -> None:
    def before(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        if room_of(body) > 5_000:
            return refused(400, "This model's maximum context length is 16384 tokens: the prompt has 11,000")
        return None

    endpoint = FakeEndpoint(thinks=lambda number: 9_000 if number > 1 else 100, before=before)
    async with model_at(endpoint) as model:
        assert (await model.complete(ASKED, schema=SCHEMA)).finish_reason == "length"
    rooms = [room_of(body) for body in endpoint.asked[1:]]
    assert rooms == [512 + 8_192, 512 + 4_096, 512 + 4_096]
    assert endpoint.asked[-1]["reasoning_effort"] == "low"


@pytest.mark.parametrize(
    "reason",
    [
        "prompt is too long: 215023 tokens > 200000 maximum",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        "Context length exceeded",
    ],
)
async def test_a_prompt_that_is_too_long_takes_no_room_for_thoughts_from_later_questions(reason: str) -> None:
    def before(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        return refused(400, reason) if "Long." in str(body) else None

    endpoint = FakeEndpoint(thinks=lambda number: 5_000, before=before)
    async with model_at(endpoint) as model:
        await model.complete(ASKED, schema=SCHEMA)
        with pytest.raises(EnvironmentUnavailable, match="failed"):
            await model.complete([Message(role="user", content="Long.")], schema=SCHEMA)
        assert (await model.complete(ASKED, schema=SCHEMA)).text == '{"ok": true}'
    assert room_of(endpoint.asked[-1]) == 512 + 8_192


@pytest.mark.parametrize("busy", [0, 2, 3, 5])
async def test_a_question_that_breaks_the_server_ends_after_three_tries_however_busy_the_server_was(busy: int) -> None:
    def before(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        if "Break." not in str(body):
            return None
        asked = sum("Break." in str(one) for one in endpoint.asked)
        return refused(503, "overloaded") if asked <= busy else refused(500, "internal error")

    endpoint = FakeEndpoint(before=before)
    async with model_at(endpoint) as model:
        await model.complete(ASKED)
        with pytest.raises(EnvironmentUnavailable, match="internal error"):
            await model.complete([Message(role="user", content="Break.")])
    assert sum("Break." in str(body) for body in endpoint.asked) == busy + 3


class Gateway(FakeEndpoint):
    """A gateway that gives up long questions after a minute."""

    async def complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        if "Long." not in str(body):
            return await super().complete(request)
        self.asked.append(body)
        await asyncio.sleep(60)
        return refused(504, "gateway timeout")


async def test_a_question_whose_time_always_runs_out_ends_if_others_are_answered_meanwhile() -> None:
    endpoint = Gateway()
    async with model_at(endpoint) as model:
        await model.complete(ASKED)
        long = asyncio.create_task(model.complete([Message(role="user", content="Long.")]))
        while not long.done():
            await model.complete(ASKED)
        with pytest.raises(EnvironmentUnavailable, match=r"gateway timeout.*6 times, and answered other questions"):
            await long
    assert sum("Long." in str(body) for body in endpoint.asked) == 6


@pytest.mark.parametrize("reported", [{"finish_reason": {}}, {"finish_reason": []}, {"completion_tokens": 10**400}])
async def test_values_of_other_kinds_in_an_answer_are_no_tracebacks(reported: dict[str, Any]) -> None:
    def before(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": '{"ok": true}'}}
        usage = {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
        choice |= {name: value for name, value in reported.items() if name in choice}
        usage |= {name: value for name, value in reported.items() if name in usage}
        said = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
        return web.json_response(said)

    async with model_at(FakeEndpoint(before=before)) as model:
        answer = await model.complete(ASKED, schema=SCHEMA)
    assert (answer.text, answer.completion_tokens) in [('{"ok": true}', 3), ('{"ok": true}', 0)]


async def test_an_outage_with_status_500_is_waited_out() -> None:
    ends = 30.0

    def before(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        return refused(500, "internal error") if 1 < endpoint.now < ends else None

    async with model_at(FakeEndpoint(before=before)) as model:
        await model.complete(ASKED, schema=SCHEMA)
        await asyncio.sleep(2.0)
        answers = await asyncio.gather(*(model.complete(ASKED, schema=SCHEMA, seed=seed) for seed in range(3)))
    assert [answer.text for answer in answers] == ['{"ok": true}'] * 3
    assert now() >= ends


@pytest.mark.parametrize("status", [413, 429])
async def test_a_question_that_alone_exceeds_the_limit_fails_at_once_and_delays_no_other(status: int) -> None:
    reason = "Request too large on tokens per min (TPM): Limit 30000, Requested 30601. The input must be reduced."

    def before(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        return refused(status, reason, code="rate_limit_exceeded") if len(str(body)) > 100_000 else None

    async with model_at(FakeEndpoint(before=before)) as model:
        await model.complete(ASKED, schema=SCHEMA)
        with pytest.raises(EnvironmentUnavailable, match="Request too large"):
            await model.complete([Message(role="user", content="x" * 110_000)], schema=SCHEMA)
        began = now()
        await asyncio.gather(*(model.complete(ASKED, schema=SCHEMA, seed=seed) for seed in range(32)))
    assert now() - began < 2


async def test_thoughts_get_less_room_if_their_room_alone_exceeds_the_limit() -> None:
    def before(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        reason = f"Request too large on tokens per minute (TPM): Limit 8000, Requested {room_of(body)}"
        return refused(413, reason) if room_of(body) > 8_000 else None

    async with model_at(FakeEndpoint(before=before, thinks=lambda number: 500)) as model:
        answer = await model.complete(ASKED, schema=SCHEMA, max_tokens=1_024)
        answer = await model.complete(ASKED, schema=SCHEMA, max_tokens=1_024)
    assert answer.text == '{"ok": true}'


@pytest.mark.parametrize("status", [429, 502])
async def test_an_error_in_an_answer_with_status_200_is_that_error(status: int) -> None:
    error = {"error": {"code": status, "message": "Provider returned error"}}

    def before(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        return web.json_response(error) if 1 < endpoint.now < 20 else None

    async with model_at(FakeEndpoint(before=before)) as model:
        await model.complete(ASKED, schema=SCHEMA)
        await asyncio.sleep(2.0)
        assert (await model.complete(ASKED, schema=SCHEMA)).text == '{"ok": true}'


async def test_json_that_the_endpoint_itself_finds_faulty_is_a_faulty_answer() -> None:
    def before(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        error = {"message": "Failed to generate JSON.", "code": "json_validate_failed", "failed_generation": '{"a": '}
        return web.json_response({"error": error}, status=400) if "Break." in str(body) else None

    endpoint = FakeEndpoint(before=before)
    async with model_at(endpoint) as model:
        answer = await model.complete([Message(role="user", content="Break.")], schema=SCHEMA)
    assert answer.text == '{"a":'
    assert sum("Break." in str(body) for body in endpoint.asked) == 1


async def test_an_empty_answer_after_one_with_usage_does_not_end_a_budget() -> None:
    def before(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": ""}}
        usage = {"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5}
        whole = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        return web.json_response({**whole, "usage": usage}) if "Nothing." in str(body) else None

    with open_ledger("500k tokens") as ledger:
        async with serving(FakeEndpoint(before=before)) as url:
            question = [Message(role="user", content="Go there.")]
            model = metered(OpenAIModel(url, "m"), url)
            await model.complete(question)
            assert (await model.complete([Message(role="user", content="Nothing.")])).text == ""
            assert (await model.complete(question)).text
            await model.close()
        assert ledger.spent.untold == 1


async def test_no_request_is_sent_before_the_time_in_a_refusal() -> None:
    endpoint = FakeEndpoint(before=Windows(5, retry_after_s=47))
    came: list[float] = []
    limit = endpoint.before

    def before(_: FakeEndpoint, body: Body) -> web.Response | None:
        came.append(now())
        return limit(endpoint, body)

    endpoint.before = before
    async with model_at(endpoint) as model:
        await asyncio.gather(*(model.complete(ASKED) for _ in range(12)))
    first = came[0]
    assert len([moment for moment in came if moment == first]) == 12
    assert min(moment for moment in came if moment > first) >= first + 47


@pytest.mark.parametrize("late", [1, 2])
async def test_one_refusal_among_the_first_requests_costs_no_more_than_its_retry_after(late: int) -> None:
    def before(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        is_refused = len(endpoint.asked) == late
        return refused(429, "Rate limit reached", headers={"Retry-After": "4"}) if is_refused else None

    async with model_at(FakeEndpoint(before=before)) as model:
        for _ in range(10):
            await model.complete(ASKED)
    assert now() < 10


async def test_a_first_burst_that_is_refused_goes_on_with_half_as_many_requests_at_once() -> None:
    def before(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        return refused(429, "Rate limit reached", headers={"Retry-After": "4"}) if len(endpoint.asked) <= 16 else None

    endpoint = FakeEndpoint(before=before)
    async with model_at(endpoint) as model:
        questions = [asyncio.create_task(model.complete(ASKED)) for _ in range(16)]
        while endpoint.answered == 0:
            most = endpoint.running
            await asyncio.sleep(0.1)
        await asyncio.gather(*questions)
    assert (most, now() < 10) == (8, True)


async def test_an_endpoint_that_answers_nobody_is_given_up_after_ten_minutes_by_all_at_once() -> None:
    endpoint = FakeEndpoint()
    async with model_at(endpoint) as model:
        await model.complete(ASKED)
        began = now()
        endpoint.before = lambda endpoint, body: refused(503, "The server is overloaded")
        errors = await asyncio.gather(*(model.complete(ASKED) for _ in range(40)), return_exceptions=True)
    assert endpoint_module.PATIENCE_S <= now() - began < endpoint_module.PATIENCE_S + 120
    assert {type(error) for error in errors} == {EnvironmentUnavailable}
    assert "has not answered any question for 10 minutes: it failed: Error code: 503" in str(errors[0])


async def test_an_endpoint_that_sends_a_byte_now_and_then_but_no_answer_is_given_up_after_ten_minutes() -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        slow = web.StreamResponse(headers={"Content-Type": "application/json"})
        await slow.prepare(request)
        with suppress(ConnectionError):
            while True:
                await slow.write(b"\n")
                await asyncio.sleep(10)
        return slow

    app = web.Application()
    app.router.add_post("/v1/chat/completions", drip)
    async with running(app) as url:
        model, began = OpenAIModel(f"{url}/v1", "m"), now()
        with pytest.raises(EnvironmentUnavailable, match="took longer than 300 s"):
            await asyncio.wait_for(model.complete(ASKED), 3_600)
        assert now() - began < 1_000
        await model.close()


async def test_a_wait_that_is_longer_than_anybodys_patience_is_an_error_at_once() -> None:
    async with model_at(FakeEndpoint(before=Windows(1, retry_after_s=36_000))) as model:
        await model.complete(ASKED)
        with pytest.raises(EnvironmentUnavailable, match="asks to wait 36000 s"):
            await model.complete(ASKED)
        assert now() < 60


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("waits", ["0", "Wed, 21 Oct 2015 07:28:00 GMT"])
async def test_an_endpoint_that_asks_for_no_wait_is_not_asked_again_at_once(status: int, waits: str) -> None:
    def before(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        is_often = len(endpoint.asked) > 100
        return refused(401 if is_often else status, "Slow down", headers={"Retry-After": waits})

    endpoint = FakeEndpoint(before=before)
    async with model_at(endpoint) as model:
        with pytest.raises(EnvironmentUnavailable, match="has not answered any question for 10 minutes"):
            await model.complete(ASKED)
    assert len(endpoint.asked) < 30


@pytest.mark.parametrize(("status", "billed"), [(429, 0), (503, 0), (529, 0), (502, 1)])
async def test_a_refusal_of_an_overloaded_endpoint_is_not_counted_as_a_call(
    status: int, billed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual_time, "GRACE_S", 0.2)  # a request that timed out would be counted too

    def before(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        return refused(status, "Overloaded") if len(endpoint.asked) == 3 else None

    endpoint = FakeEndpoint(before=before)
    with open_ledger("50 calls") as ledger:
        async with model_at(endpoint) as model:
            metered(model, "m")
            assert [(await model.complete(ASKED, schema=SCHEMA)).text for _ in range(4)] == ['{"ok": true}'] * 4
        assert ledger.spent.calls == len(endpoint.asked) - 1 + billed


@pytest.mark.parametrize("status", [520, 522, 524])
async def test_an_error_of_the_network_in_front_of_an_endpoint_is_waited_for(status: int) -> None:
    def before(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        return web.Response(status=status, text="<html>error</html>") if len(endpoint.asked) in (2, 3) else None

    async with model_at(FakeEndpoint(before=before)) as model:
        assert [(await model.complete(ASKED, schema=SCHEMA)).text for _ in range(2)] == ['{"ok": true}'] * 2


async def test_an_account_without_money_is_not_waited_for() -> None:
    def before(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        return refused(429, "You exceeded your current quota", code="insufficient_quota")

    async with model_at(FakeEndpoint(before=before)) as model:
        with pytest.raises(EnvironmentUnavailable, match="exceeded your current quota"):
            await model.complete(ASKED)
        assert now() < 60


async def test_a_step_answered_only_with_rubbish_fails_with_one_sentence_and_no_reward() -> None:
    endpoint = FakeEndpoint()
    async with model_at(endpoint) as model:
        await steps(model, 0, 1)
        endpoint.before = lambda endpoint, body: web.Response(text="<html>busy</html>", content_type="text/html")
        with pytest.raises(PredictionError, match="expected a chat completion, got '<html>busy</html>'") as caught:
            await steps(model, 1, 1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
@pytest.mark.parametrize("seed", [0])
def test_the_end_of_a_run_of_two_hours_is_predicted_within_ten_percent_after_ten_minutes(run: Run, seed: int) -> None:
    found = outcome(run, seed, looks=(10, 30))
    assert 1.7 < found.hours < 2.3
    assert {at: error for at, error in found.errors.items() if abs(error) > 0.1} == {}
    assert len(found.errors) == 2


async def test_a_limit_that_is_raised_is_found() -> None:
    endpoint = FakeEndpoint(before=Windows(10, retry_after_s=5), seconds=0.1)
    async with model_at(endpoint) as model:
        await asyncio.gather(*(model.complete(ASKED) for _ in range(40)))
        endpoint.before = lambda endpoint, body: None
        began = now()
        await asyncio.gather(*(model.complete(ASKED) for _ in range(600)))
    assert now() - began < 50 * 60  # it would be an hour at the old limit


@pytest.mark.parametrize(
    ("message", "limit"),
    [
        ("Rate limit reached for gpt-x on tokens per min (TPM): Limit 30000, Used 29000", "tokens"),
        ("Rate limit reached for gpt-x on requests per min (RPM): Limit 3, Used 3", "requests"),
        ("too many concurrent requests", "places"),
        ("slow down", "requests"),
    ],
)
def test_the_exceeded_limit_is_read_from_the_refusal(message: str, limit: str) -> None:
    assert limit_of(message) == limit


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "15"}, 15),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        ({"retry-after": "-3"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": ", Jan 99999999999999999999 . 12.34.56 \u0660"}, None),
        ({}, None),
    ],
)
def test_the_time_to_wait_is_read_however_it_is_written(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers) == seconds


@pytest.mark.parametrize("piece", ["token ", "1m", "0", "x"])
def test_headers_and_reasons_are_read_in_linear_time(piece: str) -> None:
    def read(text: str) -> None:
        limit_of(text)
        retry_after_s({"retry-after": text})

    assert grows_linearly(read, lambda size: piece * (size // len(piece)))


@pytest.mark.parametrize(
    "headers",
    [
        {
            "x-ratelimit-limit-requests": "60",
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-requests": "1m0s",
        },
        {
            "anthropic-ratelimit-requests-limit": "60",
            "anthropic-ratelimit-requests-remaining": "0",
            "anthropic-ratelimit-requests-reset": "60",
        },
    ],
)
async def test_the_remaining_quota_in_the_headers_is_not_exceeded(headers: dict[str, str]) -> None:
    limiter = Limiter()
    async with limiter.turn(10) as turn:
        limiter.answered(turn, 10, 1, headers)
    async with limiter.turn(10):
        assert now() == pytest.approx(1, abs=0.01)


async def test_a_quota_that_is_full_again_at_a_time_of_unix_is_waited_for() -> None:
    endpoint, full_at = FakeEndpoint(seconds=0), f"{time.time() + 30:.0f}"
    for name, value in (("limit", "4"), ("remaining", "0"), ("reset", full_at)):
        endpoint.headers[f"x-ratelimit-{name}-requests"] = value
    async with model_at(endpoint) as model:
        for _ in range(3):
            await model.complete(ASKED)
        assert 5 < now() < 60


async def test_a_quota_without_room_for_anybodys_patience_is_an_error_at_once() -> None:
    quota = {"limit": "50", "remaining": "0", "reset": "24h0m0s"}
    endpoint = FakeEndpoint(headers={f"x-ratelimit-{word}-requests": value for word, value in quota.items()})
    async with model_at(endpoint) as model:
        await model.complete(ASKED)
        with pytest.raises(EnvironmentUnavailable, match=r"limit of requests .* 1728 s"):
            await model.complete(ASKED)
        assert now() < 60
    assert len(endpoint.asked) == 1


async def test_a_limiter_forgets_the_requests_of_more_than_a_minute_ago() -> None:
    limiter = Limiter()
    for _ in range(1_000):
        async with limiter.turn(10) as turn:
            await asyncio.sleep(1)
            limiter.answered(turn, 10, 1, {})
    assert len(limiter._turns) < 100


async def test_requests_of_hours_without_a_limit_do_not_delay_those_after_the_first_refusal() -> None:
    limiter = Limiter()
    for seconds in [0] * 1_000 + [120] + [1] * 10:
        async with limiter.turn(10) as turn:
            await asyncio.sleep(seconds)
            limiter.answered(turn, 10, 1, {})
    async with limiter.turn(10) as turn:
        pass
    limiter.refused(turn, "requests", 1, {})
    refused_at = now()
    async with limiter.turn(10):
        assert now() - refused_at < 10


async def test_an_endpoint_may_stay_down_for_days() -> None:
    limiter = Limiter()
    for _ in range(1_100):
        async with limiter.turn(10) as turn:
            limiter.overloaded(turn, None)
    async with limiter.turn(10) as turn:
        limiter.answered(turn, 10, 1, {})


def test_each_limit_leaves_time_for_the_answer_of_the_one_inside_it() -> None:
    limits = Limits()
    assert endpoint_module.REQUEST_S < endpoint_module.PATIENCE_S < limits.step_s < STEP_TIMEOUT_S
    assert STEP_TIMEOUT_S < limits.idle_s < limits.episode_s
    assert {agent.STEP_TIMEOUT_S for agent in (langgraph, openai_agents, react)} == {STEP_TIMEOUT_S}
