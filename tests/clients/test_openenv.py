"""OpenEnv's clients play our episodes. Invalid requests are refused in the form that these clients expect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from dreamgym_server.app import build
from dreamgym_server.running import running
from dreamgym_server.sources import RealWorlds
from matrix import MCP_1, ROOT, StructuredCounter, structured_spec
from server_stage import Stage
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import load_real
from dreamgym.replay.memory import MemoryBuffer, MemoryEpisodeStore
from dreamgym.types import StopReason

pytestmark = pytest.mark.anyio
TOKEN = "of the server"


@pytest.fixture
def stage() -> Stage:
    return Stage(MemoryBuffer(TrigramEncoder()), MemoryEpisodeStore())


@asynccontextmanager
async def talk(stage: Stage) -> AsyncIterator[tuple[ClientConnection, httpx2.AsyncClient]]:
    """A websocket to a dreamed counter."""
    async with (
        stage.serve() as (url, http),
        connect(url.replace("http", "ws", 1) + "/envs/counter/openenv/ws", proxy=None) as websocket,
    ):
        yield websocket, http


async def ask(websocket: ClientConnection, message: object) -> Any:
    """Send one message and return its answer."""
    await websocket.send(message if isinstance(message, str | bytes) else json.dumps(message))
    return json.loads(await websocket.recv())


def call(n: object) -> dict[str, Any]:
    """A message that takes a step."""
    return {"type": "step", "data": {"tool_name": "add", "arguments": {"n": n}}}


@pytest.mark.parametrize("kind", ["dream", "real"])
async def test_the_clients_of_openenv_reset_step_and_read_the_state(stage: Stage, kind: str) -> None:
    if not MCP_1.exists():
        pytest.skip("needs the environment with mcp 1.x: make .venv-mcp1/installed")
    world = stage.dream() if kind == "dream" else stage.real()
    async with stage.serve(world, token=TOKEN) as (url, _):
        process = await asyncio.create_subprocess_exec(
            str(MCP_1),
            str(Path(__file__).with_name("openenv_client.py")),
            f"{url}/envs/counter/openenv",
            TOKEN,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, said = await process.communicate()
    assert process.returncode == 0, said.decode()
    seen = json.loads(out)
    assert "HTTP 401" in seen["stranger"]
    generic = seen["generic"]
    assert generic["before"] == {"episode_id": None, "step_count": 0}
    assert [generic["first"][key] for key in ("text", "task")] == ["count 1", "Reach 10, start at 1."]
    assert generic["first"]["metadata"]["task_id"] == "counter-1"
    error = "Input validation error: n: -1 is less than the minimum of 0"
    assert generic["steps"] == [
        ["count 5", 0.0, False],
        [error, None, False],
        ["count 10", 1.0, True],
        ["The session has ended.", None, True],
    ]
    assert [generic["state"][key] for key in ("step_count", "reward", "stop_reason")] == [2, 1.0, "terminated"]
    assert [generic["second"], generic["again"]] == ["count 2", "count 3"]
    assert "expected a tool's name" in generic["refused"]
    assert seen["tools"] == {
        "names": ["add", "peek"],
        "unreset": "count 3",
        "called": "count 3",
        "stepped": ["count 10", 1.0, True],
        "count": 2,
    }
    assert seen["parallel"] == [[f"count {n % 3 + 1}", f"count {n % 3 + 3}"] for n in range(8)]


async def test_a_reset_and_a_disconnect_close_the_running_episode(stage: Stage) -> None:
    async with stage.serve() as (url, http):
        address = url.replace("http", "ws", 1) + "/envs/counter/openenv/ws"
        async with connect(address, proxy=None) as websocket:
            first = (await ask(websocket, {"type": "reset"}))["data"]["metadata"]["episode_id"]
            await ask(websocket, call(1))
            second = (await ask(websocket, {"type": "reset"}))["data"]["metadata"]["episode_id"]
            running = (await http.get(f"/envs/counter/episodes/{second}")).json()
        await websocket.wait_closed()
    stored = [await stage.episodes.load(episode) for episode in (first, second)]
    assert running["stop_reason"] is None
    assert [episode.stop_reason for episode in stored] == [StopReason.CLOSED, StopReason.CLOSED]
    assert [episode.version for episode in stored] == [1, 0]


@pytest.mark.parametrize(
    ("message", "code", "named"),
    [
        ("{", "VALIDATION_ERROR", "Invalid JSON"),
        ([], "VALIDATION_ERROR", "message"),
        (b"{}", "VALIDATION_ERROR", "expected a message as text, got bytes"),
        ({"type": "dance"}, "VALIDATION_ERROR", "expected a message of type reset, step, state or close, got 'dance'"),
        ({"type": "reset", "data": {"task_id": "nope"}}, "VALIDATION_ERROR", "unknown task 'nope'"),
        ({"type": "reset", "data": {"seed": "many"}}, "VALIDATION_ERROR", "seed"),
        ({"type": "step", "data": {"tool_name": "add", "arguments": []}}, "VALIDATION_ERROR", "an object of arguments"),
        ('{"type": "step", "data": {"a": ' + "[" * 1000 + "]" * 1000 + "}}", "VALIDATION_ERROR", "nested too deeply"),
    ],
)
async def test_a_message_that_cannot_be_used_is_an_error_and_the_episode_goes_on(
    stage: Stage, message: object, code: str, named: str
) -> None:
    async with talk(stage) as (websocket, _):
        await ask(websocket, call(1))
        refused = await ask(websocket, message)
        after = await ask(websocket, call(2))
    assert refused["type"] == "error"
    assert refused["data"]["code"] == code
    assert named in refused["data"]["message"]
    assert after["data"]["observation"]["result"]["data"] == "count 3"


async def test_a_step_that_the_environment_cannot_answer_is_an_error_without_a_reward(stage: Stage) -> None:
    def fail(query: object) -> None:
        raise RuntimeError("the model is away")

    async with talk(stage) as (websocket, _):
        stage.model.before = fail
        failed = (await ask(websocket, call(1)))["data"]
        stage.model.before = lambda query: None
        again = (await ask(websocket, call(1)))["data"]
    assert failed["observation"]["error"]["error_type"] == "execution_error"
    assert "the model is away" not in json.dumps(failed)
    assert [failed["reward"], failed["done"]] == [None, False]
    assert [again["reward"], again["observation"]["metadata"]["step"]] == [0.0, 1]


async def test_a_websocket_with_a_session_that_was_not_given_out_here_is_refused(stage: Stage) -> None:
    async with stage.serve() as (url, http):
        episode = (await http.post("/envs/counter/episodes", json={})).json()["episode"]
        address = f"{url.replace('http', 'ws', 1)}/envs/counter/openenv/ws?session_id={episode}"
        async with connect(address, proxy=None) as websocket:
            refused = await ask(websocket, call(1))
        state = (await http.get(f"/envs/counter/episodes/{episode}")).json()
    assert "unknown episode" in refused["data"]["message"]
    assert [state["step"], state["stop_reason"]] == [0, None]


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 401), ({"Authorization": "Bearer guessed"}, 401), ({"Origin": "http://evil.example"}, 403)],
)
async def test_a_websocket_passes_the_guard_like_any_request(
    stage: Stage, headers: dict[str, str], status: int
) -> None:
    async with stage.serve(token=TOKEN) as (url, _):
        with pytest.raises(InvalidStatus) as raised:
            await connect(
                url.replace("http", "ws", 1) + "/envs/counter/openenv/ws", additional_headers=headers, proxy=None
            )
    assert raised.value.response.status_code == status


@pytest.mark.parametrize(
    ("body", "code", "named"),
    [
        ({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}, -32601, "MCP is served at"),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add"}}, -32602, "unknown episode"),
        ({"jsonrpc": "2.0", "id": 1}, -32602, "method"),
    ],
)
async def test_a_post_that_cannot_be_served_is_an_error_of_the_protocol(
    stage: Stage, body: dict[str, Any], code: int, named: str
) -> None:
    async with stage.serve() as (_, http):
        answer = (await http.post("/envs/counter/openenv/mcp", json=body)).json()
    assert answer["error"]["code"] == code
    assert named in answer["error"]["message"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_session_that_was_closed_or_forgotten_starts_no_other_episode(stage: Stage, restarts: bool) -> None:
    async def ask_rpc(http: httpx2.AsyncClient, method: str, **params: object) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return (await http.post("/envs/counter/openenv/mcp", json=body)).json()

    add = {"name": "add", "arguments": {"n": 1}}
    async with stage.serve() as (url, http):
        session = (await ask_rpc(http, "openenv/session/create"))["result"]["session_id"]
        address = f"{url.replace('http', 'ws', 1)}/envs/counter/openenv/ws?session_id={session}"
        async with connect(address, proxy=None) as websocket:
            await ask(websocket, {"type": "reset", "data": {"task_id": "counter-2"}})
        first = await ask_rpc(http, "tools/call", session_id=session, **add)
        if not restarts:
            await ask_rpc(http, "openenv/session/close", session_id=session)
            after = await ask_rpc(http, "tools/call", session_id=session, **add)
    if restarts:
        async with stage.serve() as (_, http):
            after = await ask_rpc(http, "tools/call", session_id=session, **add)
    assert first["result"]["data"] == "count 3"
    assert "unknown episode" in after["error"]["message"]


async def test_a_call_returns_its_structured_content(stage: Stage) -> None:
    worlds = RealWorlds(structured_spec, lambda: StructuredCounter(structured_spec))
    async with (
        stage.serve(worlds) as (url, _),
        connect(url.replace("http", "ws", 1) + "/envs/structured/openenv/ws", proxy=None) as websocket,
    ):
        answer = await ask(websocket, call(2))
    result = answer["data"]["observation"]["result"]
    assert [result["data"], result["structured_content"]] == [{"count": 2}, {"count": 2}]
    assert result["content"] == [{"type": "text", "text": "count 2"}]


async def test_the_lines_in_the_documentation_run() -> None:
    if not MCP_1.exists():
        pytest.skip("needs the environment with mcp 1.x: make .venv-mcp1/installed")
    documented = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
    lines = documented.partition("```python\n")[2].partition("```")[0]
    coin = load_real("coin")
    app = build([RealWorlds(coin.spec, coin.create)], MemoryBuffer(TrigramEncoder()), MemoryEpisodeStore())
    async with running(app) as url:
        program = lines.replace("http://127.0.0.1:8000", url)
        process = await asyncio.create_subprocess_exec(
            str(MCP_1),
            "-c",
            program,
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert "0.0 False" in out.decode()
