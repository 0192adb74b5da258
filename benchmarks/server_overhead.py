"""What the server costs per simulated step when the model costs nothing.

The model answers at once from what retrieval showed it, so that what remains is: HTTP and MCP, argument validation,
retrieval, storing the step. The server is a process of its own; client and in-process steps are timed here.
It leaves an environment called `bench-…` behind in the database. What a call costs beside the plain server of the MCP
SDK, retrieval and storing apart, is measured by call_overhead.py.

    python benchmarks/server_overhead.py --steps 200
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection

from dreamgym_client.environment import RemoteEnvironment
from dreamgym_server.app import build
from dreamgym_server.running import running
from dreamgym_server.sources import DreamWorlds

from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.model import Prediction, Query
from dreamgym.embedding import TrigramEncoder, load_encoder
from dreamgym.environment import Environment, EnvironmentSpec
from dreamgym.replay.postgres import open_store
from dreamgym.types import Provenance, Source, StepResult, StopReason, Task, Tier, ToolCall, Trajectory, Transition

CONCURRENT = (1, 8, 64)
ROOMS = 40
WORLDS = 100
WORLD_STEPS = 20


class ImmediateModel:
    """Copies the best demonstration, or stays where it is."""

    name = "immediate"
    demonstrations = 5
    learns_from_dreams = False

    async def predict(self, query: Query) -> Prediction:
        """No thinking: the time of a step is all ours."""
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
class Row:
    """One line of the table; milliseconds per step as its caller waits for it."""

    where: str
    concurrent: int
    steps: int
    median_ms: float
    p95_ms: float
    steps_per_s: float
    client_cpu_ms: float
    server_cpu_ms: float | None


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
    """What is seen in a room."""
    things = " ".join(f"You see a {color} box." for color in ("red", "green", "blue")[: 1 + number % 3])
    return f"You are in room {number % ROOMS} of the house. {things} Doors lead north, south, east and west."


def moves(step: int) -> ToolCall:
    """What a walker does at a step."""
    return ToolCall(name="go", arguments={"direction": ("north", "east", "south", "west")[step % 4]})


def recorded(spec: EnvironmentSpec) -> list[Trajectory]:
    """Walks through the house."""
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


async def timed(make: Callable[[], Environment], spec: EnvironmentSpec, concurrent: int, steps: int) -> list[float]:
    """Seconds of each step, over `concurrent` episodes at once."""
    environments = [make() for _ in range(concurrent)]
    task = Task(id=f"{spec.name}-0", env=spec.name, instruction="Walk.", initial_state=room(0))
    await asyncio.gather(*(environment.reset(task, seed=n) for n, environment in enumerate(environments)))

    async def play(environment: Environment) -> list[float]:
        waited = []
        for step in range(steps):
            began = time.perf_counter()
            await environment.step(moves(step))
            waited.append(time.perf_counter() - began)
        return waited

    waits = await asyncio.gather(*map(play, environments))
    await asyncio.gather(*(environment.close() for environment in environments))
    return [seconds for wait in waits for seconds in wait]


def row(where: str, concurrent: int, waits: list[float], wall: float, cpu: float, server_cpu: float | None) -> Row:
    """The figures of one measurement."""
    steps = len(waits)
    return Row(
        where=where,
        concurrent=concurrent,
        steps=steps,
        median_ms=1000 * statistics.median(waits),
        p95_ms=1000 * statistics.quantiles(waits, n=20)[-1] if steps > 1 else 1000 * waits[0],
        steps_per_s=steps / wall,
        client_cpu_ms=1000 * cpu / steps,
        server_cpu_ms=None if server_cpu is None else 1000 * server_cpu / steps,
    )


def serve(dsn: str, env: str, encoder: str, pipe: Connection) -> None:
    """The server's process: says its URL, then its CPU seconds whenever asked, until told to stop."""

    async def until_told() -> None:
        store = await open_store(dsn, load_encoder(encoder))
        try:
            world = DreamWorlds(house(env), ImmediateModel(), store.buffer)
            async with running(build([world], store.buffer, store.episodes)) as url:
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

    def cpu() -> float:
        here.send(True)
        seconds: float = here.recv()
        return seconds

    try:
        yield await asyncio.to_thread(here.recv), cpu
    finally:
        here.send(False)
        await asyncio.to_thread(process.join, 30)


async def measure(steps: int, encoder: str, dsn: str | None) -> list[Row]:
    """All rows: in-process and through the server, on the same buffer."""
    spec = house(f"bench-{uuid.uuid4().hex[:8]}")
    rows = []
    store = await open_store(dsn, load_encoder(encoder))
    try:
        await store.buffer.add(recorded(spec))
        async with server(store.dsn, spec.name, encoder) as (url, server_cpu):
            for concurrent in CONCURRENT:
                each = max(4, steps // concurrent)

                def dream() -> Environment:
                    return DreamEnvironment(spec, ImmediateModel(), store.buffer)

                def remote() -> Environment:
                    return RemoteEnvironment(url, spec.name)

                for where, make in (("in-process", dream), ("server", remote)):
                    await timed(make, spec, concurrent, 4)  # warm
                    before, began, cpu = server_cpu(), time.perf_counter(), time.process_time()
                    waits = await timed(make, spec, concurrent, each)
                    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
                    used = server_cpu() - before if where == "server" else None
                    rows.append(row(where, concurrent, waits, wall, cpu, used))
    finally:
        await store.close()
    return rows


def table(rows: list[Row]) -> str:
    """The rows for a person, each server row with its ratio to the same steps in-process."""
    lines = ["where        concurrent  steps  median ms   p95 ms  steps/s  client CPU ms  server CPU ms  ratio"]
    base = {row.concurrent: row.median_ms for row in rows if row.where == "in-process"}
    for one in rows:
        server_cpu = "" if one.server_cpu_ms is None else f"{one.server_cpu_ms:.2f}"
        lines.append(
            f"{one.where:<12} {one.concurrent:>10} {one.steps:>6} {one.median_ms:>10.2f} {one.p95_ms:>8.2f}"
            f" {one.steps_per_s:>8.0f} {one.client_cpu_ms:>14.2f} {server_cpu:>14}"
            f" {one.median_ms / base[one.concurrent]:>6.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=512, help="steps per measurement, over all episodes")
    parser.add_argument("--encoder", default=TrigramEncoder.name)
    parser.add_argument("--dsn", default=os.environ.get("DREAMGYM_DSN"), help="default: the embedded PostgreSQL")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = asyncio.run(measure(options.steps, options.encoder, options.dsn))
    if options.json:
        print(json.dumps({"machine": platform.platform(), "cores": os.cpu_count(), "rows": [asdict(r) for r in rows]}))
    else:
        print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
        print(table(rows))


if __name__ == "__main__":
    main()
