"""The openai backend against a real HTTP server that speaks each dialect, refuses, talks rubbish or hangs."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from aiohttp import web
from dreamgym_integrations.models.endpoint import bare
from dreamgym_integrations.models.openai import BASE_URLS, OpenAIModel, load
from fake_endpoints import running
from growth import grows_linearly
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from virtual_time import VirtualTimeLoop

from dreamgym.errors import EnvironmentUnavailable, InvalidInput
from dreamgym.llm import Message
from dreamgym.prices import OPENAI_PROVIDERS
from dreamgym.types import JsonObject

pytestmark = pytest.mark.anyio

KEY = "sk-very-secret"
ASKED = [Message(role="system", content="Simulate."), Message(role="user", content="Go.")]
SCHEMA: JsonObject = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Use virtual time, in which pauses between attempts pass at once."""
    return "asyncio", {"loop_factory": VirtualTimeLoop}


Body = dict[str, Any]
Handler = Callable[[Body], Response | Awaitable[Response]]


USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}


def said(content: str | None, finish_reason: str = "stop", usage: Any = USAGE, **message: Any) -> Response:
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}}
    return JSONResponse(
        {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [{**choice, "finish_reason": finish_reason}],
            "usage": usage,
        }
    )


def refused(status: int, message: str = "unsupported response_format") -> Response:
    headers = {"x-should-retry": "false"}
    return JSONResponse({"error": {"message": message}}, status_code=status, headers=headers)


@asynccontextmanager
async def server(handler: Handler, models: tuple[str, ...] = ("m",)) -> AsyncIterator[tuple[str, list[Body]]]:
    """Serve a fake OpenAI-compatible API; yields its base URL and the bodies that it receives."""
    bodies: list[Body] = []

    async def complete(request: Request) -> Response:
        bodies.append(await request.json())
        answer = handler(bodies[-1])
        return answer if isinstance(answer, Response) else await answer

    async def listed(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": name, "object": "model"} for name in models]})

    app = Starlette(
        routes=[Route("/v1/chat/completions", complete, methods=["POST"]), Route("/v1/models", listed)],
    )
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        running = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1, lifespan="off"))
        serving = asyncio.create_task(running._serve([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1", bodies
        finally:
            running.should_exit = True
            await serving


def form_of(body: Body) -> str:
    return str(body.get("response_format", {"type": "prompt"})["type"])


@asynccontextmanager
async def model_at(url: str, **changed: Any) -> AsyncIterator[OpenAIModel]:
    model = OpenAIModel(url, **{"model": "m", "key": KEY, **changed})
    try:
        yield model
    finally:
        await model.close()


async def test_an_answer_comes_with_its_counts_and_the_settings_go_out() -> None:
    async with server(lambda _: said("Gone.")) as (url, bodies), model_at(url) as model:
        completion = await model.complete(ASKED, max_tokens=9, seed=7)
    assert (completion.text, completion.prompt_tokens, completion.completion_tokens) == ("Gone.", 5, 3)
    assert {key: bodies[0][key] for key in ("model", "max_tokens", "temperature", "seed")} == {
        "model": "m",
        "max_tokens": 9,
        "temperature": 0.0,
        "seed": 7,
    }
    assert bodies[0]["messages"] == [message.model_dump() for message in ASKED]
    assert len(bodies) == 1


DETAILS = {"prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 2}}


async def test_cached_and_thinking_tokens_are_told_apart() -> None:
    async with server(lambda _: said("Gone.", usage={**USAGE, **DETAILS})) as (url, _), model_at(url) as model:
        completion = await model.complete(ASKED)
    assert completion.is_told
    assert (completion.prompt_tokens, completion.cached_tokens) == (5, 4)
    assert (completion.completion_tokens, completion.thinking_tokens) == (3, 2)


@pytest.mark.parametrize("counted", [{"completion_tokens": 3}, {}], ids=["beside an answer", "alone"])
async def test_thoughts_that_only_the_total_counts_are_tokens_of_the_answer(counted: dict[str, int]) -> None:
    usage = {"prompt_tokens": 5, "total_tokens": 408, "completion_tokens_details": {"reasoning_tokens": 400}, **counted}
    async with server(lambda _: said("Gone.", usage=usage)) as (url, _), model_at(url) as model:
        completion = await model.complete(ASKED)
    assert (completion.prompt_tokens, completion.completion_tokens, completion.thinking_tokens) == (5, 403, 400)


async def test_thoughts_that_are_counted_beside_the_answer_are_tokens_of_the_answer_too() -> None:
    usage = {**USAGE, "completion_tokens_details": {"reasoning_tokens": 940}}
    async with server(lambda _: said("Gone.", usage=usage)) as (url, _), model_at(url) as model:
        completion = await model.complete(ASKED)
    assert (completion.prompt_tokens, completion.completion_tokens, completion.thinking_tokens) == (5, 943, 940)


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        {"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5},
        {"prompt_tokens": -5, "completion_tokens": "3", "total_tokens": None},
        {"prompt_tokens": None, "completion_tokens": True, "prompt_tokens_details": [1]},
    ],
)
async def test_an_endpoint_that_counts_no_tokens_reports_no_usage(usage: Any) -> None:
    async with server(lambda _: said("Gone.", usage=usage)) as (url, _), model_at(url) as model:
        completion = await model.complete(ASKED)
    assert completion.text == "Gone."
    assert not completion.is_told


@pytest.mark.parametrize("status", [400, 422, 500])
@pytest.mark.parametrize("known", [{"json_schema", "json_object", "prompt"}, {"json_object", "prompt"}, {"prompt"}])
async def test_the_strictest_known_dialect_is_found_once_and_remembered(known: set[str], status: int) -> None:
    def handler(body: Body) -> Response:
        return said('{"a": 1}') if form_of(body) in known else refused(status)

    ladder = ["json_schema", "json_object", "prompt"]
    best = next(dialect for dialect in ladder if dialect in known)
    async with server(handler) as (url, bodies), model_at(url) as model:
        answers = await asyncio.gather(*(model.complete(ASKED, schema=SCHEMA) for _ in range(5)))
    assert {answer.text for answer in answers} == {'{"a": 1}'}
    probes = ladder[: ladder.index(best) + 1]
    assert [form_of(body) for body in bodies] == probes + [best] * 5
    if best == "json_schema":
        assert bodies[-1]["response_format"]["json_schema"]["schema"] == SCHEMA
        assert bodies[-1]["messages"] == [message.model_dump() for message in ASKED]
    else:
        assert json.dumps(SCHEMA) in bodies[-1]["messages"][-1]["content"]
        assert bodies[-1]["messages"][0]["content"] == "Simulate."


async def test_a_prompt_that_is_refused_does_not_loosen_the_dialect() -> None:
    def handler(body: Body) -> Response:
        return refused(400, "prompt too long") if "Go." in str(body["messages"]) else said('{"ok": true}')

    async with server(handler) as (url, bodies), model_at(url) as model:
        for _ in range(2):
            with pytest.raises(EnvironmentUnavailable, match="prompt too long"):
                await model.complete(ASKED, schema=SCHEMA)
    assert {form_of(body) for body in bodies} == {"json_schema"}


@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"a": 1}\n```',
        '<think>\n{"a": 2}?\n</think>\n{"a": 1}',
        '<think>x</think>```\n{"a": 1}\n```',
        'It is {"a": 2}, or not?\n</think>\n\n{"a": 1}',
    ],
)
async def test_thoughts_and_fences_around_an_answer_are_taken_off(text: str) -> None:
    async with server(lambda _: said(text)) as (url, _), model_at(url) as model:
        assert (await model.complete(ASKED, schema=SCHEMA)).text == '{"a": 1}'
        assert (await model.complete(ASKED)).text == text


@pytest.mark.parametrize("text", ['{"a": "</think>"}', '\n```json\n{"a": "</think>"}\n```'])
async def test_an_answer_that_quotes_the_end_of_thoughts_is_whole(text: str) -> None:
    async with server(lambda _: said(text)) as (url, _), model_at(url) as model:
        assert (await model.complete(ASKED, schema=SCHEMA)).text == '{"a": "</think>"}'


async def test_thoughts_that_the_chat_template_opens_have_room_of_their_own() -> None:
    def handler(body: Body) -> Response:
        is_cut = body["max_tokens"] < 9_000 and "Go." in str(body["messages"])
        return said("First I look", "length") if is_cut else said('I look.\n</think>\n{"a": 1}')

    async with server(handler) as (url, bodies), model_at(url) as model:
        assert (await model.complete(ASKED, schema=SCHEMA, max_tokens=500)).text == '{"a": 1}'
        assert (await model.complete(ASKED, schema=SCHEMA, max_tokens=900)).text == '{"a": 1}'
    assert [body["max_tokens"] for body in bodies[1:]] == [500 + 8_192, 500 + 16_384, 900 + 16_384]


@pytest.mark.parametrize(
    ("reason", "times"),
    [
        ("Invalid schema for response_format 'answer': 'oneOf' is not permitted.", 1),
        ("Request contains an invalid argument.", 2),
    ],
)
async def test_a_schema_that_an_endpoint_refuses_is_told_in_words_and_other_schemas_are_sent_as_before(
    reason: str, times: int
) -> None:
    other: JsonObject = {**SCHEMA, "properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "null"}]}}}

    def handler(body: Body) -> Response:
        if "oneOf" in str(body.get("response_format")):
            return refused(400, reason)
        return said('{"a": 1}')

    async with server(handler) as (url, bodies), model_at(url) as model:
        for schema in (SCHEMA, *times * [other], other, SCHEMA):
            assert (await model.complete(ASKED, schema=schema)).text == '{"a": 1}'
    asked = [form_of(body) for body in bodies if "Go." in str(body["messages"])]
    assert asked == ["json_schema", *times * ["json_schema", "prompt"], "prompt", "json_schema"]
    assert json.dumps(other) in bodies[-2]["messages"][-1]["content"]


@pytest.mark.parametrize("at_once", [1, 5])
async def test_a_fault_of_one_moment_leaves_the_schema_as_it_is(at_once: int) -> None:
    faults = iter(range(at_once))

    def handler(body: Body) -> Response:
        is_fault = "Faulty." in str(body["messages"]) and next(faults, None) is not None
        return refused(400, "Provider returned error") if is_fault else said('{"a": 1}')

    async with server(handler) as (url, bodies), model_at(url) as model:
        faulty = [Message(role="user", content="Faulty.")]
        await asyncio.gather(*(model.complete(faulty, schema=SCHEMA) for _ in range(at_once)))
        assert [form_of(body) for body in bodies].count("prompt") == at_once
        await model.complete(ASKED, schema=SCHEMA)
    assert form_of(bodies[-1]) == "json_schema"


async def test_a_prompt_that_is_refused_in_every_form_ends_with_its_reason() -> None:
    def handler(body: Body) -> Response:
        is_probe = "Go." not in str(body["messages"])
        return said('{"a": 1}') if is_probe else refused(400, "the schema is too large for the context")

    async with server(handler) as (url, bodies), model_at(url) as model:
        with pytest.raises(EnvironmentUnavailable, match="the schema is too large for the context"):
            await model.complete(ASKED, schema=SCHEMA)
    assert len(bodies) <= 5


async def test_a_prompt_that_is_refused_for_a_reason_that_is_not_told_leaves_the_schema_as_it_is() -> None:
    def handler(body: Body) -> Response:
        return refused(400, "Bad request.") if "Bad." in str(body["messages"]) else said('{"a": 1}')

    async with server(handler) as (url, bodies), model_at(url) as model:
        with pytest.raises(EnvironmentUnavailable, match=r"Bad request\."):
            await model.complete([Message(role="user", content="Bad.")], schema=SCHEMA)
        await model.complete(ASKED, schema=SCHEMA)
    assert form_of(bodies[-1]) == "json_schema"


async def test_an_answer_in_parts_is_their_text_without_the_thoughts() -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    parts: Any = [thought, {"type": "text", "text": '{"a":'}, {"type": "text", "text": " 1}"}]
    async with server(lambda _: said(parts)) as (url, _), model_at(url) as model:
        assert (await model.complete(ASKED)).text == '{"a": 1}'


def test_a_fence_is_taken_off_in_linear_time() -> None:
    assert grows_linearly(bare, lambda size: "```" + "\n" * size + "x")


async def test_a_cut_answer_has_the_finish_reason_length() -> None:
    async with server(lambda _: said('{"a"', "length")) as (url, _), model_at(url) as model:
        assert (await model.complete(ASKED)).finish_reason == "length"


async def test_the_only_model_is_taken_if_none_is_named() -> None:
    async with server(lambda _: said("x"), models=("only",)) as (url, bodies), model_at(url, model=None) as model:
        await model.complete(ASKED)
        assert model.name == f"{url}#only"
    assert bodies[0]["model"] == "only"


@pytest.mark.parametrize(("models", "listed"), [(("a", "b"), "a, b"), ((), "none")])
async def test_several_models_or_none_are_an_error_that_lists_them(models: tuple[str, ...], listed: str) -> None:
    async with server(lambda _: said("x"), models=models) as (url, _), model_at(url, model=None) as model:
        with pytest.raises(EnvironmentUnavailable, match=f"lists {listed}: append #MODEL to the address"):
            await model.complete(ASKED)


@pytest.mark.parametrize("listed", [{"data": ["m"]}, {"data": [{"name": "m"}]}, {"data": [None]}, {"data": "abc"}])
async def test_a_list_without_ids_of_models_names_none(listed: JsonObject) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(listed)

    app = web.Application()
    app.router.add_get("/v1/models", answer)
    async with running(app) as url, model_at(f"{url}/v1", model=None) as model:
        with pytest.raises(EnvironmentUnavailable, match="lists none: append #MODEL to the address"):
            await model.complete(ASKED)
        await model.ping()


async def test_a_server_that_hangs_is_given_up() -> None:
    async def hang(_: Body) -> Response:
        await asyncio.Event().wait()
        return said("never")

    async with server(hang) as (url, _), model_at(url, timeout_s=0.05) as model:
        with pytest.raises(EnvironmentUnavailable, match="took longer than"):
            await model.complete(ASKED)


def completed(choice: Any) -> Response:
    whole = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": USAGE}
    return JSONResponse(whole)


FAULTS: dict[str, Callable[[Body], Response]] = {
    "a refusal": lambda _: said(None, refusal="I would rather not."),
    "a content filter": lambda _: said("", "content_filter"),
    "a wrong key": lambda _: refused(401, f"Incorrect API key provided: {KEY}"),
    "an unknown model": lambda _: refused(404, "no such model"),
    "a broken server": lambda _: refused(500, f"key was {KEY}"),
    "no JSON": lambda _: PlainTextResponse("<html>busy</html>"),
    "half a JSON": lambda _: Response('{"choices": [', media_type="application/json"),
    "no choice": lambda _: JSONResponse({"choices": []}),
    "no completion at all": lambda _: JSONResponse({"hello": 1}),
    "no message": lambda _: completed({"index": 0, "text": "hi", "finish_reason": "stop"}),
    "a message that is null": lambda _: completed({"index": 0, "message": None, "finish_reason": "stop"}),
    "a message that is a text": lambda _: completed({"index": 0, "message": "hi", "finish_reason": "stop"}),
    "an answer that an error ended": lambda _: said("half an ans", "error"),
    "an answer that the server aborted": lambda _: said("half an ans", "abort"),
    "an answer that a lack of resources ended": lambda _: said("half an ans", "insufficient_system_resource"),
    "JSON that is nested too deeply": lambda _: Response("[" * 100_000, media_type="application/json"),
    "a choice that is a text": lambda _: completed("hi"),
    "choices that are an object": lambda _: JSONResponse({"choices": {"a": 1}}),
    "an answer that is a number": lambda _: said(5),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("handler", FAULTS.values(), ids=FAULTS.keys())
@pytest.mark.parametrize("schema", [None, SCHEMA], ids=["text", "schema"])
async def test_every_fault_is_unavailable_and_shows_no_key(handler: Handler, schema: JsonObject | None) -> None:
    async with server(handler) as (url, _), model_at(url) as model:
        with pytest.raises(EnvironmentUnavailable) as caught:
            await model.complete(ASKED, schema=schema)
    chain = [caught.value, caught.value.__cause__, caught.value.__suppress_context__ or caught.value.__context__]
    assert all(KEY not in repr(error) for error in chain)
    assert url in str(caught.value)


async def test_an_address_without_an_api_is_an_error_that_says_what_to_check() -> None:
    async with running(web.Application()) as url, model_at(url) as model:
        with pytest.raises(EnvironmentUnavailable, match=r"404.*: check the name of the model, .* ends in /v1$"):
            await model.complete(ASKED)


@pytest.mark.parametrize("kind", ["text/html", "application/json"])
@pytest.mark.parametrize("model", ["m", None], ids=["a question", "the list of models"])
async def test_an_endpoint_that_answers_html_is_an_error_that_shows_its_begin_and_says_what_to_check(
    kind: str, model: str | None
) -> None:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text=f"\n<!DOCTYPE html><title>Sign in, {KEY}</title>", content_type=kind)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", page)
    async with running(app) as url, model_at(f"{url}/v1", model=model) as asked:
        with pytest.raises(EnvironmentUnavailable) as caught:
            await asked.complete(ASKED)
        with pytest.raises(EnvironmentUnavailable, match="which is HTML and not JSON"):
            await asked.ping()
    said = str(caught.value)
    assert "got '<!DOCTYPE html><title>Sign in, ***</title>', which is HTML and not JSON" in said
    assert f"(content type: {kind}; charset=utf-8): check that the address is that of the API" in said


@pytest.mark.parametrize("said", ['{"data": 5}', '{"data": true}', "[" * 100_000, "5", "null"])
async def test_a_list_of_models_that_is_json_of_another_kind_is_an_error_that_shows_its_begin(said: str) -> None:
    async def listed(_: web.Request) -> web.Response:
        return web.Response(text=said, content_type="application/json")

    app = web.Application()
    app.router.add_get("/v1/models", listed)
    async with running(app) as url, model_at(f"{url}/v1", model=None) as model:
        with pytest.raises(EnvironmentUnavailable) as caught:
            await model.complete(ASKED)
        with pytest.raises(EnvironmentUnavailable, match="expected a list of models"):
            await model.ping()
    assert str(caught.value).endswith(f"failed: expected a list of models, got {said[:200]!r}")


@pytest.mark.parametrize(
    ("key", "said", "shown"),
    [
        ("x", "Expecting value: the key x is wrong", "Expecting value: the key *** is wrong"),
        ("none", "nonexistent key: none", "nonexistent key: ***"),
        ("abcd1234", "the keys 'abcd1234' and xabcd1234x", "the keys '***' and x***x"),
        ("+a.b", "+acb, '+a.b'", "+acb, '***'"),
    ],
)
async def test_a_key_is_masked_everywhere_but_a_short_one_not_inside_a_word(key: str, said: str, shown: str) -> None:
    async with server(lambda _: refused(401, said)) as (url, _), model_at(url, key=key) as model:
        with pytest.raises(EnvironmentUnavailable) as caught:
            await model.complete(ASKED)
    assert shown in str(caught.value)


async def test_blanks_around_a_key_are_not_sent_and_do_not_hide_it_from_the_mask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY} \n")
    async with server(lambda _: refused(401, f"the key {KEY} is wrong")) as (url, _):
        model = load(f"{url}#m")
        with pytest.raises(EnvironmentUnavailable, match=r"the key \*\*\* is wrong"):
            await model.complete(ASKED)
        await model.close()


@pytest.mark.parametrize("key", [f"{KEY}\u2026", f"sk\n{KEY}"])
def test_a_key_that_no_header_can_contain_is_refused_and_not_repeated(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(InvalidInput, match="OPENAI_API_KEY: expected a key of printable ASCII characters") as raised:
        load("http://h:1/v1#m")
    assert KEY not in str(raised.value)


async def test_an_unreachable_server_is_an_error_that_says_what_failed() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        async with model_at(url) as model:
            with pytest.raises(
                EnvironmentUnavailable, match=r"cannot be reached: .* \(All connection attempts failed\)"
            ):
                await model.complete(ASKED)
    async with server(lambda _: said("no TLS")) as (url, _), model_at(url.replace("http:", "https:")) as model:
        with pytest.raises(EnvironmentUnavailable, match=r"cannot be reached: .* \(\[SSL"):
            await model.complete(ASKED)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("http://h:1/v1", "http://h:1/v1"),
        ("http://h:1/v1#big/model", "http://h:1/v1#big/model"),
        ("ollama/qwen2.5:0.5b", "http://localhost:11434/v1#qwen2.5:0.5b"),
        ("hosted_vllm/Qwen/Qwen3-8B", "http://localhost:8000/v1#Qwen/Qwen3-8B"),
        ("lm_studio/x", "http://localhost:1234/v1#x"),
        ("openai/gpt-4.1", "OpenAI#gpt-4.1"),
        ("gpt-4.1", "OpenAI#gpt-4.1"),
        ("openrouter/a/b", "https://openrouter.ai/api/v1#a/b"),
    ],
)
async def test_the_address_of_a_model_follows_from_its_name(
    name: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENROUTER_API_KEY", KEY)
    model = load(name)
    assert model.name == expected
    await model.close()


async def test_the_address_of_a_provider_can_be_set_and_its_key_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_API_BASE", "http://elsewhere/v1")
    assert load("ollama/x").name == "http://elsewhere/v1#x"
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(InvalidInput, match="set OPENAI_API_KEY"):
        load("openai/gpt-4.1")
    monkeypatch.setenv("OPENAI_API_KEY", "")
    monkeypatch.setenv("OPENAI_BASE_URL", "")
    with pytest.raises(InvalidInput, match="set OPENAI_API_KEY"):
        load("openai/gpt-4.1")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://proxy/v1")
    assert load("openai/gpt-4.1").name == "http://proxy/v1#gpt-4.1"


@pytest.mark.parametrize(
    "address",
    [
        "user:hunter2@127.0.0.1:9/v1",
        "hunter2@127.0.0.1:9/v1",
        "h:9/v1?api_key=hunter2",
        "h:port/v1?api_key=hunter2",
        "user:hunter2/x@127.0.0.1:9/v1",
        "user:hunter2#x@127.0.0.1:9/v1",
        "user:hunter2@[::1/v1",
    ],
)
def test_an_address_with_a_key_in_it_is_refused_and_the_key_not_repeated(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_API_BASE", f"http://{address}")
    for name, key in ((f"http://{address}#m", "OPENAI_API_KEY"), ("ollama/m", "OLLAMA_API_KEY")):
        with pytest.raises(InvalidInput, match=f"without a user, a password or a query .* {key}") as raised:
            load(name)
        assert "hunter2" not in str(raised.value)


def test_an_address_that_is_not_an_address_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"'http://\[1/v1' is not an address"):
        load("http://[1/v1")


@pytest.mark.parametrize("address", ["http://h:port/v1", "http://h:99999/v1", "http:///v1", "http://"])
def test_an_address_without_a_host_or_with_an_impossible_port_is_refused(address: str) -> None:
    with pytest.raises(InvalidInput, match=f"'{address}' is not an address: expected http://HOST:PORT/v1"):
        load(f"{address}#m")


def test_the_choice_of_a_backend_and_the_backend_know_the_same_providers() -> None:
    assert set(BASE_URLS) == OPENAI_PROVIDERS
