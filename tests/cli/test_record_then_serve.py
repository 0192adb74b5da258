"""From a real MCP server to its simulation by two commands: `dreamgym record`, `dreamgym serve`."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from mcp import Client, StdioServerParameters

from dreamgym.replay.postgres import Store
from dreamgym.types import Source

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

DREAMGYM = str(Path(sys.executable).parent / "dreamgym")
SERVER = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("crm", instructions="Ask by name.")

@server.tool()
def leader(project: str) -> str:
    return {"Apollo": "Ada"}.get(project, "nobody")

server.run()
"""

UNNAMED = (
    "crm: 1 of 1 episodes have no task: add it with `dreamgym label`, or let a model propose one with "
    "`dreamgym seed --model MODEL`"
)
Serving = Callable[[], AbstractAsyncContextManager[tuple[str, list[str]]]]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a real MCP server in it."""
    (tmp_path / "server.py").write_text(SERVER)
    return tmp_path


@pytest.fixture
def environ(place: Path) -> dict[str, str]:
    return {**os.environ, "DREAMGYM_HOME": str(place / "home")}


async def record(place: Path, environ: dict[str, str], run: str, *projects: str) -> list[str]:
    """Let an agent call the real server through `dreamgym record crm`; return the answers."""
    command = ["record", "crm", "--out", "crm", "--run", run, "--", sys.executable, "server.py"]
    started = StdioServerParameters(command=DREAMGYM, args=command, env=environ, cwd=place)
    async with Client(started, mode="legacy") as agent:
        await agent.list_tools()
        return [str((await agent.call_tool("leader", {"project": name})).content) for name in projects]


@pytest.fixture
def serve(place: Path, environ: dict[str, str], dsn: str) -> Serving:
    """Runs `dreamgym serve crm/` as a user does; yields its URL, and the lines on stderr before it served."""

    @asynccontextmanager
    async def serving() -> AsyncIterator[tuple[str, list[str]]]:
        options = ("--model", "nearest", "--port", "0")
        settings = {**environ, "DREAMGYM_DSN": dsn, "DREAMGYM_ENCODER": "trigram"}
        process = await asyncio.create_subprocess_exec(
            *(DREAMGYM, "serve", "crm/", *options), cwd=place, env=settings, stdout=-1, stderr=-1
        )
        assert process.stdout is not None
        assert process.stderr is not None
        url, said = (await process.stdout.readline()).decode().strip(), []
        try:
            while not url and (line := await process.stderr.readline()):
                said.append(line.decode())
            assert url, said
            while b"experience model" not in (line := await process.stderr.readline()):
                said.append(line.decode().strip())
            yield url, said
        finally:
            process.terminate()
            await process.communicate()

    return serving


async def ask(url: str, project: str) -> str:
    async with Client(url) as agent:
        return str((await agent.call_tool("leader", {"project": project})).content)


async def label(place: Path, environ: dict[str, str], *said: str) -> None:
    process = await asyncio.create_subprocess_exec(DREAMGYM, "label", "crm/", "a", *said, cwd=place, env=environ)
    assert await process.wait() == 0


async def test_a_recorded_server_is_simulated_by_two_commands_and_a_label_counts_from_the_next_start(
    place: Path, environ: dict[str, str], serve: Serving, store: Store
) -> None:
    (real,) = await record(place, environ, "a", "Apollo")
    async with serve() as (url, said):
        assert said == [UNNAMED, "crm: 1 of 1 trajectories are new"]
        assert await ask(url, "Apollo") == real
        base = url.removesuffix("/mcp")
        (unnamed,) = await store.buffer.trajectories("crm")
        assert (unnamed.task.instruction, unnamed.final_reward) == ("", None)
        made = httpx2.post(
            f"{base}/episodes", json={"task": {"id": "try", "env": "crm", "instruction": "Try it."}}
        ).json()
        assert await ask(made["mcp_url"], "Apollo") == real
        httpx2.delete(f"{base}/episodes/{made['episode']}").raise_for_status()

    await label(place, environ, "--task", "Who leads Apollo?", "--answer", "Ada", "--success")
    async with serve() as (url, said):
        assert said == [
            "crm: 0 of 1 trajectories are new",
            "replaced, because they have changed since they were stored: crm-a",
        ]
        named = (await store.buffer.tasks("crm"))[-1]
        made = httpx2.post(f"{url.removesuffix('/mcp')}/episodes", json={"task_id": named.id}).json()
        assert made["task"]["instruction"] == "Who leads Apollo?"
        assert await ask(made["mcp_url"], "Apollo") == real
    (labelled,) = await store.buffer.trajectories("crm")
    assert (labelled.id, labelled.task, labelled.final_reward) == ("crm-a", named, 1.0)
    dreams = await store.buffer.trajectories("crm", sources=frozenset({Source.SYNTHETIC}))
    assert [dream.task.instruction for dream in dreams][:2] == ["", "Try it."], "episodes of dreams stay"
