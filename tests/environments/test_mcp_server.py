"""Any MCP server is an environment: its answers pass through unchanged, and a fault is an error of one sentence."""

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from dreamgym_integrations.environments.mcp import McpEnvironment, McpOptions
from dreamgym_server.running import running
from mcp.server.lowlevel import Server
from mcp_counter import SCHEMA, counter
from pydantic import JsonValue
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from dreamgym.environment import Environment, EnvironmentSpec, installed_real, load_real, load_spec
from dreamgym.errors import EnvironmentUnavailable, EpisodeFinished, InvalidInput, MissingPackage
from dreamgym.runs.opening import tasks_of
from dreamgym.state import changed_fields, parsed
from dreamgym.testing import check_environment
from dreamgym.types import JsonObject, StepResult, Task, ToolCall

pytestmark = pytest.mark.anyio

COUNTER = [sys.executable, str(Path(__file__).with_name("counter_server.py"))]
SDK_COUNTER = [sys.executable, str(Path(__file__).with_name("mcp_counter.py"))]
NODE_MODULES = Path(__file__).parents[1] / "node" / "node_modules"
TASKS = [Task(id=f"count-{i}", env="counter", instruction="Count.", initial_state="a counter at 0") for i in range(2)]
ADD = ToolCall(name="add", arguments={"n": 2})


@asynccontextmanager
async def started(**options: JsonValue) -> AsyncIterator[Environment]:
    environment = load_real("mcp", {"timeout_s": 20, **options}).create()
    try:
        await environment.reset(TASKS[0])
        yield environment
    finally:
        await environment.close()


def http_app(server: Server[object]) -> Starlette:
    return server.streamable_http_app(streamable_http_path="/mcp", stateless_http=True, json_response=True)


def counted(n: int) -> JsonObject:
    return {"structured": {"count": n}}


class Described(McpEnvironment):
    """An environment with tools before the first reset, as the contract asks; a real one has them from its folder."""

    tools: Sequence[JsonObject] = [{"name": "add", "inputSchema": SCHEMA}]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"url": "http://ada:pass@127.0.0.1:9/s/Zx81kQ0pLm72RtYw/mcp?api_key=S3CRET"}, "'http://127.0.0.1:9'"),
        ({"command": ["mcp-postgres", "postgresql://ada:hunter2@db/x"]}, "'mcp-postgres'"),
        ({"command": ["npx", "-y", "@scope/server-memory", "--api-key", "S3CRET"]}, "'npx @scope/server-memory'"),
        ({"command": ["python", "-m", "counter", "sk-live-12ab34cd56ef78"]}, "'python counter'"),
    ],
)
def test_a_server_is_named_without_the_secrets_of_its_address_or_command(options: JsonObject, name: str) -> None:
    assert McpOptions.model_validate(options).server == f"MCP server {name}"
    with pytest.raises(ValueError, match="Invalid IPv6 URL"):
        McpOptions.model_validate({"url": "http://[bad/mcp"})


async def test_a_stdio_server_keeps_the_contract_of_environments() -> None:
    options = McpOptions(command=tuple(COUNTER))
    await check_environment(lambda: Described(options), TASKS, action=ADD, deterministic=True)


@pytest.mark.parametrize("command", [COUNTER, SDK_COUNTER], ids=["by_hand", "sdk"])
async def test_each_reset_is_a_new_server_and_all_pages_of_its_tools_are_listed(command: list[str]) -> None:
    async with started(command=[*command]) as environment:
        assert [tool["name"] for tool in environment.tools] == ["add", "secret"]
        assert environment.tools[0]["outputSchema"] == {
            "type": "object",
            "properties": {"count": {"type": "integer"}},
            "required": ["count"],
        }
        assert [(await environment.step(ADD)).info for _ in range(2)] == [counted(2), counted(4)]
        assert (await environment.reset(TASKS[0])).observation == "a counter at 0"
        assert (await environment.step(ADD)).observation == "count 2"


@pytest.mark.parametrize("command", [COUNTER, SDK_COUNTER], ids=["by_hand", "sdk"])
async def test_a_refusal_of_a_server_is_an_error_in_its_own_words_and_ends_nothing(command: list[str]) -> None:
    async with started(command=[*command]) as environment:
        refused = await environment.step(ToolCall(name="add", arguments={"n": -1}))
        unknown = await environment.step(ToolCall(name="fly"))
        assert (refused.observation, refused.is_error, refused.done) == ("only up", True, False)
        assert (unknown.observation, unknown.is_error, unknown.done) == ("no tool fly", True, False)
        assert (await environment.step(ADD)).observation == "count 2"


async def test_an_http_server_is_reached_with_its_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str | None] = []
    app = http_app(counter())

    async def listening(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", []))
        heard.append(headers.get(b"authorization", b"").decode())
        await app(scope, receive, send)

    monkeypatch.setenv("COUNTER_AUTHORIZATION", "Bearer 1234")
    async with (
        running(listening) as url,
        started(url=f"{url}/mcp", headers={"Authorization": "COUNTER_AUTHORIZATION"}) as environment,
    ):
        assert (await environment.step(ADD)).info == counted(2)
    assert set(heard[1:]) == {"Bearer 1234"}


async def test_a_header_may_end_with_a_line_break_and_its_value_is_never_in_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = McpOptions(url="http://127.0.0.1:1/mcp", headers={"Authorization": "COUNTER_AUTHORIZATION"})
    monkeypatch.setenv("COUNTER_AUTHORIZATION", "Bearer 1234\n")
    assert options.header_values() == {"Authorization": "Bearer 1234"}
    for value in ("s3cret\x01s3cret", "s3cret\ns3cret", "s3crét"):
        monkeypatch.setenv("COUNTER_AUTHORIZATION", value)
        with pytest.raises(InvalidInput, match="variable COUNTER_AUTHORIZATION cannot be the header") as raised:
            async with started(url=options.url, headers=dict(options.headers)):
                pass
        assert "s3cr" not in str(raised.value)


async def test_a_server_is_given_the_named_variables_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTER_SECRET", "s3cret")
    ask = ToolCall(name="secret")
    async with started(command=[*COUNTER]) as without, started(command=[*COUNTER], env=["COUNTER_SECRET"]) as given:
        assert (await without.step(ask)).observation == "not set"
        assert (await given.step(ask)).observation == "s3cret"
    monkeypatch.delenv("COUNTER_SECRET")
    with pytest.raises(InvalidInput, match="needs the environment variable COUNTER_SECRET: set it"):
        async with started(command=[*COUNTER], env=["COUNTER_SECRET"]):
            pass


async def test_the_value_of_a_variable_is_in_no_error_even_if_the_server_writes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COUNTER_SECRET", "Bearer s3cret-AAA")
    code = "import os, sys; sys.exit('bad token ' + os.environ['COUNTER_SECRET'].split()[1])"
    with pytest.raises(EnvironmentUnavailable, match=r"bad token \$COUNTER_SECRET$") as raised:
        async with started(command=[sys.executable, "-c", code], env=["COUNTER_SECRET"]):
            pass
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--api-key", "s3cret-AAA"], "bad --api-key [argument]"),
        (["--api-key=s3cret=AAA"], "bad [argument]"),
        (["s3cret-AAA=="], "bad [argument]"),
        (["key=s3cret-AAA"], "bad [argument]"),
    ],
)
async def test_an_argument_of_the_command_is_in_no_error_even_if_the_server_writes_it(
    arguments: list[str], said: str
) -> None:
    with pytest.raises(EnvironmentUnavailable) as raised:
        async with started(command=["sh", "-c", 'echo bad "$@" >&2', "sh", *arguments]):
            pass
    assert str(raised.value).endswith(f"stderr: {said}")


async def test_a_word_within_an_argument_of_the_command_is_in_no_error_either() -> None:
    with pytest.raises(EnvironmentUnavailable, match=r"stderr: bad \[argument\]$"):
        async with started(command=["sh", "-c", "echo bad 's3cret-AAA' >&2"]):
            pass


async def test_a_server_that_dies_in_a_call_is_unavailable_until_the_next_reset() -> None:
    async with started(command=[*COUNTER, "dies"]) as environment:
        with pytest.raises(EnvironmentUnavailable, match="has ended; it last wrote to stderr: out of paper"):
            await environment.step(ADD)
        with pytest.raises(EnvironmentUnavailable, match="reset starts the server anew"):
            await environment.step(ToolCall(name="secret"))
        await environment.reset(TASKS[0])
        assert (await environment.step(ToolCall(name="secret"))).observation == "not set"


async def test_a_call_without_an_answer_is_given_up() -> None:
    async with started(command=[*COUNTER, "hangs"], timeout_s=6) as environment:
        with pytest.raises(EnvironmentUnavailable, match="did not answer within 6 s"):
            await environment.step(ADD)


async def test_an_answer_that_json_does_not_allow_makes_the_server_unavailable() -> None:
    async with started(command=[*COUNTER, "overflows"]) as environment:
        with pytest.raises(EnvironmentUnavailable, match="answered with NaN or an infinite number"):
            await environment.step(ADD)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("hides", "refused to list its tools: no method tools/list"), ("tires", "did not answer within 2 s$")],
)
async def test_a_server_that_does_not_list_its_tools_is_unavailable(fault: str, reason: str) -> None:
    with pytest.raises(EnvironmentUnavailable, match=reason):
        async with started(command=[*COUNTER, fault], timeout_s=2):
            pass


def refusal(message: str, status: int) -> Response:
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": message}}, status)


def answering(answer: Response, farewell: Response | None = None) -> Starlette:
    """An MCP server with sessions that answers each tool call, and the end of a session, with the given responses."""

    async def mcp(request: Request) -> Response:
        if request.method == "DELETE" and farewell is not None:
            return farewell
        if request.method != "POST":
            return Response(status_code=405 if request.method == "GET" else 200)
        message = await request.json()
        if "id" not in message:
            return Response(status_code=202)
        if message["method"] == "tools/call":
            return answer
        if message["method"] not in {"initialize", "tools/list"}:
            return refusal("no such method", 400)
        result: JsonObject = {
            "protocolVersion": "2025-06-18",
            "serverInfo": {"name": "counter", "version": "1"},
            "capabilities": {"tools": {}},
        }
        if message["method"] == "tools/list":
            result = {"tools": [{"name": "add", "inputSchema": SCHEMA}]}
        told = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        return JSONResponse(told, headers={"mcp-session-id": "1"})

    return Starlette(routes=[Route("/mcp", mcp, methods=["GET", "POST", "DELETE"])])


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Response(status_code=500), "Server returned an error response"),
        (Response(status_code=401), r"\(HTTP 401\)"),
        (Response(status_code=404), r"\(HTTP 404\): Session terminated"),
        (refusal("Session not found", 404), r"\(HTTP 404\): Session not found"),
        (RedirectResponse("http://127.0.0.1:1/mcp"), "Redirect to http://127.0.0.1:1/mcp not followed"),
        (PlainTextResponse("please wait"), "Unexpected content type: text/plain"),
        (Response("{]", media_type="application/json"), "Failed to parse JSON response"),
        (Response("", media_type="text/event-stream"), "SSE stream ended without a response"),
        (Response(status_code=202), "server answered a request with 202 Accepted"),
    ],
)
async def test_a_broken_http_answer_makes_the_server_unavailable(answer: Response, reason: str) -> None:
    async with running(answering(answer)) as url, started(url=f"{url}/mcp") as environment:
        with pytest.raises(EnvironmentUnavailable, match=f"gave no answer.*{reason}") as raised:
            await environment.step(ADD)
    assert "\n" not in str(raised.value)


async def test_a_refusal_over_http_is_an_error_in_the_words_of_the_server() -> None:
    async with running(answering(refusal("only up", 400))) as url, started(url=f"{url}/mcp") as environment:
        refused = await environment.step(ADD)
        assert (refused.observation, refused.is_error) == ("only up", True)


async def test_an_http_server_that_never_ends_its_last_answer_does_not_keep_a_session_from_closing() -> None:
    left = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b" "
                await asyncio.sleep(0.01)
        finally:
            left.set()

    app = answering(refusal("only up", 400), StreamingResponse(endless()))
    async with running(app) as url, asyncio.timeout(20):
        async with started(url=f"{url}/mcp", timeout_s=2) as environment:
            assert (await environment.step(ADD)).is_error
        await left.wait()


async def test_a_line_on_stdout_that_is_not_a_message_does_no_harm() -> None:
    async with started(command=[*COUNTER, "chats"]) as environment:
        assert (await environment.step(ADD)).observation == "count 2"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["no-such-program"], "cannot be started: 'no-such-program' was not found"),
        ([sys.executable, "-c", "import sys; sys.exit('no licence')"], "ended before .* stderr: no licence"),
        (
            [sys.executable, "-c", "print('hello'); input(); input(); input()"],
            "it wrote a line that is not an MCP message",
        ),
        ([sys.executable, "-c", "import signal; signal.pause()"], "did not answer within 2 s of its start"),
    ],
)
async def test_a_command_that_starts_no_mcp_server_fails_with_one_sentence(command: list[str], reason: str) -> None:
    with pytest.raises(EnvironmentUnavailable, match=reason) as raised:
        async with started(command=[*command], timeout_s=2):
            pass
    assert "\n" not in str(raised.value)


async def test_a_url_that_serves_no_mcp_fails_with_one_sentence() -> None:
    async def page(_: Request) -> Response:
        return PlainTextResponse("<html>welcome</html>")

    async with running(Starlette(routes=[Route("/mcp", page, methods=["GET", "POST", "DELETE"])])) as url:
        with pytest.raises(EnvironmentUnavailable, match="cannot be reached") as raised:
            async with started(url=f"{url}/mcp"):
                pass
    assert "\n" not in str(raised.value)
    with pytest.raises(EnvironmentUnavailable, match="cannot be reached"):
        async with started(url=f"{url}/mcp"):
            pass


async def test_before_the_first_reset_there_are_no_tools_and_no_steps() -> None:
    environment = load_real("mcp", {"command": [*COUNTER]}).create()
    with pytest.raises(EnvironmentUnavailable, match="known after the first reset"):
        _ = environment.tools
    with pytest.raises(EpisodeFinished, match="call reset first"):
        await environment.step(ADD)
    await environment.close()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"command": ["a"], "url": "http://b"}, "expected either a command or a url"),
        ({"timeout_s": 3}, "expected either a command or a url"),
        ({"url": "ftp://b"}, "expected an http:// or https:// url"),
        ({"command": ["a"], "environment": {"A": "b"}}, "environment: unknown key"),
        ({"command": ["a"], "timeout_s": 0}, "timeout_s: Input should be greater than 0"),
    ],
)
def test_options_that_name_no_server_are_refused(options: JsonObject, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        load_real("mcp", options)


def test_the_bare_name_mcp_is_refused_with_a_way_to_make_an_environment() -> None:
    with pytest.raises(InvalidInput, match="dreamgym record FOLDER"):
        load_spec("mcp")
    with pytest.raises(InvalidInput, match="dreamgym record FOLDER"):
        load_real("mcp").create()


def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingPackage, match=r"pip install -c constraints.txt '\.\[client\]'"):
        load_real("mcp", {"command": [*COUNTER]}).create()


def test_the_tasks_of_a_real_server_are_those_of_its_folder() -> None:
    spec = EnvironmentSpec.model_validate(
        {
            "name": "counter",
            "tools_list": {"tools": [{"name": "add"}]},
            "tasks": TASKS,
            "adapter": "mcp",
            "options": {"command": COUNTER},
        }
    )
    assert tasks_of(spec, "train", installed_real(spec)) == TASKS


@pytest.mark.skipif(not NODE_MODULES.is_dir(), reason="the public MCP servers are installed by `make test`")
@pytest.mark.parametrize(
    ("server", "arguments", "call", "answer"),
    [
        ("everything", [], ToolCall(name="echo", arguments={"message": "hi"}), "Echo: hi"),
        ("memory", [], ToolCall(name="search_nodes", arguments={"query": "nobody"}), '"entities": []'),
        ("filesystem", ["."], ToolCall(name="read_text_file", arguments={"path": "nowhere.txt"}), "ENOENT"),
    ],
)
async def test_a_public_server_of_another_language_is_played(
    server: str, arguments: list[str], call: ToolCall, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = shutil.which("node", path=str(Path(sys.executable).parent)) or "node"
    index = NODE_MODULES / "@modelcontextprotocol" / f"server-{server}" / "dist" / "index.js"
    monkeypatch.setenv("MEMORY_FILE_PATH", str(tmp_path / "memory.jsonl"))
    command = [node, str(index), *arguments]
    async with started(command=[*command], cwd=str(tmp_path), env=["MEMORY_FILE_PATH"]) as environment:
        result = await environment.step(call)
        assert answer in result.observation
        assert result.is_error == (server == "filesystem")


TELLING = [sys.executable, str(Path(__file__).parents[1] / "recorder" / "telling_server.py")]


async def test_the_state_that_a_server_reports_is_in_the_info_of_each_step_and_of_a_known_start() -> None:
    known = Task(id="known", env="shop", instruction="Buy.", initial_state='{"items":{}}')
    async with started(command=[*TELLING]) as environment:
        assert await environment.reset(known) == StepResult(observation="", info={"state": '{"items":{}}'})
        looked = await environment.step(ToolCall(name="look", arguments={"sku": "S-1"}))
        bought = await environment.step(ToolCall(name="buy", arguments={"sku": "S-1"}))
        unknown = await environment.step(ToolCall(name="fly"))
    before, after = parsed(looked.state), parsed(bought.state)
    assert before is not None
    assert after is not None
    assert changed_fields(before, after) == {
        "/clock",
        "/items/S-1/stock",
        "/orders/O-1/note",
        "/orders/O-1/order_id",
        "/orders/O-1/sku",
    }
    assert (bought.observation, set(bought.info)) == ("O-1", {"state", "meta", "fields"})
    assert bought.info["fields"] == {"x-price": 2.5}
    assert bought.info["meta"] == {"shop/own": 1}
    assert (unknown.is_error, unknown.info) == (True, {})
