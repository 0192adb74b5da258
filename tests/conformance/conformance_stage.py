"""A server of the conformance environment, and the Node programs that test it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from dreamgym_server.app import build
from dreamgym_server.running import running
from dreamgym_server.sources import RealWorlds
from everything import Everything, everything_spec

from dreamgym.embedding import TrigramEncoder
from dreamgym.replay.memory import MemoryBuffer, MemoryEpisodeStore

ROOT = Path(__file__).parents[2]
NODE = ROOT / ".venv" / "bin" / "node"
MODULES = ROOT / "tests" / "node" / "node_modules"


@dataclass
class Urls:
    """MCP URLs of the environment and of one episode."""

    bare: str
    episode: str


@asynccontextmanager
async def serving() -> AsyncIterator[Urls]:
    """Run a server without a database and create an episode. Yields their URLs."""
    spec = everything_spec()
    app = build([RealWorlds(spec, lambda: Everything(spec))], MemoryBuffer(TrigramEncoder()), MemoryEpisodeStore())
    async with running(app) as url, httpx2.AsyncClient() as http:
        made = (await http.post(f"{url}/envs/everything/episodes", json={})).json()
        yield Urls(f"{url}/envs/everything/mcp", made["mcp_url"])


async def run_node(script: str, *arguments: str) -> tuple[int | None, str]:
    """Run a script of tests/node. Returns its exit status and its output."""
    if not (NODE.exists() and (MODULES / script).exists()):
        pytest.skip("needs Node and the packages of tests/node: make tests/node/node_modules/installed")
    process = await asyncio.create_subprocess_exec(
        str(NODE),
        str(MODULES / script),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    return process.returncode, out.decode()
