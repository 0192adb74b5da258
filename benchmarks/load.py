"""Load one server with a slow model and many open episodes: count failures and their rewards, measure the cost.

A `dreamgym-serve` process with its own embedded PostgreSQL asks a chat endpoint that takes 0.5 s for each answer. All
episodes are opened first, then all play at once: STEPS calls each, then the end, as a trainer plays them. The right
reward is known beforehand, because each task has its own check: half of the tasks want the answers that the calls give,
the other half want one that no call gives. In the campaigns with trouble, calls may fail. A client ends its episode at
a failed call; such an episode must have no reward, neither 0 nor 1. A failing model is asked again after pauses, with
few requests at once, so that ten episodes of such a campaign take a quarter of an hour.

- failed calls: calls that the server answered with an error, or did not answer;
- played: episodes that took all their steps and were ended;
- wrong: episodes played to their end whose reward differs from that of the check;
- invented: episodes with a failed call that the server gives a reward nevertheless;
- wait: of the calls that were answered; a failed call does not count;
- KiB: growth of the server's resident memory from no episode to all open and each with a step under way, per episode.

    python benchmarks/load.py --episodes 2000 --trouble 10
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import re
import shutil
import socket
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from dreamgym_client.control import ControlClient
from dreamgym_client.environment import RemoteEnvironment

from dreamgym.errors import EnvironmentUnavailable, EpisodeFinished, InvalidInput, UnknownEpisode
from dreamgym.replay.embedded import EmbeddedServer
from dreamgym.types import JsonObject, Task, ToolCall

ENV = "notes"
STEPS = 3
THINKS_S = 0.5
TICK_S = 0.25
TOOL: JsonObject = {
    "name": "note",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}


@dataclass(frozen=True)
class Campaign:
    """One row of the table: the number of episodes, and the trouble that they meet."""

    name: str
    episodes: int
    fails: float = 0.0
    """Share of the model's answers that are a 503."""
    hangs_up: float = 0.0
    """Share of the model's answers that are a closed connection."""
    files: int | None = None
    """Number of files that the server may open; None: as many as this process."""


@dataclass
class Told:
    """Counts of what the clients of a campaign saw."""

    opened: int = 0
    refused: int = 0
    steps: int = 0
    failed_calls: int = 0
    played: int = 0
    wrong: int = 0
    invented: int = 0
    waits_s: list[float] = field(default_factory=list)


def chat(port: int, campaign: Campaign) -> None:
    """Run the chat endpoint, which repeats the note after THINKS_S seconds."""
    draw = random.Random(campaign.name)

    async def answer(request: web.Request) -> web.StreamResponse:
        asked = (await request.json())["messages"][-1]["content"]
        found = re.search(r"<action>\n(.*)\n</action>", asked)
        await asyncio.sleep(THINKS_S)
        chance = draw.random()
        if found and chance < campaign.fails:
            return web.json_response({"error": {"message": "overloaded"}}, status=503)
        if found and chance < campaign.fails + campaign.hangs_up:
            assert request.transport is not None
            request.transport.close()
        said = f"noted {json.loads(found[1])['arguments']['text']}" if found else "ok"
        step = {"reasoning": "", "observation": said, "state": None, "error": False}
        content = json.dumps({**step, "terminated": False, "success": False} if found else {"ok": True})
        message = {"role": "assistant", "content": content}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response(
            {"id": "1", "object": "chat.completion", "created": 0, "model": "slow", "choices": [choice], "usage": usage}
        )

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    web.run_app(app, host="127.0.0.1", port=port, print=None, backlog=4096, handler_cancellation=False)


def task(number: int) -> Task:
    """The task of one episode; odd ones cannot be accomplished."""
    wanted = [f"noted {number} {step}" for step in range(STEPS)]
    answers = wanted if number % 2 == 0 else [*wanted, "noted by nobody"]
    return Task(id=f"task-{number}", env=ENV, instruction="Take notes.", metadata={"answers": list(answers)})


@dataclass
class Server:
    """A `dreamgym-serve` process."""

    url: str
    process: Process

    def memory(self) -> int:
        """Resident memory in bytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def cpu(self) -> float:
        """CPU seconds used so far."""
        parts = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].split()
        return sum(int(part) for part in parts[11:13]) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def served(campaign: Campaign) -> AsyncIterator[Server]:
    """Start the endpoint and the server of one campaign, with a database of its own."""
    home = Path(tempfile.mkdtemp(prefix="dreamgym-load-"))
    home.chmod(0o711)
    folder = home / ENV
    folder.mkdir()
    (folder / "env.toml").write_text(f'name = "{ENV}"\n')
    (folder / "tools.json").write_text(json.dumps({"tools": [TOOL]}))
    (folder / "tasks.jsonl").write_text(task(0).model_dump_json() + "\n")
    chat_port, port = free_port(), free_port()
    endpoint = multiprocessing.get_context("spawn").Process(target=chat, args=(chat_port, campaign), daemon=True)
    endpoint.start()
    database = await asyncio.to_thread(EmbeddedServer.start, home / "postgres")
    variables = {"DREAMGYM_HOME": str(home), "DREAMGYM_ENCODER": "trigram", "OMP_NUM_THREADS": "1"}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DREAMGYM_")}
    limit = f"ulimit -n {campaign.files}; " if campaign.files else ""
    model = f"http://127.0.0.1:{chat_port}/v1#slow"
    command = f'{limit}exec "$0" -m dreamgym.cli.serve "$1" --model "$2" --port "$3"'
    with (home / "server.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", command, sys.executable, str(folder), model, str(port)),
            stdout=PIPE,
            stderr=log,
            env={**inherited, **variables},
        )
    try:
        assert process.stdout is not None
        if not await process.stdout.readline():
            raise SystemExit(f"dreamgym-serve did not start: {(home / 'server.log').read_text()[-1000:]}")
        yield Server(f"http://127.0.0.1:{port}", process)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        endpoint.terminate()
        await asyncio.to_thread(database.release)
        shutil.rmtree(home)


async def play(remote: RemoteEnvironment, server: Server, number: int, told: Told) -> None:
    """Play an open episode to its end, or until a call fails; then compare its reward with the right one."""
    has_failed = False
    for step in range(STEPS):
        began = time.monotonic()
        try:
            result = await remote.step(ToolCall(name="note", arguments={"text": f"{number} {step}"}))
        except (EnvironmentUnavailable, EpisodeFinished):
            told.failed_calls += 1
            has_failed = True
            break
        told.waits_s.append(time.monotonic() - began)
        told.steps += 1
        if result.is_error or result.observation != f"noted {number} {step}":
            raise SystemExit(f"expected the answer 'noted {number} {step}', got {result}")
    for _ in range(100):
        try:
            async with ControlClient(server.url) as control:  # like an agent that gives up
                reward = (await control.finish(ENV, remote.episode)).reward
            await remote.close()
            break
        except (EnvironmentUnavailable, InvalidInput):
            await asyncio.sleep(1)
    else:
        raise SystemExit("the end of an episode could not be read in a hundred attempts")
    if has_failed:
        told.invented += reward is not None
    else:
        told.played += 1
        told.wrong += reward != (1.0 if number % 2 == 0 else 0.0)


async def opened(server: Server, number: int, told: Told, places: asyncio.Semaphore) -> RemoteEnvironment | None:
    """Open an episode; return None if the server refuses it."""
    remote = RemoteEnvironment(server.url, ENV)
    async with places:
        try:
            await remote.reset(task(number), seed=number)
        except (EnvironmentUnavailable, InvalidInput, UnknownEpisode):
            told.refused += 1
            return None
    told.opened += 1
    return remote


async def run(campaign: Campaign) -> str:
    """Play one campaign; return its row of the table."""
    async with served(campaign) as server:
        told, places = Told(), asyncio.Semaphore(64)
        first = await opened(server, 0, Told(), places)
        assert first is not None
        await play(first, server, 0, Told())  # the first episode loads code, which is not the memory of an episode
        before, cpu = server.memory(), server.cpu()
        found = await asyncio.gather(*(opened(server, n, told, places) for n in range(campaign.episodes)))
        began, spent, most = time.monotonic(), server.cpu(), server.memory()

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, server.memory())
                await asyncio.sleep(TICK_S)

        watching = asyncio.create_task(watch())
        await asyncio.gather(*(play(one, server, n, told) for n, one in enumerate(found) if one is not None))
        watching.cancel()
        wall = time.monotonic() - began
        waits = sorted(told.waits_s) or [0.0]
        to_open, of_steps = 1000 * (spent - cpu), 1000 * (server.cpu() - spent)
        return (
            f"| {campaign.name} | {told.opened} | {told.refused} | {told.steps} | {told.failed_calls} | {told.played} "
            f"| {told.wrong} | {told.invented} | {(most - before) / 1024 / max(1, told.opened):.0f} "
            f"| {to_open / max(1, told.opened):.1f} | {of_steps / max(1, told.steps):.1f} "
            f"| {told.steps / wall:.0f} | {statistics.median(waits):.1f} | {waits[-1]:.1f} |"
        )


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=2000, help="episodes open at once if nothing fails")
    parser.add_argument("--trouble", type=int, default=10, help="episodes open at once in each campaign with failures")
    options = parser.parse_args()
    campaigns = [Campaign("nothing", options.episodes)] if options.episodes else []
    if options.trouble:
        campaigns += [
            Campaign("the model answers 503 to two of three", options.trouble, fails=0.67),
            Campaign("the model hangs up on two of three", options.trouble, hangs_up=0.67),
            Campaign("the server may open 256 files", options.trouble, files=256),
        ]
    print(
        "| trouble | open | not opened | steps | failed calls | played | wrong | invented | KiB per episode "
        "| CPU ms to open | CPU ms per step | steps/s | median wait s | longest wait s |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for campaign in campaigns:
        print(asyncio.run(run(campaign)), flush=True)


if __name__ == "__main__":
    main()
