"""Measure the time and CPU that the recorder adds to a tool call; direct and recorded calls alternate in one run.

The client writes and reads raw JSON, so that only the server and the recorder are measured. Each pair is measured in
alternating rounds; the median of the rounds' medians is shown. `network` is the same no-op server with a tool that
takes --tool-ms, as a call over a network does.

    python benchmarks/recorder_overhead.py --calls 200
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp

HERE = Path(__file__).resolve()
NODE_SERVERS = HERE.parents[1] / "tests" / "node" / "node_modules" / ".bin"
HANDSHAKE = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "0"}}
ENVIRON = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Case:
    """A server, the transports to it, and a call."""

    server: str
    pair: str
    """Transports of the recorder: `front/upstream`, from the client and to the server."""
    command: tuple[str, ...]
    tool: str
    arguments: str


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    server: str
    pair: str
    direct_ms: float
    recorded_ms: float
    added_ms: float
    added_percent: float
    recorder_cpu_ms: float
    """CPU of the recorder alone, per call, including the redaction and writing done during the calls."""
    direct_cpu_ms: float
    """CPU of the server itself, per call."""


def message(method: str, params: str, request_id: int | None) -> bytes:
    """A JSON-RPC message."""
    number = "" if request_id is None else f'"id":{request_id},'
    return f'{{"jsonrpc":"2.0",{number}"method":"{method}","params":{params}}}'.encode()


class StdioClient:
    """An MCP client over stdio that writes and reads single lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process, self._id = process, 0

    async def ask(self, method: str, params: str) -> bytes:
        """Send a request; return the line of the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._id += 1
        self.process.stdin.write(message(method, params, self._id) + b"\n")
        while True:
            line = await self.process.stdout.readline()
            if b'"method":' not in line.partition(b'"result"')[0]:
                return line

    async def shake_hands(self) -> None:
        """Do both steps of the handshake."""
        await self.ask("initialize", json.dumps(HANDSHAKE))
        assert self.process.stdin is not None
        self.process.stdin.write(message("notifications/initialized", "{}", None) + b"\n")


class HttpClient:
    """An MCP client over HTTP that posts a message and reads the whole response."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http, self._url, self._id = http, url, 0
        self._headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}

    async def ask(self, method: str, params: str) -> bytes:
        """Send a request; return the body of the response."""
        self._id += 1
        async with self._http.post(self._url, data=message(method, params, self._id), headers=self._headers) as answer:
            self._headers |= {name: value for name, value in answer.headers.items() if name == "mcp-session-id"}
            return await answer.read()

    async def shake_hands(self) -> None:
        """Do both steps of the handshake."""
        await self.ask("initialize", json.dumps(HANDSHAKE))
        await self._http.post(self._url, data=message("notifications/initialized", "{}", None), headers=self._headers)


Client = StdioClient | HttpClient


@asynccontextmanager
async def process(command: Sequence[str], *, speaks: bool, stderr: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that ends with the block."""
    started = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE if speaks else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        env=ENVIRON,
        limit=2**26,
    )
    try:
        yield started
    finally:
        if speaks:
            assert started.stdin is not None
            started.stdin.close()
        else:
            started.terminate()
        await started.wait()


def recorder(case: Case, out: Path, *upstream: str) -> list[str]:
    """The command line of a recorder."""
    front = ["--port", "0"] if case.pair.startswith("http") else []
    return [str(Path(sys.executable).parent / "dreamgym"), "record", "bench", "--out", str(out), *front, *upstream]


@asynccontextmanager
async def direct_and_recorded(case: Case, out: Path) -> AsyncIterator[tuple[Client, Client, int, int]]:
    """Clients of the server itself and of a recorder in front of it, and the process ids of server and recorder."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)))
        log = (out / "stderr").open("wb")
        stack.callback(log.close)

        async def start(command: Sequence[str], *, speaks: bool) -> asyncio.subprocess.Process:
            return await stack.enter_async_context(process(command, speaks=speaks, stderr=log.fileno()))

        async def url_of(started: asyncio.subprocess.Process) -> str:
            assert started.stdout is not None
            return (await started.stdout.readline()).decode().strip()

        direct: Client
        recorded: Client
        if case.pair == "http/http":
            server = await start(case.command, speaks=False)
            url = await url_of(server)
            direct = HttpClient(http, url)
            between = await start(recorder(case, out, "--upstream", url), speaks=False)
            recorded = HttpClient(http, await url_of(between))
        else:
            server = await start(case.command, speaks=True)
            direct = StdioClient(server)
            over_stdio = case.pair == "stdio/stdio"
            between = await start(recorder(case, out, "--", *case.command), speaks=over_stdio)
            recorded = StdioClient(between) if over_stdio else HttpClient(http, await url_of(between))
        for client in (direct, recorded):
            await client.shake_hands()
            await client.ask("tools/list", "{}")
        yield direct, recorded, server.pid, between.pid


def cpu_s(pid: int, *, with_children: bool) -> float:
    """CPU seconds that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    if with_children:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        used += sum(cpu_s(int(child), with_children=True) for child in children)
    return used


async def measure(case: Case, calls: int, rounds: int) -> Row:
    """Measure one row."""
    each = max(1, calls // rounds)
    params = f'{{"name":"{case.tool}","arguments":{case.arguments}}}'
    out = Path(tempfile.mkdtemp(prefix="dreamgym-bench-"))
    medians: dict[str, list[float]] = {"direct": [], "recorded": []}
    used = {"direct": 0.0, "recorded": 0.0}
    try:
        async with direct_and_recorded(case, out) as (direct, recorded, server, between):
            for _ in range(rounds + 1):
                for name, client, pid in (("direct", direct, server), ("recorded", recorded, between)):
                    of_server = name == "direct"
                    before, waits = cpu_s(pid, with_children=of_server), []
                    for _ in range(each):
                        began = time.perf_counter()
                        answer = await client.ask("tools/call", params)
                        waits.append(time.perf_counter() - began)
                        if b'"content"' not in answer:
                            raise SystemExit(f"{case.server} {case.pair}: expected a tool result, got {answer[:300]!r}")
                    medians[name].append(statistics.median(waits))
                    used[name] += cpu_s(pid, with_children=of_server) - before
    finally:
        shutil.rmtree(out)
    direct_ms, recorded_ms = (1000 * statistics.median(medians[name][1:]) for name in ("direct", "recorded"))
    count = (rounds + 1) * each
    return Row(
        case.server,
        case.pair,
        direct_ms,
        recorded_ms,
        recorded_ms - direct_ms,
        100 * (recorded_ms - direct_ms) / direct_ms,
        1000 * used["recorded"] / count,
        1000 * used["direct"] / count,
    )


def cases(tool_ms: float) -> list[Case]:
    """The cases that can be measured on this machine."""
    me = (sys.executable, str(HERE), "--serve")
    found = [
        Case(name, pair, (*me, pair.rpartition("/")[2], str(ms)), "nothing", "{}")
        for name, ms in (("no-op", 0.0), (f"network, {tool_ms:g} ms", tool_ms))
        for pair in ("stdio/stdio", "http/http", "http/stdio")
    ]
    for name, command, tool, arguments in (
        ("everything", ("mcp-server-everything", "stdio"), "echo", '{"message":"hello"}'),
        ("memory", ("mcp-server-memory",), "read_graph", "{}"),
    ):
        if (NODE_SERVERS / command[0]).exists():
            path = (str(NODE_SERVERS / command[0]), *command[1:])
            found += [Case(name, pair, path, tool, arguments) for pair in ("stdio/stdio", "http/stdio")]
    return found


def serve(transport: str, tool_ms: float) -> None:
    """Run the no-op server, written with the SDK's low-level API."""
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server
    from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

    async def list_tools(context: object, params: object) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="nothing", input_schema={"type": "object"})])

    async def call_tool(context: object, params: object) -> CallToolResult:
        if tool_ms:
            await asyncio.sleep(tool_ms / 1000)
        return CallToolResult(content=[TextContent(type="text", text="done")])

    server: Server[object] = Server("no-op", on_list_tools=list_tools, on_call_tool=call_tool)

    async def over_stdio() -> None:
        async with stdio_server() as (said, answers):
            await server.run(said, answers, server.create_initialization_options())

    async def over_http() -> None:
        from dreamgym_server.running import running

        async with running(server.streamable_http_app(json_response=True)) as url:
            print(f"{url}/mcp", flush=True)
            await asyncio.Event().wait()

    asyncio.run(over_stdio() if transport == "stdio" else over_http())


def table(rows: list[Row]) -> str:
    """The rows as a text table."""
    lines = [
        "server           front/upstream  direct ms  recorded ms  added ms  added %  recorder CPU ms  server CPU ms"
    ]
    lines += [
        f"{row.server:<16} {row.pair:<14} {row.direct_ms:>10.2f} {row.recorded_ms:>12.2f} {row.added_ms:>9.2f}"
        f" {row.added_percent:>8.1f} {row.recorder_cpu_ms:>16.2f} {row.direct_cpu_ms:>14.2f}"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--calls", type=int, default=200, help="calls per measurement, over all rounds; at least one a round"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tool-ms", type=float, default=50, help="milliseconds that a call over a network takes")
    parser.add_argument("--only", default="", help="only cases whose server and front/upstream contain this")
    parser.add_argument("--serve", nargs=2, metavar=("TRANSPORT", "MS"), help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.serve:
        serve(options.serve[0], float(options.serve[1]))
        return
    chosen = [case for case in cases(options.tool_ms) if options.only in f"{case.server} {case.pair}"]
    rows = [asyncio.run(measure(case, options.calls, options.rounds)) for case in chosen]
    if options.json:
        print(json.dumps({"machine": platform.platform(), "cores": os.cpu_count(), "rows": [asdict(r) for r in rows]}))
    else:
        print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
        print(table(rows))


if __name__ == "__main__":
    main()
