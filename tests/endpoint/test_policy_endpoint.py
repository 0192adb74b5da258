"""The policy endpoint as its clients see it, many of them at once, and the segments that it records."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from chat_tools import openai_tool
from dreamgym_integrations.trainers.policy.endpoint import PolicyEndpoint, PolicySession, never
from dreamgym_integrations.trainers.policy.model import ChatCodec
from openai import AsyncOpenAI, BadRequestError, InternalServerError, NotFoundError
from speakers import ACT, ADD, CODEC, TOKENIZER, Speaker, byte_pairs, call

from dreamgym.errors import EnvironmentUnavailable
from dreamgym.training.rollout import Generation, draw_seed

pytestmark = pytest.mark.anyio
USER: Any = {"role": "user", "content": "Reach 10."}


@asynccontextmanager
async def serving(say: Callable[[str], str], codec: ChatCodec = CODEC) -> AsyncIterator[tuple[PolicyEndpoint, Speaker]]:
    speaker = Speaker(say)
    async with PolicyEndpoint(speaker, codec) as endpoint:
        try:
            yield endpoint, speaker
        finally:
            speaker.open.set()


def client_of(session: PolicySession) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=session.url, api_key="none", max_retries=0)


async def ask(client: AsyncOpenAI, messages: Sequence[Any], **options: Any) -> Any:
    return await client.chat.completions.create(model="m", messages=[*messages], tools=[openai_tool(ADD)], **options)


def calling(arguments: Any) -> Any:
    """A message of the policy with one call."""
    return {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": arguments}}]}


def nested(levels: int) -> str:
    """A JSON object in objects."""
    return '{"n": ' * levels + "1" + "}" * levels


def counts(prompt: str) -> str:
    """Call `add` until the prompt has two tool responses, then say `done`."""
    n = prompt.count("<tool_response>")
    return call("add", n=n) if n < 2 else "done"


async def test_two_calls_of_a_conversation_are_one_segment_with_the_messages_in_between() -> None:
    async with serving(counts) as (endpoint, speaker):
        session = endpoint.open(seed=7)
        async with client_of(session) as client:
            first = await ask(client, [USER])
            message = first.choices[0].message
            assert first.choices[0].finish_reason == "tool_calls"
            answer = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "count 1"}
            second = await ask(client, [USER, message.model_dump(), answer])
        (segment,) = endpoint.close(session)
    assert speaker.batches == [[segment.prompt_ids], [segment.ids[: second.usage.prompt_tokens]]]
    assert speaker.seeds == [[draw_seed(7, 0)], [draw_seed(7, 1)]]
    assert first.usage.prompt_tokens == len(segment.prompt_ids)
    assert first.usage.completion_tokens + second.usage.completion_tokens == segment.mask.count(1)
    assert second.usage.total_tokens == len(segment.ids)
    heard = [id for id, sampled in zip(segment.completion_ids, segment.mask, strict=True) if not sampled]
    assert TOKENIZER.decode(heard) == (
        "\n<|im_start|>user<tool_response>\ncount 1\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert message.tool_calls[0].id != second.choices[0].message.tool_calls[0].id


async def test_a_stream_adds_up_to_the_same_answer_and_leaves_the_same_record() -> None:
    async with serving(lambda prompt: "I add.\n" + call("add", n=3)) as (endpoint, _):
        plain, streamed = endpoint.open(seed=1), endpoint.open(seed=1)
        async with client_of(plain) as one, client_of(streamed) as other:
            whole = (await ask(one, [USER])).choices[0]
            async with other.chat.completions.stream(
                model="m",
                messages=[USER],
                tools=[openai_tool(ADD)],
                stream_options={"include_usage": True},
            ) as stream:
                summed = await stream.get_final_completion()
        assert summed.choices[0].message.content == whole.message.content == "I add."
        assert summed.choices[0].finish_reason == whole.finish_reason
        assert summed.choices[0].message.tool_calls is not None
        (streamed_call,), (call_at_once,) = summed.choices[0].message.tool_calls, whole.message.tool_calls
        assert (streamed_call.function.name, streamed_call.function.arguments) == (
            call_at_once.function.name,
            call_at_once.function.arguments,
        )
        segments = endpoint.close(plain)
        assert segments == endpoint.close(streamed)
        assert summed.usage is not None
        assert summed.usage.completion_tokens == segments[0].mask.count(1)


async def test_sessions_that_wait_at_the_same_time_are_sampled_in_one_batch() -> None:
    n = 100
    asked, numbers = asyncio.Event(), count(1)

    async def all_asked() -> bool:
        if next(numbers) == n:
            asked.set()
        await asked.wait()
        return False

    async with serving(lambda prompt: prompt[-70:]) as (endpoint, speaker):
        speaker.open.clear()
        first = endpoint.open(seed=0)
        sessions = [endpoint.open(seed=i, is_over=all_asked) for i in range(n)]
        async with AsyncOpenAI(base_url=first.url, api_key="none", max_retries=0) as client:
            early = asyncio.create_task(ask(client, [USER]))
            assert await asyncio.to_thread(speaker.began.wait, 60)
            others = [
                asyncio.create_task(ask(client.with_options(base_url=session.url), [{**USER, "content": f"I am {i}."}]))
                for i, session in enumerate(sessions)
            ]
            await asked.wait()
            speaker.open.set()
            await early
            answers = await asyncio.gather(*others)
    assert [len(batch) for batch in speaker.batches] == [1, n]
    assert all(f"I am {i}." in answer.choices[0].message.content for i, answer in enumerate(answers))
    assert sorted(speaker.seeds[1]) == sorted(draw_seed(i, 0) for i in range(n))


async def test_once_the_episode_is_over_every_answer_is_empty_and_nothing_is_sampled() -> None:
    over = False

    async def is_over() -> bool:
        return over

    async with serving(counts) as (endpoint, speaker):
        session = endpoint.open(seed=0, is_over=is_over)
        async with client_of(session) as client:
            await ask(client, [USER])
            over = True
            ended = await ask(client, [{"role": "user", "content": "anything"}])
            over = False
            again = await ask(client, [USER])
        assert ended.choices[0].message.content == again.choices[0].message.content == ""
        assert ended.choices[0].finish_reason == "stop"
        assert ended.usage.completion_tokens == 0
        assert len(speaker.batches) == len(endpoint.close(session)) == 1


async def test_a_conversation_without_room_is_ended_and_another_of_the_episode_goes_on() -> None:
    async with serving(counts, ChatCodec(TOKENIZER, max_tokens=400)) as (endpoint, speaker):
        session = endpoint.open(seed=0)
        async with client_of(session) as client:
            flooded = await ask(client, [{"role": "user", "content": "flood " * 400}])
            assert flooded.choices[0].message.content == ""
            assert (await ask(client, [USER])).choices[0].message.tool_calls
        assert len(endpoint.close(session)) == len(speaker.batches) == 1


async def test_a_cut_answer_has_the_finish_reason_length() -> None:
    class Cut(Speaker):
        def generate(self, prompts_B: Sequence[Sequence[int]], *, seeds_B: Sequence[int]) -> list[Generation]:
            return [Generation(one.ids[:-1], one.logprobs[:-1]) for one in super().generate(prompts_B, seeds_B=seeds_B)]

    async with PolicyEndpoint(Cut(lambda prompt: "and then"), CODEC) as endpoint:
        session = endpoint.open(seed=0)
        async with client_of(session) as client:
            choice = (await ask(client, [USER])).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("length", "and then")


async def test_requests_that_cannot_be_answered_are_refused_with_a_reason() -> None:
    async def unknown() -> bool:
        raise EnvironmentUnavailable("the server is asleep")

    async with serving(counts) as (endpoint, speaker):
        session = endpoint.open(seed=0)
        async with client_of(session) as client:
            with pytest.raises(BadRequestError, match="'n' to be 1, got 3"):
                await ask(client, [USER], n=3)
            roles: list[Any] = ["narrator", ["user"], {}]
            for role in roles:
                with pytest.raises(BadRequestError, match=f"role {re.escape(repr(role))}"):
                    await ask(client, [{"role": role, "content": "x"}])
            with pytest.raises(BadRequestError, match="nested too deeply"):
                await ask(client, [USER, calling(json.loads(nested(600)))])
            assert [model.id async for model in client.models.list()] == ["policy"]
            assert endpoint.close(session) == []
            with pytest.raises(NotFoundError, match="it was closed"):
                await ask(client, [USER])
        async with client_of(endpoint.open(seed=0, is_over=unknown)) as client:
            with pytest.raises(InternalServerError, match="the server is asleep"):
                await ask(client, [USER])
        assert speaker.batches == []


@pytest.mark.parametrize("arguments", ['{"n": "\\ud800"}', "[" * 1_000, "not JSON"])
async def test_arguments_that_no_tool_can_get_are_read_as_text(arguments: str) -> None:
    async with serving(lambda prompt: "done") as (endpoint, speaker), client_of(endpoint.open(seed=0)) as client:
        await ask(client, [USER, calling(arguments)])
    ((prompt,),) = speaker.batches
    assert json.dumps(arguments)[1:-1] in TOKENIZER.decode(prompt)


async def test_the_url_of_an_episode_does_not_tell_that_of_another() -> None:
    async with serving(counts) as (endpoint, _):
        names = [endpoint.open(seed=0).url.split("/")[-2] for _ in range(3)]
    assert len({*names}) == 3
    assert all(len(name) == 32 for name in names)


async def test_the_failure_of_a_policy_reaches_all_waiting_clients_and_the_trainer() -> None:
    def broken(prompt: str) -> str:
        raise RuntimeError("out of memory")

    async with serving(broken) as (endpoint, speaker):
        sessions = [endpoint.open(seed=n) for n in range(2)]
        async with client_of(sessions[0]) as one, client_of(sessions[1]) as other:
            # each question is asked once, although the clients would retry after a server error
            retrying = [client.with_options(max_retries=2) for client in (one, other)]
            told = await asyncio.gather(*(ask(client, [USER]) for client in retrying), return_exceptions=True)
        assert all(isinstance(error, InternalServerError) for error in told)
        assert all("RuntimeError: out of memory" in str(error) for error in told)
        assert sum(map(len, speaker.batches)) == 2
        assert str(endpoint.failure) == "out of memory"
        assert [endpoint.close(session) for session in sessions] == [[], []]


async def test_an_answer_that_nobody_waits_for_is_not_recorded() -> None:
    async with serving(counts) as (endpoint, speaker):
        session = endpoint.open(seed=0, is_over=never)
        async with client_of(session) as client:
            speaker.open.clear()
            hasty = asyncio.create_task(ask(client, [USER]))
            assert await asyncio.to_thread(speaker.began.wait, 60)
            hasty.cancel()
            await asyncio.wait([hasty])
        speaker.open.set()
        async with client_of(session) as client:
            await ask(client, [USER], tool_choice="auto")
        assert len(speaker.batches) == 2
        assert len(endpoint.close(session)) == 1


async def test_a_late_answer_to_a_closed_episode_is_discarded() -> None:
    async with serving(counts) as (endpoint, speaker):
        session = endpoint.open(seed=0)
        async with client_of(session) as client:
            speaker.open.clear()
            late = asyncio.create_task(ask(client, [USER]))
            assert await asyncio.to_thread(speaker.began.wait, 60)
            segments = endpoint.close(session)
            speaker.open.set()
            await asyncio.wait([late])
        assert "this answer is discarded" in str(late.exception())
        assert segments == []


async def test_a_template_without_tools_refuses_several_tools_with_a_reason() -> None:
    act, add = openai_tool(ACT), openai_tool(ADD)
    wordless = ChatCodec(byte_pairs("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"))
    async with PolicyEndpoint(Speaker(lambda prompt: "say red"), wordless) as endpoint:
        session = endpoint.open(seed=0)
        async with client_of(session) as client:
            with pytest.raises(BadRequestError, match=r"does not support tools .* not act, add"):
                await client.chat.completions.create(model="m", messages=[USER], tools=[act, add])
            said = await client.chat.completions.create(model="m", messages=[USER], tools=[act])
    assert said.choices[0].message.tool_calls is not None
    (made,) = said.choices[0].message.tool_calls
    assert made.type == "function"
    assert (made.function.name, made.function.arguments) == ("act", '{"command": "say red"}')
