"""The example agents play many episodes at once, in a process that does not import dreamgym."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
from adder import adds
from dreamgym_integrations.models.chat_server import chat_server
from matrix import MCP_1, ROOT
from server_stage import Stage

from dreamgym.embedding import TrigramEncoder
from dreamgym.replay.memory import MemoryBuffer, MemoryEpisodeStore

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("script", "needs_mcp_1"),
    [("pydantic_ai_agent", False), ("langgraph_state_graph", False), ("langchain_mcp_adapters_agent", True)],
)
async def test_an_example_agent_plays_eight_episodes_at_once(script: str, needs_mcp_1: bool) -> None:
    if needs_mcp_1 and not MCP_1.exists():
        pytest.skip("needs the environment with mcp 1.x: make .venv-mcp1/installed")
    stage = Stage(MemoryBuffer(TrigramEncoder()), MemoryEpisodeStore())
    async with stage.serve() as (_, http), chat_server(adds) as chat_url:
        made = [(await http.post("/envs/counter/episodes", json={"seed": seed})).json() for seed in range(8)]
        process = await asyncio.create_subprocess_exec(
            str(MCP_1) if needs_mcp_1 else sys.executable,
            str(ROOT / "tests" / "agents" / "drive.py"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        episodes = [(f"Add these: {[n, 10 - n]}", one["mcp_url"], chat_url) for n, one in enumerate(made, start=1)]
        order = {"script": str(ROOT / "examples" / f"{script}.py"), "episodes": episodes}
        out, said = await process.communicate(json.dumps(order).encode())
        states = [(await http.get(f"/envs/counter/episodes/{one['episode']}")).json() for one in made]
    assert process.returncode == 0, said.decode()
    assert json.loads(out) == {"answers": ["All added."] * 8, "ours": []}
    assert [[state["step"], state["reward"], state["stop_reason"]] for state in states] == [[2, 1.0, "terminated"]] * 8
