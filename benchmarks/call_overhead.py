"""Measure the CPU time per tool call, compared with the plain low-level server of the MCP SDK.

Three servers, each a process of its own, answer the same calls of the same clients in turn, round by round: the SDK's
low-level server with a tool that does nothing (stateless, plain JSON), ours with an immediate model, no retrieval and
episodes in memory, and ours with episodes in PostgreSQL. CPU is that of the server process alone, in its best round.
Episodes are created beforehand and none ends, so that nothing is archived; what was stored is deleted afterwards. All
three collect garbage as `dreamgym-serve` does. Ours / SDK must stay under 1.5.

    python benchmarks/call_overhead.py --calls 1280 --rounds 5
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import urlsplit

import mcp_types as types
from dreamgym_server.app import build
from dreamgym_server.running import collect_rarely, running
from dreamgym_server.sources import DreamWorlds
from mcp.server.lowlevel import Server

from dreamgym.dream.model import Prediction, Query
from dreamgym.embedding import TrigramEncoder, load_encoder
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import UnknownName
from dreamgym.replay.memory import MemoryBuffer, MemoryEpisodeStore
from dreamgym.replay.postgres import Store, open_store
from dreamgym.replay.postgres.forget import forget
from dreamgym.types import JsonObject, Provenance, Task, Tier

SESSIONS = (1, 8, 64)
STEPS = 40
"""Calls per episode."""
ENV = os.environ.setdefault("DREAMGYM_BENCH_ENV", f"bench-{uuid.uuid4().hex[:8]}")
"""Name of the environment, which the processes of the servers inherit. It is deleted, so nothing else has this name."""
ENCODER = "DREAMGYM_BENCH_ENCODER"
ANSWER = "You are in a room of the house. Doors lead north, south, east and west."
SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"direction": {"type": "string"}},
    "required": ["direction"],
    "additionalProperties": False,
}
TOOL: JsonObject = {"name": "go", "description": "Go somewhere.", "inputSchema": SCHEMA}
ERAS = {"handshake": "2025-11-25", "modern": "2026-07-28"}
SERVERS = ("sdk", "ours", "ours, PostgreSQL")


class ImmediateModel:
    """Gives a constant answer at once, and needs no demonstrations."""

    name = "immediate"
    demonstrations = 0
    learns_from_dreams = False

    async def predict(self, query: Query) -> Prediction:
        """Return at once, so that the time of a step is the time of our code."""
        return Prediction(
            observation=ANSWER, next_state=ANSWER, provenance=Provenance(tier=Tier.MODEL, model=self.name)
        )

    async def close(self) -> None:
        """Nothing to release."""


@dataclass(frozen=True)
class Row:
    """One line of the table: the best round."""

    server: str
    era: str
    sessions: int
    calls: int
    calls_per_s: float
    cpu_us: float
    """CPU time of the server per call."""
    ratio: float
    """CPU time relative to the SDK's server in the same era with as many sessions."""


def spec() -> EnvironmentSpec:
    """An environment with one tool and episodes that do not end."""
    task = Task(id="walk", env=ENV, instruction="Walk.", initial_state=ANSWER)
    return EnvironmentSpec.model_validate(
        {"name": ENV, "tools_list": {"tools": [TOOL]}, "max_steps": STEPS + 1, "tasks": [task]}
    )


def plain() -> Any:
    """The SDK's own server, written as in its documentation."""

    async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool.model_validate(TOOL)])

    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(type="text", text=ANSWER)])

    server: Server[Any] = Server(
        ENV,
        get_tool_input_schema=lambda name: SCHEMA,  # else each call lists the tools first
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    return server.streamable_http_app(json_response=True, stateless_http=True)


async def forgotten(store: Store) -> None:
    """Delete what was stored."""
    with suppress(UnknownName):  # nothing was stored yet
        await forget(store.database, ENV)


def serve(kind: str, dsn: str | None, profile: str | None, pipe: Connection) -> None:
    """Run a server: send its URL, then its CPU seconds for each True that comes, until False comes."""

    async def until_told() -> None:
        async with AsyncExitStack() as stack:
            if kind == "sdk":
                app = plain()
            else:
                buffer: Any = MemoryBuffer(TrigramEncoder())
                episodes: Any = MemoryEpisodeStore()
                if kind != "ours":
                    store = await open_store(dsn, load_encoder(os.environ.get(ENCODER, "minilm")))
                    stack.push_async_callback(store.close)
                    stack.push_async_callback(forgotten, store)
                    buffer, episodes = store.buffer, store.episodes
                app = build([DreamWorlds(spec(), ImmediateModel(), buffer)], buffer, episodes)
            collect_rarely()
            pipe.send(await stack.enter_async_context(running(app)))
            while await asyncio.to_thread(pipe.recv):
                pipe.send(time.process_time())

    if profile is None:
        asyncio.run(until_told())
        return
    import cProfile

    profiler = cProfile.Profile()
    profiler.runcall(asyncio.run, until_told())
    profiler.dump_stats(profile)


@asynccontextmanager
async def process(kind: str, dsn: str | None, profile: str | None) -> AsyncIterator[tuple[str, Callable[[], float]]]:
    """A server in a process of its own, and a way to ask for the CPU seconds it has used."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=serve, args=(kind, dsn, profile, there))
    child.start()
    there.close()  # so that a server that does not start raises EOFError here, instead of an endless wait

    def cpu() -> float:
        here.send(True)
        seconds: float = here.recv()
        return seconds

    try:
        yield await asyncio.to_thread(here.recv), cpu
    finally:
        here.send(False)
        await asyncio.to_thread(child.join, 30)


class Client:
    """A kept connection that sends given bytes and reads the answer, with as little work as possible."""

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).netloc

    async def open(self) -> None:
        """Connect."""
        host, port = self._host.split(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))

    async def post(self, path: str, body: bytes, headers: str = "") -> bytes:
        """Send one request; return the body of the answer."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
            f"Accept: application/json, text/event-stream\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        answered = await self._reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in answered.lower().split(b"\r\n") if line.startswith(b"content-length:")
        )
        return await self._reader.readexactly(length)

    def close(self) -> None:
        """Disconnect."""
        self._writer.close()


def call(era: str, number: int) -> tuple[bytes, str]:
    """Body and headers of a tools/call in this era of the protocol."""
    direction = ("north", "east", "south", "west")[number % 4]
    params: JsonObject = {"name": "go", "arguments": {"direction": direction}}
    headers = f"MCP-Protocol-Version: {ERAS[era]}\r\n"
    if era == "modern":
        params["_meta"] = {
            "io.modelcontextprotocol/protocolVersion": ERAS[era],
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        headers += "Mcp-Method: tools/call\r\nMcp-Name: go\r\n"
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode(), headers


async def episodes_of(url: str, count: int) -> list[str]:
    """Create episodes; return their paths."""
    client = Client(url)
    await client.open()
    paths = []
    for _ in range(count):
        made = json.loads(await client.post(f"/envs/{ENV}/episodes", b"{}"))
        paths.append(urlsplit(made["mcp_url"]).path)
    client.close()
    return paths


async def played(url: str, kind: str, era: str, sessions: int, calls: int) -> Callable[[], Awaitable[int]]:
    """Prepare `calls` calls over `sessions` connections; return a function that makes them and counts them."""
    each = max(STEPS, calls // sessions // STEPS * STEPS)
    clients = [Client(url) for _ in range(sessions)]
    await asyncio.gather(*(client.open() for client in clients))
    paths = ["/mcp"] * (sessions * each // STEPS)
    if kind != "sdk":
        paths = await episodes_of(url, len(paths))
    requests = [call(era, number) for number in range(STEPS)]

    async def play(client: Client, number: int) -> None:
        for path in paths[number :: len(clients)]:
            for body, headers in requests:
                answer = await client.post(path, body, headers)
                if ANSWER.encode() not in answer or b'"error"' in answer:
                    raise RuntimeError(f"{kind}: {answer!r}")
        client.close()

    async def go() -> int:
        await asyncio.gather(*(play(client, number) for number, client in enumerate(clients)))
        return sessions * each

    return go


async def measure(calls: int, rounds: int, kinds: list[str], dsn: str | None, profile: str | None) -> list[Row]:
    """Measure all rows. The servers take turns, so that other load on the machine affects all of them."""
    best: dict[tuple[str, str, int], tuple[float, float, int]] = {}
    async with AsyncExitStack() as stack:
        servers = {}
        for kind in kinds:
            into = f"{profile}.{kind}" if profile else None
            servers[kind] = await stack.enter_async_context(process(kind, dsn, into))
        for number in range(rounds + 1):  # the first one warms up
            for era in ERAS:
                for sessions in SESSIONS:
                    for kind, (url, cpu) in servers.items():
                        go = await played(url, kind, era, sessions, calls)
                        before, began = cpu(), time.perf_counter()
                        made = await go()
                        wall, used = time.perf_counter() - began, cpu() - before
                        known = best.get((kind, era, sessions), (0.0, float("inf"), 0))
                        if number:
                            best[kind, era, sessions] = max(known[0], made / wall), min(known[1], used / made), made
    return [
        Row(kind, era, sessions, made, rate, 1e6 * cpu, cpu / best.get((kinds[0], era, sessions), (0, cpu))[1])
        for (kind, era, sessions), (rate, cpu, made) in sorted(best.items(), key=lambda one: (one[0][1:], one[0][0]))
    ]


def table(rows: list[Row]) -> str:
    """The rows as a text table."""
    header = f"{'server':<18} {'era':<10} sessions  calls  calls/s  CPU us/call  ratio"
    ordered = sorted(rows, key=lambda row: (row.era, row.sessions, SERVERS.index(row.server)))
    lines = (
        f"{one.server:<18} {one.era:<10} {one.sessions:>8} {one.calls:>6} {one.calls_per_s:>8.0f}"
        f" {one.cpu_us:>12.0f} {one.ratio:>6.2f}"
        for one in ordered
    )
    return "\n".join([header, *lines])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--calls", type=int, default=1280, help=f"calls per measurement, over all sessions; at least {STEPS} a session"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dsn", default=os.environ.get("DREAMGYM_DSN"), help="default: the embedded PostgreSQL")
    parser.add_argument("--encoder", default="minilm", help="encoder that filled the database; nothing is encoded here")
    parser.add_argument(
        "--no-postgres", action="store_true", help="leave out our server with PostgreSQL, which is for information only"
    )
    parser.add_argument("--profile", help="write cProfile statistics of each server to this path")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ[ENCODER] = options.encoder
    kinds = list(SERVERS[: 2 if options.no_postgres else 3])
    rows = asyncio.run(measure(options.calls, options.rounds, kinds, options.dsn, options.profile))
    if options.json:
        print(json.dumps({"machine": platform.platform(), "cores": os.cpu_count(), "rows": [asdict(r) for r in rows]}))
    else:
        print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
        print(table(rows))


if __name__ == "__main__":
    main()
