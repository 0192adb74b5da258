"""Measure the cost of a step through the server against the same step in process, with a model that costs nothing.

The step is `DreamEnvironment.step`, with retrieval from the same buffer and the same immediate model. The same
statement stores its transition in the same database before the answer is used. Through the server the step is one
`tools/call` of three clients: prepared bytes on a kept connection, RemoteEnvironment, and the official SDK's `Client`.
Three more ways are shown: a step in process that is not stored; a step of a LocalEnvironment, which plays the
server's sessions in this process without HTTP and protocol; and a step behind the same HTTP server with neither MCP nor
our server code in between, which is the least that a call through this HTTP server costs.

All ways take turns, round by round. The clock runs while steps are taken, not while episodes begin and end. How fast a
process runs depends by a tenth on where its objects happen to lie in memory, so the rounds are played by several pairs
of processes, and the figures are medians over these of the medians of their rounds. The ratios that have an aim are
given with a 95 % interval for the median of all pairs. The server is a separate process, set up like `dreamgym-serve`.
CPU is the time that the processes used, so other work on the machine affects it less than the waits. The CPU of
PostgreSQL is read from /proc, so the database must be on this machine and serve nobody else meanwhile. What was stored
is deleted afterwards. call_overhead.py compares a call with the plain server of the MCP SDK.

    python benchmarks/server_overhead.py --pairs 7 --rounds 3
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import multiprocessing
import os
import statistics
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, fields
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
from dreamgym_client.control import ControlClient
from dreamgym_client.environment import ENVELOPE, PROTOCOL_VERSION, RemoteEnvironment
from dreamgym_server.app import build
from dreamgym_server.limits import Limits
from dreamgym_server.local import LocalEnvironment
from dreamgym_server.running import collect_rarely, running
from dreamgym_server.sessions import Episodes
from dreamgym_server.sources import DreamWorlds
from mcp import Client
from starlette.types import ASGIApp, Receive, Scope, Send

from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.model import Prediction, Query
from dreamgym.embedding import TrigramEncoder, load_encoder
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import UnknownName
from dreamgym.replay.episode_store import Episode
from dreamgym.replay.postgres import Store, open_store
from dreamgym.replay.postgres.forget import forget
from dreamgym.types import Provenance, Source, StepResult, StopReason, Task, Tier, ToolCall, Trajectory, Transition

CONCURRENT = (1, 8, 64)
STEPS = 16
"""Steps of each episode while the clock runs."""
ROOMS = 40
WORLDS = 100
WORLD_STEPS = 20
SAME = "in process"
LOCAL = "in process, LocalEnvironment"
WAYS = (
    "in process, not stored",
    SAME,
    LOCAL,
    "HTTP alone, bytes",
    "server, bytes",
    "server, RemoteEnvironment",
    "server, SDK client",
)

Step = Callable[[ToolCall], Awaitable[object]]
Key = tuple[str, int]
"""A way, and how many episodes are played at once."""


class ImmediateModel:
    """Copies the next state of the best demonstration; without one, repeats the state."""

    name = "immediate"
    demonstrations = 5
    learns_from_dreams = False

    async def predict(self, query: Query) -> Prediction:
        """Return at once, so that the time of a step is the time of our code."""
        best = query.demonstrations[0].transition if query.demonstrations else None
        state = best.next_state if best else query.state.text
        return Prediction(
            observation=state,
            next_state=state,
            provenance=Provenance(
                tier=Tier.MODEL, model=self.name, retrieved=tuple(shown.id for shown in query.demonstrations)
            ),
        )

    async def close(self) -> None:
        """Nothing to release."""


@dataclass(frozen=True)
class Cost:
    """Cost of the steps of one round, per step."""

    median_ms: float
    """Time that the caller of a step waits."""
    p95_ms: float
    wall_ms: float
    client_ms: float
    """CPU of the process that takes the steps; for steps in process, of all Python code."""
    server_ms: float
    database_ms: float

    @property
    def cpu_ms(self) -> float:
        """CPU of all processes."""
        return self.client_ms + self.server_ms + self.database_ms


class Try(NamedTuple):
    """What it took to play some episodes at once."""

    waits_ms: list[float]
    """Time that the caller of each step waited."""
    wall_s: float
    cpu_s: tuple[float, ...]
    """CPU of the client, the server and PostgreSQL."""


def house(env: str) -> EnvironmentSpec:
    """A house of many rooms to walk through."""
    schema = {"type": "object", "properties": {"direction": {"type": "string"}}, "required": ["direction"]}
    return EnvironmentSpec.model_validate(
        {
            "name": env,
            "tools_list": {"tools": [{"name": "go", "inputSchema": schema}]},
            "max_steps": 1_000_000,
            "deterministic": True,
        }
    )


def room(number: int) -> str:
    """The observation in a room."""
    things = " ".join(f"You see a {color} box." for color in ("red", "green", "blue")[: 1 + number % 3])
    return f"You are in room {number % ROOMS} of the house. {things} Doors lead north, south, east and west."


def moves(step: int) -> ToolCall:
    """The action of a walk at a step."""
    return ToolCall(name="go", arguments={"direction": ("north", "east", "south", "west")[step % 4]})


def recorded(spec: EnvironmentSpec) -> list[Trajectory]:
    """Recorded walks through the house."""
    walks = []
    for world in range(WORLDS):
        task = Task(id=f"{spec.name}-{world}", env=spec.name, instruction="Walk.", initial_state=room(world))
        transitions = tuple(
            Transition(
                state=room(world + step),
                action=moves(step),
                result=StepResult(observation=room(world + step + 1)),
                next_state=room(world + step + 1),
                provenance=Provenance(tier=Tier.REAL),
            )
            for step in range(WORLD_STEPS)
        )
        walks.append(
            Trajectory(
                id=uuid.uuid4().hex,
                task=task,
                transitions=transitions,
                source=Source.REAL,
                stop_reason=StopReason.CLOSED,
                world=task.id,
            )
        )
    return walks


def first_task(spec: EnvironmentSpec) -> Task:
    """The task that all episodes play."""
    return Task(id=f"{spec.name}-0", env=spec.name, instruction="Walk.", initial_state=room(0))


async def in_process(spec: EnvironmentSpec, store: Store, *, stored: bool) -> Step:
    """Begin an episode in this process; return its step function, which stores the transition if `stored`."""
    task, name = first_task(spec), uuid.uuid4().hex
    watermark = await store.buffer.watermark(spec.name)
    dream = DreamEnvironment(spec, ImmediateModel(), store.buffer, episode_id=name, as_of=watermark)
    first = await dream.reset(task, seed=0)
    expires_at = store.episodes.now() + timedelta(hours=1)
    episode = Episode(
        id=name, env=spec.name, task=task, seed=0, max_steps=spec.max_steps, initial=first, expires_at=expires_at
    )
    await store.episodes.create(episode)

    async def step(action: ToolCall) -> None:
        await dream.step(action)
        if stored:
            await store.episodes.append(name, dream.transitions[-1], version=len(dream.transitions) - 1)

    return step


class HttpAlone:
    """Serve episodes of `in_process` below `/bare/`: GET begins one, POST is a step, DELETE forgets it.

    The app serves the rest.
    """

    def __init__(self, app: ASGIApp, spec: EnvironmentSpec, store: Store) -> None:
        self._app = app
        self._spec = spec
        self._store = store
        self._steps: dict[str, Step] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with about as many bytes as a tool result has."""
        if scope["type"] != "http" or not scope["path"].startswith("/bare/"):
            await self._app(scope, receive, send)
            return
        body = (await receive())["body"]
        if scope["method"] == "GET":
            self._steps[scope["path"]] = await in_process(self._spec, self._store, stored=True)
        elif scope["method"] == "DELETE":
            del self._steps[scope["path"]]
        else:
            params = json.loads(body)["params"]
            await self._steps[scope["path"]](ToolCall(name=params["name"], arguments=params["arguments"]))
        said = json.dumps({"result": {"content": [{"type": "text", "text": room(0)}], "isError": False}}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(said)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": said})


@dataclass(frozen=True)
class Setting:
    """What all ways of taking a step need."""

    spec: EnvironmentSpec
    store: Store
    episodes: Episodes
    """The episodes of LocalEnvironments."""
    url: str
    control: ControlClient
    http: httpx.AsyncClient


async def begun_alone(setting: Setting, stack: AsyncExitStack) -> str:
    """Begin an episode of HttpAlone, which the stack forgets; return its URL."""
    address = f"{setting.url}/bare/{uuid.uuid4().hex}"
    (await setting.http.get(address)).raise_for_status()
    stack.push_async_callback(setting.http.delete, address)
    return address


async def begun_on_server(setting: Setting, stack: AsyncExitStack) -> str:
    """Begin an episode on the server, which the stack deletes; return its MCP URL."""
    started = await setting.control.create(setting.spec.name, task=first_task(setting.spec))
    stack.push_async_callback(setting.control.delete, setting.spec.name, started.episode)
    return started.mcp_url


async def sent_as_bytes(url: str, stack: AsyncExitStack) -> Step:
    """The step function of the episode at this URL, which sends bytes with as little work as possible."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    stack.callback(writer.close)
    head = (
        f"POST {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        f"Accept: application/json, text/event-stream\r\nMcp-Protocol-Version: {PROTOCOL_VERSION}\r\n"
        "Mcp-Method: tools/call\r\nMcp-Name: go\r\n"
    )

    def request(action: ToolCall) -> bytes:
        params = {"name": action.name, "arguments": action.arguments, "_meta": ENVELOPE}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    requests = {moves(step).canonical(): request(moves(step)) for step in range(4)}

    async def step(action: ToolCall) -> None:
        writer.write(requests[action.canonical()])
        answered = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answered.partition(b"content-length:")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(length)
        if b"You are in room" not in body or b"uncounted" in body:
            raise RuntimeError(body.decode())

    return step


async def by_local_environment(setting: Setting, stack: AsyncExitStack) -> Step:
    """Begin an episode of the server's sessions in this process; return its step function."""
    local = LocalEnvironment(setting.episodes, setting.spec.name)
    stack.push_async_callback(local.close)
    await local.reset(first_task(setting.spec), seed=0)
    return local.step


async def by_remote_environment(setting: Setting, stack: AsyncExitStack) -> Step:
    """Begin an episode on the server; return its step function, which uses our client."""
    remote = RemoteEnvironment(setting.url, setting.spec.name)
    stack.push_async_callback(remote.close)
    await remote.reset(first_task(setting.spec), seed=0)
    return remote.step


async def by_the_sdk(url: str, stack: AsyncExitStack) -> Step:
    """The step function of the episode at this URL, which uses the official SDK's client."""
    client = await stack.enter_async_context(Client(url))
    await client.list_tools()

    async def step(action: ToolCall) -> None:
        result = await client.call_tool(action.name, dict(action.arguments))
        if result.is_error:
            raise RuntimeError(str(result))

    return step


async def opened(way: str, setting: Setting, stack: AsyncExitStack) -> Step:
    """Begin an episode; return its step function in this way."""
    match way:
        case "in process, LocalEnvironment":
            return await by_local_environment(setting, stack)
        case "HTTP alone, bytes":
            return await sent_as_bytes(await begun_alone(setting, stack), stack)
        case "server, bytes":
            return await sent_as_bytes(await begun_on_server(setting, stack), stack)
        case "server, RemoteEnvironment":
            return await by_remote_environment(setting, stack)
        case "server, SDK client":
            return await by_the_sdk(await begun_on_server(setting, stack), stack)
    return await in_process(setting.spec, setting.store, stored=way == SAME)


async def timed(steps: list[Step], of_others: Callable[[], tuple[float, float]]) -> Try:
    """Play the episodes at once; return what it took. `of_others` reads the CPU of the server and of PostgreSQL."""

    async def play(step: Step) -> list[float]:
        waited = []
        for number in range(STEPS):
            began = time.perf_counter()
            await step(moves(number))
            waited.append(1000 * (time.perf_counter() - began))
        return waited

    # reading the others' CPU takes milliseconds of our own, which are not counted
    before, own, began = of_others(), time.process_time(), time.perf_counter()
    waits = [wait for of_episode in await asyncio.gather(*map(play, steps)) for wait in of_episode]
    wall, own = time.perf_counter() - began, time.process_time() - own
    theirs = (late - early for early, late in zip(before, of_others(), strict=True))
    return Try(waits, wall, (own, *theirs))


def cost_of(tries: list[Try]) -> Cost:
    """Cost of a step over all tries of a round."""
    waits = [wait for one in tries for wait in one.waits_ms]
    wall = sum(one.wall_s for one in tries)
    used = [1000 * sum(seconds) / len(waits) for seconds in zip(*(one.cpu_s for one in tries), strict=True)]
    return Cost(statistics.median(waits), statistics.quantiles(waits, n=20)[-1], 1000 * wall / len(waits), *used)


def database_cpu(postmaster: int) -> float:
    """CPU seconds of all processes of a PostgreSQL server, including those that have ended."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parts = stat.read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        if stat.parent.name == str(postmaster):
            ticks += sum(int(part) for part in parts[11:15])
        elif parts[1] == str(postmaster):
            ticks += sum(int(part) for part in parts[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


async def postmaster_of(store: Store) -> int:
    """Process id of PostgreSQL's main process."""
    ((backend,),) = await store.database.fetch("SELECT pg_backend_pid()", {})
    return int(Path(f"/proc/{backend}/stat").read_text().rpartition(") ")[2].split()[1])


def worlds(spec: EnvironmentSpec, store: Store) -> DreamWorlds:
    """The dreams that are played. Their episodes are not kept, so nothing is archived while the clock runs."""
    dreams = DreamWorlds(spec, ImmediateModel(), store.buffer)
    dreams.keeps = False
    return dreams


def serve(dsn: str, env: str, encoder: str, pipe: Connection) -> None:
    """Run the server: send its URL, then its CPU seconds for each True that comes, until False comes."""

    async def until_told() -> None:
        store = await open_store(dsn, load_encoder(encoder))
        try:
            limits = Limits(open_episodes=1_000_000)
            app = build([worlds(house(env), store)], store.buffer, store.episodes, limits=limits)
            async with running(HttpAlone(app, house(env), store)) as url:
                collect_rarely()
                pipe.send(url)
                while await asyncio.to_thread(pipe.recv):
                    pipe.send(time.process_time())
        finally:
            await store.close()

    asyncio.run(until_told())


@asynccontextmanager
async def server(dsn: str, env: str, encoder: str) -> AsyncIterator[tuple[str, Callable[[], float]]]:
    """A server process, and a way to ask for the CPU seconds it has used."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(dsn, env, encoder, there))
    process.start()
    there.close()  # so that a server that does not start raises EOFError here, instead of an endless wait

    def cpu() -> float:
        here.send(True)
        seconds: float = here.recv()
        return seconds

    try:
        yield await asyncio.to_thread(here.recv), cpu
    finally:
        here.send(False)
        await asyncio.to_thread(process.join, 30)


async def measure(rounds: int, encoder: str, dsn: str | None) -> dict[Key, list[Cost]]:
    """Measure the cost of every way at every number of episodes, round by round; the first round warms up."""
    spec = house(f"bench-{uuid.uuid4().hex[:8]}")
    costs: dict[Key, list[Cost]] = {(way, many): [] for many in CONCURRENT for way in WAYS}
    store = await open_store(dsn, load_encoder(encoder))
    try:
        await store.buffer.add(recorded(spec))
        postmaster = await postmaster_of(store)
        limits = Limits(open_episodes=1_000_000)
        episodes = Episodes({spec.name: worlds(spec, store)}, store.episodes, store.buffer, limits)
        async with AsyncExitStack() as running_here:
            url, server_cpu = await running_here.enter_async_context(server(store.dsn, spec.name, encoder))
            await running_here.enter_async_context(episodes.running())
            control = await running_here.enter_async_context(ControlClient(url))
            http = await running_here.enter_async_context(httpx.AsyncClient())
            setting = Setting(spec, store, episodes, url, control, http)
            collect_rarely()

            def of_others() -> tuple[float, float]:
                return server_cpu(), database_cpu(postmaster)

            for number in range(rounds + 1):
                for (way, many), found in costs.items():
                    # few episodes are played several times, because the ticks of /proc are 10 ms
                    tries = [
                        await one_try(way, many, setting, of_others)
                        for _ in range(1 if number == 0 else max(1, 16 // many))
                    ]
                    if number:
                        found.append(cost_of(tries))
    finally:
        with suppress(UnknownName):  # nothing was stored yet
            await forget(store.database, spec.name)
        await store.close()
    return costs


async def one_try(way: str, many: int, setting: Setting, of_others: Callable[[], tuple[float, float]]) -> Try:
    """Play some episodes at once, and delete them."""
    async with AsyncExitStack() as stack:
        steps = [await opened(way, setting, stack) for _ in range(many)]
        tried = await timed(steps, of_others)
    # those that are played without sessions are left
    await setting.store.database.fetch(
        "DELETE FROM episodes WHERE body ->> 'env' = %(env)s", {"env": setting.spec.name}
    )
    return tried


def measured(rounds: int, encoder: str, dsn: str | None) -> dict[Key, list[Cost]]:
    """`measure`, for a process of its own."""
    return asyncio.run(measure(rounds, encoder, dsn))


def medians(rounds: list[Cost]) -> Cost:
    """The median of each cost over the rounds of one pair of processes."""
    return Cost(*(statistics.median(getattr(one, field.name) for one in rounds) for field in fields(Cost)))


def served_ms(cost: Cost) -> float:
    """CPU of a step without the client's share."""
    return cost.server_ms + cost.database_ms


def interval(values: list[float]) -> tuple[float, float]:
    """A 95 % interval for the median of what the values are drawn from: two of the values in their order.

    Each value lies below this median with a probability of one half, so their ranks follow from the binomial
    distribution. Less than six values do not suffice; then it is from the least to the greatest.
    """
    ordered, rank = sorted(values), 0
    below = 0.5 ** len(ordered)
    while (below := below + math.comb(len(ordered), rank + 1) * 0.5 ** len(ordered)) <= 0.025:
        rank += 1
    return ordered[rank], ordered[-1 - rank]


def with_interval(values: list[float]) -> str:
    """The median of some values, and its interval."""
    low, high = interval(values)
    return f"{statistics.median(values):.2f} [{low:.2f}, {high:.2f}]"


def table(pairs: list[dict[Key, Cost]]) -> str:
    """The medians over all pairs of processes as a Markdown table, with the ratios to the same step in process.

    Two more ratios are to the step of a LocalEnvironment, which does all of a server's work on a step.
    """
    lines = [
        "| way | episodes | median ms | p95 ms | steps/s | CPU ms: client | server | PostgreSQL | all "
        "| wait, ratio | the same, to LocalEnvironment | CPU, ratio | CPU without the client, ratio "
        "| the same, to LocalEnvironment |",
        f"{'|---' * 14}|",
    ]
    for way, many in pairs[0]:
        here = [pair[way, many] for pair in pairs]
        same, local = ([pair[base, many] for pair in pairs] for base in (SAME, LOCAL))

        def of(name: str, here: list[Cost] = here) -> float:
            return statistics.median(float(getattr(cost, name)) for cost in here)

        def ratios(value: Callable[[Cost], float], base: list[Cost], here: list[Cost] = here) -> list[float]:
            return [value(one) / other.cpu_ms for one, other in zip(here, base, strict=True)]

        def waits(base: list[Cost], here: list[Cost] = here) -> list[float]:
            return [one.median_ms / other.median_ms for one, other in zip(here, base, strict=True)]

        shown = f"{with_interval(ratios(served_ms, same))} | {with_interval(ratios(served_ms, local))}"
        lines.append(
            f"| {way} | {many} | {of('median_ms'):.2f} | {of('p95_ms'):.2f} | {1000 / of('wall_ms'):,.0f} "
            f"| {of('client_ms'):.2f} | {of('server_ms'):.2f} | {of('database_ms'):.2f} | {of('cpu_ms'):.2f} "
            f"| {with_interval(waits(same))} | {with_interval(waits(local))} "
            f"| {statistics.median(ratios(lambda cost: cost.cpu_ms, same)):.2f} "
            f"| {' | ' if 'in process' in way else shown} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7, help="pairs of processes, each a client and a server")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each pair")
    parser.add_argument("--encoder", default=TrigramEncoder.name)
    parser.add_argument("--dsn", default=os.environ.get("DREAMGYM_DSN"), help="default: the embedded PostgreSQL")
    options = parser.parse_args()
    pairs = []
    context = multiprocessing.get_context("spawn")
    for number in range(options.pairs):
        print(f"pair {number + 1} of {options.pairs}", file=sys.stderr, flush=True)
        with ProcessPoolExecutor(1, mp_context=context) as fresh:
            found = fresh.submit(measured, options.rounds, options.encoder, options.dsn).result()
        pairs.append({key: medians(rounds) for key, rounds in found.items()})
    print(table(pairs))


if __name__ == "__main__":
    main()
