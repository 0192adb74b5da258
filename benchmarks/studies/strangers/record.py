r"""Record public MCP servers under a scripted agent, and play the new sessions on them.

Install the servers once, in separate environments where they need different versions of the SDK:

    python -m venv runs/strangers/servers/sqlite
    runs/strangers/servers/sqlite/bin/pip install mcp-server-sqlite==2025.4.25 'mcp<2'
    python -m venv runs/strangers/servers/python
    runs/strangers/servers/python/bin/pip install mcp-server-git==2026.10.19 mcp-server-time==2026.10.19
    python -m venv runs/strangers/servers/excel
    runs/strangers/servers/excel/bin/pip install excel-mcp-server==2.2.2
    python -m venv runs/strangers/servers/word
    runs/strangers/servers/word/bin/pip install office-word-mcp-server==1.1.11
    npm install --prefix runs/strangers/servers/npm @modelcontextprotocol/server-sequential-thinking@2026.8.31 \
        @kazuph/mcp-taskmanager@1.1.1

Then `python benchmarks/studies/strangers/record.py` makes four environment folders per server under runs/strangers:
NAME (ten recorded episodes), NAME-sessions (the new sessions), and both again on other server processes, because what
differs then depends on the clock or on chance. All episodes pass through `dreamgym record`, so all are redacted alike.
The parts that measuring needs are kept in recordings/NAME beside this file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.request import Request, urlopen

from material import keep
from mcp import Client
from mcp.shared.exceptions import MCPError
from public_server import Plan, Server
from servers import SERVERS

from dreamgym.environment import read_jsonl
from dreamgym.types import ToolCall, Trajectory

HERE = Path(__file__).resolve().parent
DREAMGYM = str(Path(sys.executable).with_name("dreamgym"))


def recorded(server: Server, folder: Path, plans: Sequence[Plan], installed: Path) -> None:
    """Play plans through `dreamgym record`; a folder that already has them all is kept."""
    file = folder / "trajectories.jsonl"
    if file.exists() and len(read_jsonl(file, Trajectory)) == len(plans):
        return
    shutil.rmtree(folder, ignore_errors=True)
    command = [DREAMGYM, "record", server.name, "--out", str(folder), "--port", "0", "--"]
    command += [sys.executable, str(HERE / "fresh.py"), server.name, str(installed)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip().removesuffix("/mcp")
        if not url:
            sys.exit(f"dreamgym record ended with exit code {process.wait()}; see above")
        for plan in plans:
            _post(f"{url}/record/{plan.id}", {"task": plan.instruction, "task_id": plan.id})
            answer = plan.answer(asyncio.run(_played(f"{url}/record/{plan.id}/mcp", plan.calls)))
            if plan.right not in ("", answer):
                print(f"{server.name}/{plan.id}: expected {plan.right!r}, got {answer!r}", file=sys.stderr)
            done = {"answer": answer, "success": answer == plan.right} if plan.right else {}
            _post(f"{url}/record/{plan.id}/finish", done)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)


async def _played(url: str, calls: Sequence[ToolCall]) -> list[str]:
    """Make the calls; return the texts that the tools answered."""
    said = []
    async with Client(url) as client:
        await client.list_tools()
        for call in calls:
            try:
                result = await client.call_tool(call.name, call.arguments)
            except MCPError as error:
                said.append(str(error))
            else:
                said += [block.text for block in result.content if block.type == "text"]
    return said


def _post(url: str, body: dict[str, object]) -> None:
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=120):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    out = Path("runs") / "strangers"
    parser.add_argument("--servers", default=",".join(SERVERS), help=f"default: {','.join(SERVERS)}")
    parser.add_argument("--installed", type=Path, default=out / "servers", help=f"default: {out / 'servers'}")
    parser.add_argument("--out", type=Path, default=out, help=f"default: {out}")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.servers.split(","):
        server = SERVERS[name]
        recorded(server, given.out / name, server.plans, given.installed)
        sessions = [
            Plan(one.id, f"A new session: {re.sub('-', ' ', one.id)}.", one.calls, "", "") for one in server.sessions
        ]
        recorded(server, given.out / f"{name}-sessions", sessions, given.installed)
        recorded(server, given.out / f"{name}-again", sessions, given.installed)
        recorded(server, given.out / f"{name}-plans-again", server.plans, given.installed)
        keep(server, given.out)


if __name__ == "__main__":
    main()
