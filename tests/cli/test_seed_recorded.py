"""From a real server to its simulation by the commands that a user types."""

import asyncio
import os
import sys
from pathlib import Path

import httpx2
import pytest
from dreamgym_client.connection import without_token
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from dreamgym.environment import load_spec
from dreamgym.runs.opening import Against
from dreamgym.runs.server_process import server
from dreamgym.types import JsonObject

pytestmark = pytest.mark.anyio

BIN = Path(sys.executable).parent
DREAMGYM = str(BIN / "dreamgym")
MEMORY = Path(__file__).parents[1] / "node" / "node_modules" / ".bin" / "mcp-server-memory"
ADA: JsonObject = {"name": "Ada", "entityType": "person", "observations": ["leads Apollo"]}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    if not MEMORY.exists():
        pytest.skip(f"{MEMORY.name} is not installed: make test installs it")
    return {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "MEMORY_FILE_PATH": str(tmp_path / "memory.json"),
        "DREAMGYM_HOME": str(tmp_path / "home"),
    }


async def dreamgym(environ: dict[str, str], place: Path, *arguments: str) -> str:
    """Run a command to its end; return its stderr."""
    process = await asyncio.create_subprocess_exec(DREAMGYM, *arguments, cwd=place, env=environ, stdout=-1, stderr=-1)
    _, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return err.decode()


@pytest.mark.slow
@pytest.mark.long  # test_record_then_serve covers nearly the same
async def test_a_real_server_is_recorded_labelled_seeded_and_answered_for(
    environ: dict[str, str], tmp_path: Path, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ["DREAMGYM_DSN"] = dsn
    record = ["record", "crm", "--out", str(tmp_path / "crm"), "--run", "r", "--", str(MEMORY)]
    async with Client(StdioServerParameters(command=DREAMGYM, args=record, env=environ), mode="legacy") as agent:
        tools = [tool.model_dump() for tool in (await agent.list_tools()).tools]
        made = await agent.call_tool("create_entities", {"entities": [ADA]})
        found = await agent.call_tool("search_nodes", {"query": "Apollo"})
    label = ("label", "crm", "last", "--task", "Who leads Apollo?", "--answer", "Ada", "--success")
    await dreamgym(environ, tmp_path, *label)
    assert "crm: 1 of 1 trajectories are new" in await dreamgym(environ, tmp_path, "seed", "crm", "crm/")

    monkeypatch.chdir(tmp_path)
    spec = load_spec("crm")
    assert [task.instruction for task in spec.tasks] == ["Who leads Apollo?"]
    graph = Path(environ["MEMORY_FILE_PATH"])
    graph.unlink()
    with server("crm", Against.DREAM, model="nearest", dsn=dsn) as url:
        address, token = without_token(url, None)
        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http,
            Client(streamable_http_client(f"{address}/envs/crm/mcp", http_client=http)) as agent,
        ):
            assert [tool.model_dump() for tool in (await agent.list_tools()).tools] == tools
            dreamed = await agent.call_tool("create_entities", {"entities": [ADA]})
            assert (dreamed.content, dreamed.structured_content) == (made.content, made.structured_content)
            dreamed = await agent.call_tool("search_nodes", {"query": "Apollo"})
            assert (dreamed.content, dreamed.structured_content) == (found.content, found.structured_content)
            refused = await agent.call_tool("search_nodes", {"query": 3})
            assert refused.is_error
    assert not graph.exists(), "the real server was not asked"
