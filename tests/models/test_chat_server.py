"""The chat endpoint as its clients see it: the openai client and LangChain's, streaming and not."""

import json

import httpx
import pytest
from chat_tools import openai_tool
from dreamgym_integrations.models import chat_server as module
from dreamgym_integrations.models.chat_server import Reply, chat_server
from openai import AsyncOpenAI, BadRequestError, InternalServerError
from openai.types.chat import ChatCompletionMessageParam

from dreamgym.errors import EnvironmentUnavailable
from dreamgym.types import JsonObject, ToolCall

pytestmark = pytest.mark.anyio

ACT: JsonObject = {
    "type": "function",
    "function": {
        "name": "act",
        "description": "Do one thing.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}


def scripted(messages: list[JsonObject], tools: list[JsonObject]) -> Reply:
    """Call the tool `act` once, then repeat its answer."""
    if messages[-1]["role"] == "tool":
        return Reply(text=f"It said: {messages[-1]['content']}")
    return Reply(text="I look.", tool_calls=(ToolCall(name="act", arguments={"command": "look «around»"}),))


async def test_a_reply_reaches_the_openai_client_whole() -> None:
    async with chat_server(scripted) as url, AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        asked: list[ChatCompletionMessageParam] = [{"role": "user", "content": "go"}]
        completion = await client.chat.completions.create(model="m", messages=asked, tools=[openai_tool(ACT)])
        choice = completion.choices[0]
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
        assert choice.message.tool_calls is not None
        (call,) = choice.message.tool_calls
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("act", {"command": "look «around»"})
        answered: list[ChatCompletionMessageParam] = [
            *asked,
            {"role": "tool", "tool_call_id": call.id, "content": "a hall."},
        ]
        completion = await client.chat.completions.create(model="m", messages=answered)
        assert completion.choices[0].message.content == "It said: a hall."
        assert [model.id async for model in client.models.list()] == ["policy"]


async def test_a_stream_adds_up_to_the_same_reply() -> None:
    from langchain_core.messages import AIMessageChunk
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    async with chat_server(scripted) as url:
        model = ChatOpenAI(model="m", base_url=url, api_key=SecretStr("none"), streaming=True, stream_usage=True)
        chunks = [chunk async for chunk in model.bind_tools([ACT]).astream("go")]
    whole, *more = [chunk for chunk in chunks if isinstance(chunk, AIMessageChunk)]
    for chunk in more:
        whole += chunk
    assert whole.content == "I look."
    assert [(call["name"], call["args"]) for call in whole.tool_calls] == [("act", {"command": "look «around»"})]
    assert len(chunks) == 1 + len(more) > 2


async def test_a_failing_policy_and_an_invalid_body_are_errors_with_a_reason() -> None:
    def failing(messages: list[JsonObject], tools: list[JsonObject]) -> Reply:
        raise EnvironmentUnavailable("the model is asleep")

    async with chat_server(failing) as url, AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        with pytest.raises(InternalServerError, match="the model is asleep"):
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "go"}])
        with pytest.raises(BadRequestError, match="non-empty list 'messages'"):
            await client.chat.completions.create(model="m", messages=[])
        async with httpx.AsyncClient() as plain:
            half, endless = (
                b'{"messages": [{"role": "user", "content": %s}]}' % one for one in (b'"\\ud800"', b"1e999")
            )
            for body in (b"{", b"[" * 100_000, half, endless):
                assert (await plain.post(f"{url}/chat/completions", content=body)).status_code == 400


@pytest.mark.parametrize(
    "wrong", [{"n": [1]}, {"n": 2}, {"tools": 3}, {"tools": [1]}, {"stream_options": "include_usage"}]
)
async def test_a_field_of_another_type_is_a_bad_request(wrong: JsonObject) -> None:
    async with chat_server(scripted) as url, httpx.AsyncClient() as http:
        answer = await http.post(f"{url}/chat/completions", json={"messages": [{"role": "user"}], **wrong})
    assert answer.status_code == 400
    assert "expected" in answer.json()["error"]["message"]


async def test_a_body_beyond_the_limit_is_refused_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BODY_BYTES", 2_000)
    said = {"messages": [{"role": "user", "content": "go"}]}
    async with chat_server(scripted) as url, httpx.AsyncClient() as http:
        answers = [await http.post(f"{url}/chat/completions", json={**said, "user": "x" * n}) for n in (1_000, 3_000)]
    assert [answer.status_code for answer in answers] == [200, 400]
    assert "expected a body of at most 2,000 bytes" in answers[1].json()["error"]["message"]


async def test_two_servers_run_side_by_side_and_their_ports_are_free_afterwards() -> None:
    async with chat_server(scripted) as one, chat_server(scripted) as other:
        assert one != other
    async with httpx.AsyncClient() as plain:
        with pytest.raises(httpx.ConnectError):
            await plain.get(f"{one}/models")
