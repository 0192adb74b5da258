"""The litellm backend, in a process of its own: what it answers, imports and refuses."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from aiohttp import web
from dreamgym_integrations.models.litellm import LiteLLMModel, with_cache_marks
from fake_endpoints import REASONING, FakeEndpoint, Windows, running, serving
from test_openai import refused, said, server

from dreamgym.dream.load import load_llm
from dreamgym.errors import MissingPackage

INSTALLED = find_spec("litellm") is not None
needs_litellm = pytest.mark.skipif(
    not INSTALLED, reason="litellm is not installed: pip install -c constraints.txt '.[litellm]'"
)
KEY = "sk-very-secret"

ASK = """
import asyncio, json, os, sys
from dreamgym.budget import open_ledger
from dreamgym.llm import Message
from dreamgym.errors import EnvironmentUnavailable, InvalidInput
from dreamgym.dream.load import load_llm
schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
async def asked(named):
    model = load_llm(named)
    assert model.name == named.removeprefix("litellm:")
    try:
        messages = [Message(role="system", content="rules"), Message(role="user", content="hi")]
        answer = await model.complete(messages, schema=schema, max_tokens=7, seed=3)
        return answer.model_dump_json(include={"text", "finish_reason", "prompt_tokens", "completion_tokens"})
    except EnvironmentUnavailable as error:
        return f"{error}; spent: {ledger.spent}"
    finally:
        await model.close()
assert "litellm" not in sys.modules
for line in sys.stdin:
    named, variables = json.loads(line)
    os.environ.update(variables)
    try:
        with open_ledger(None) as ledger:
            said = asyncio.run(asked(named))
    except InvalidInput as error:
        said = str(error)
    for name in variables:
        del os.environ[name]
    assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"
    print(json.dumps(said), flush=True)
"""
"""Asks the models that it reads. It imports litellm, which takes seconds, only once."""
Asked = Callable[..., Awaitable[str]]


def environ(**variables: str) -> dict[str, str]:
    """Return this process's environment variables without API keys, plus these."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    return {**kept, **variables}


@pytest.fixture(scope="module")
def asked() -> Iterator[Asked]:
    """Asks a model in the process that runs the script, with some variables; gives its answer or the error."""
    command = [sys.executable, "-c", ASK]
    with subprocess.Popen(command, env=environ(), stdin=-1, stdout=-1, text=True) as process:
        given, told = process.stdin, process.stdout
        assert given is not None
        assert told is not None

        def answer(model: str, variables: dict[str, str]) -> str:
            print(json.dumps([model, variables]), file=given, flush=True)
            return str(json.loads(told.readline()))

        async def ask(model: str, **variables: str) -> str:
            return await asyncio.to_thread(answer, model, variables)

        yield ask
        given.close()
        assert process.wait() == 0


@needs_litellm
@pytest.mark.anyio
async def test_litellm_asks_a_server_and_its_answer_counts_tokens(asked: Asked) -> None:
    async with server(lambda _: said('{"a": 1}')) as (url, bodies):
        answer = await asked("litellm:openai/scripted", OPENAI_API_KEY=KEY, OPENAI_BASE_URL=url, OPENAI_API_BASE=url)
    counts = {"prompt_tokens": 5, "completion_tokens": 3}
    assert json.loads(answer) == {"text": '{"a": 1}', "finish_reason": "stop", **counts}
    probe, body = bodies
    assert probe["messages"] != body["messages"]
    assert (body["model"], body["max_tokens"]) == ("scripted", 7)
    assert body["messages"] == [{"role": "system", "content": "rules"}, {"role": "user", "content": "hi"}]
    assert body["response_format"]["json_schema"]["strict"] is True


@needs_litellm
@pytest.mark.anyio
async def test_a_fence_around_an_answer_is_taken_off(asked: Asked) -> None:
    async with server(lambda _: said('```json\n{"a": 1}\n```')) as (url, _):
        answer = await asked("litellm:openai/scripted", OPENAI_API_KEY=KEY, OPENAI_BASE_URL=url, OPENAI_API_BASE=url)
    assert json.loads(answer)["text"] == '{"a": 1}'


@needs_litellm
@pytest.mark.anyio
async def test_a_server_that_refuses_is_unavailable_and_the_key_is_not_shown(asked: Asked) -> None:
    async with server(lambda _: refused(401, f"Incorrect API key provided: {KEY}")) as (url, _):
        answer = await asked("litellm:openai/scripted", OPENAI_API_KEY=KEY, OPENAI_BASE_URL=url, OPENAI_API_BASE=url)
    assert answer.startswith("openai/scripted failed: AuthenticationError: ")
    assert KEY not in answer


@needs_litellm
@pytest.mark.anyio
async def test_what_never_reached_a_model_is_not_counted_as_a_call(asked: Asked) -> None:
    async with server(lambda _: refused(403, "not for you")) as (url, _):
        answer = await asked("litellm:openai/scripted", OPENAI_API_KEY=KEY, OPENAI_BASE_URL=url, OPENAI_API_BASE=url)
    assert answer.endswith("; spent: no call of a language model")
    nobody = "http://127.0.0.1:9/v1"
    answer = await asked("litellm:openai/scripted", OPENAI_API_KEY=KEY, OPENAI_BASE_URL=nobody, OPENAI_API_BASE=nobody)
    assert answer.startswith("openai/scripted cannot be reached: is the server running? (Cannot connect to host")
    assert answer.endswith("; spent: no call of a language model")


def test_the_reason_of_an_error_whose_json_has_several_lines_is_its_message() -> None:
    said = (
        'GeminiException - {\n  "error": {\n    "code": 400,\n    "message": "too many states\\nfor serving"\n  }\n}\n'
    )
    assert LiteLLMModel("some/model")._reason(ValueError(said)) == (
        "failed: ValueError: GeminiException - too many states for serving"
    )
    assert LiteLLMModel("some/model")._reason(ValueError("one {line\nand another")) == "failed: ValueError: one {line"


@needs_litellm
@pytest.mark.anyio
async def test_an_overloaded_provider_is_waited_for(asked: Asked) -> None:
    tries: list[int] = []

    def overloaded_at_first(_: object) -> Any:
        tries.append(1)
        return refused(500, "overloaded_error") if len(tries) in {2, 3} else said('{"a": 1}')

    async with server(overloaded_at_first) as (url, _):
        answer = await asked("litellm:openai/scripted", OPENAI_API_KEY=KEY, OPENAI_BASE_URL=url, OPENAI_API_BASE=url)
    assert json.loads(answer)["text"] == '{"a": 1}'


@needs_litellm
@pytest.mark.anyio
async def test_a_schema_that_litellm_cannot_send_to_a_provider_is_told_in_words(asked: Asked) -> None:
    async with server(lambda _: said('{"a": 1}')) as (url, bodies):
        await asked("litellm:together_ai/some/scripted", TOGETHERAI_API_KEY=KEY, TOGETHER_AI_API_BASE=url)
    assert all("Its JSON schema: {" in body["messages"][-1]["content"] for body in bodies)
    assert all("response_format" not in body for body in bodies)


@pytest.mark.parametrize("variable", ["SOME_API_KEY", "AZURE_AD_TOKEN", "AWS_SECRET_ACCESS_KEY", "WATSONX_APIKEY"])
def test_a_key_is_masked_before_a_long_error_is_cut(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, f"{KEY}\n")
    assert KEY[:4] not in LiteLLMModel("some/model")._reason(ValueError("x" * 490 + KEY))


@needs_litellm
@pytest.mark.anyio
@pytest.mark.parametrize(
    "limit",
    [None, pytest.param(Windows(2, retry_after_s=0.2, every_s=0.4), marks=pytest.mark.long)],
    ids=["free", "limited"],
)
async def test_litellm_waits_for_a_reasoning_model_and_leaves_room_for_its_thoughts(
    limit: Windows | None, asked: Asked
) -> None:
    limited: dict[str, Any] = {} if limit is None else {"before": limit}
    endpoint = FakeEndpoint(**limited, refuses=REASONING, thinks=lambda number: 2_000, seconds=0)
    async with serving(endpoint) as url:
        answer = await asked("litellm:openai/scripted", OPENAI_API_KEY=KEY, OPENAI_BASE_URL=url, OPENAI_API_BASE=url)
    said = json.loads(answer)
    assert (said["text"], said["finish_reason"]) == ('{"ok": true}', "stop")
    assert len(endpoint.asked) >= endpoint.answered + 3
    assert endpoint.asked[-1]["max_completion_tokens"] > 2_000


@needs_litellm
@pytest.mark.anyio
async def test_the_rules_and_the_history_are_marked_for_anthropics_prompt_cache(asked: Asked) -> None:
    asked_of_it: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        asked_of_it.append(await request.json())
        usage = {"input_tokens": 5, "output_tokens": 3, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
        said = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": '{"a": 1}'}]}
        return web.json_response({"id": "1", "model": "m", "stop_reason": "end_turn", "usage": usage, **said})

    app = web.Application()
    app.router.add_post("/v1/messages", answer)
    async with running(app) as url:
        completed = await asked("anthropic/claude-x", ANTHROPIC_API_KEY=KEY, ANTHROPIC_API_BASE=url)
    assert '"text":"{\\"a\\": 1}"' in completed
    prompt = asked_of_it[-1]
    assert prompt["system"] == [{"type": "text", "text": "rules", "cache_control": {"type": "ephemeral"}}]
    assert prompt["messages"][0]["content"] == [{"type": "text", "text": "hi"}]


def test_a_longer_history_begins_with_the_blocks_that_the_shorter_one_was_cached_with() -> None:
    def blocks(lines: str) -> list[dict[str, Any]]:
        user = f"The steps so far:\n<history>\n{lines}\n</history>\n<state>\n{len(lines)}\n</state>"
        system, said = with_cache_marks([{"role": "system", "content": "rules"}, {"role": "user", "content": user}])
        assert "".join(block["text"] for block in said["content"]) == user
        assert system["content"][0]["cache_control"] == {"type": "ephemeral"}
        return list(said["content"])

    before, after = blocks('{"a": 1}\n{"b": 2}'), blocks('{"a": 1}\n{"b": 2}\n{"c": 3}')
    assert [block["text"] for block in before if "cache_control" in block] == ['{"b": 2}']
    assert [block["text"].strip() for block in after[: len(before) - 1]] == [
        block["text"].strip() for block in before[:-1]
    ]


UNKNOWN = "model 'nosuchprovider/x': litellm does not know the provider 'nosuchprovider'"


@needs_litellm
@pytest.mark.parametrize(
    "verb",
    [
        ("serve", "coin", "--port", "0"),
        pytest.param(("check", "examples/coin", "--against", "dream"), marks=pytest.mark.long),
    ],
    ids=["serve", "check"],
)
def test_a_model_that_cannot_work_is_refused_at_the_start(verb: tuple[str, ...], dsn: str) -> None:
    command = [sys.executable, "-m", "dreamgym", *verb, "--model", "nosuchprovider/x"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environ(DREAMGYM_DSN=dsn, DREAMGYM_ENCODER="trigram"), check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"dreamgym: {UNKNOWN}" in done.stderr


@needs_litellm
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("nosuchprovider/x", UNKNOWN),
        ("anthropic/x", "model 'anthropic/x' needs a key of anthropic: set ANTHROPIC_API_KEY"),
    ],
)
async def test_a_model_that_cannot_work_names_what_it_lacks(model: str, reason: str, asked: Asked) -> None:
    assert (await asked(model)).startswith(reason)


@needs_litellm
@pytest.mark.anyio
async def test_credentials_that_may_come_from_elsewhere_are_not_asked_for_at_the_start(asked: Asked) -> None:
    assert (await asked("bedrock/x")).startswith("bedrock/x failed: ")


@pytest.mark.skipif(INSTALLED, reason="litellm is installed")
def test_without_litellm_its_models_name_the_extra_that_brings_it() -> None:
    with pytest.raises(MissingPackage, match=r"pip install -c constraints.txt '\.\[litellm\]'"):
        load_llm("anthropic/some-model")
