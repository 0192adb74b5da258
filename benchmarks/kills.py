"""Count what is lost when servers and databases are killed, or the disk is full, while agents play and resend.

The servers of a campaign are `dreamgym-serve` processes on one embedded PostgreSQL; their model answers at once. Each
client plays episode after episode. It sends every call and every `finish` until it is answered, and notes what was
answered. Afterwards these notes are compared with the database:

- lost: calls that were answered and are not stored;
- doubled: calls that are stored twice, which only a resend after a kill may cause;
- ends lost: episodes whose `finish` was answered and that are still running;
- missing: episodes whose `finish` was answered and that are not in the replay buffer;
- cut off: episodes that the server ended before their client did;
- not back: how often a killed PostgreSQL was not back within ten seconds, so that this program started it.

    python benchmarks/kills.py --server 30 --replicas 10 --postmaster 10 --backend 10 --disk 2 --clients 32
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import aiohttp
import psycopg

from dreamgym.llm import Completion, Message
from dreamgym.replay.embedded import EmbeddedServer, status
from dreamgym.types import JsonObject

ENV = "notes"
TOOL: JsonObject = {
    "name": "note",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}
TMPFS_MEGABYTES = 400
STEPS = (3, 8)
"""Fewest and most calls of an episode."""
PAUSE_S = (0.5, 1.5)
"""Shortest and longest time of play between two kills."""
REVIVAL_S = 10.0
"""How long a killed PostgreSQL may stay down before this program starts it."""
SETTLE_S = 20.0
"""How long after the last kill an episode may be missing in the buffer."""
RESEND_S = 0.05
ANSWER_LIMIT_S = 60.0
END_LIMIT_S = 120.0


class NotingModel:
    """A fake language model that repeats the note. The servers load it as `--model noting:`."""

    def __init__(self, name: str) -> None:
        self.name = "noting"

    async def complete(
        self, messages: Sequence[Message], *, schema: JsonObject | None = None, **options: object
    ) -> Completion:
        """Answer one step in the expected form."""
        found = re.search(r"<action>\n(.*)\n</action>", messages[-1].content)
        assert found is not None
        said = f"noted {json.loads(found[1])['arguments']['text']}"
        answer = {"reasoning": "", "observation": said, "state": None, "error": False}
        return Completion(text=json.dumps({**answer, "terminated": False, "success": False}))

    async def close(self) -> None:
        """Nothing to release."""


class NoTmpfs(Exception):
    """The user may not mount a tmpfs."""


@dataclass
class Row:
    """One line of the table."""

    killed: str
    kills: int = 0
    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    ends: int = 0
    ends_lost: int = 0
    missing: int = 0
    cut_off: int = 0
    not_back: int = 0
    slowest_s: float = 0.0
    """The longest time that a client waited for one answer of any kind."""


@dataclass
class Ledger:
    """Notes of the answers that clients got."""

    steps: dict[str, list[str]] = field(default_factory=dict)
    """Notes of the calls that were answered, by episode."""
    ended: set[str] = field(default_factory=set)
    cut_off: set[str] = field(default_factory=set)
    slowest_s: float = 0.0


class Servers:
    """`dreamgym-serve` processes over one database."""

    def __init__(self, home: Path, count: int) -> None:
        self._home = home
        self.ports = [_free_port() for _ in range(count)]
        self._processes: dict[int, Process] = {}
        _furnish(home)

    async def start(self, port: int) -> None:
        """Start the server of this port and wait until it listens."""
        path = os.pathsep.join(
            [str(Path(__file__).parent), str(self._home / "plugin"), os.environ.get("PYTHONPATH", "")]
        )
        variables = {
            "PYTHONPATH": path,
            "DREAMGYM_HOME": str(self._home),
            "OMP_NUM_THREADS": "1",
            "DREAMGYM_ENCODER": "trigram",
        }
        options = [str(self._home / ENV), "--model", "noting: without cache"]
        with (self._home / f"server-{port}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "dreamgym.cli.serve", *options, "--port", str(port)),
                stdout=PIPE,
                stderr=log,
                cwd=self._home,
                env={**{k: v for k, v in os.environ.items() if not k.startswith("DREAMGYM_")}, **variables},
            )
        self._processes[port] = process
        assert process.stdout is not None
        if not await process.stdout.readline():
            raise SystemExit(f"dreamgym-serve did not start: see {log.name}")

    async def kill(self, port: int) -> None:
        """Kill the server, as the kernel does when memory runs out."""
        process = self._processes[port]
        process.kill()
        await process.wait()

    async def stop(self) -> None:
        """Terminate the servers in order."""
        for process in self._processes.values():
            if process.returncode is None:
                process.terminate()
        await asyncio.gather(*(process.wait() for process in self._processes.values()))


class Client:
    """Plays episode after episode, and sends everything until it is answered."""

    def __init__(self, number: int, ports: Sequence[int], ledger: Ledger, seed: int) -> None:
        self._number, self._ledger = number, ledger
        self._ports = itertools.cycle([*ports[number % len(ports) :], *ports[: number % len(ports)]])
        self._random = random.Random(f"{seed}:{number}")

    async def play(self, http: aiohttp.ClientSession, stopped: asyncio.Event) -> None:
        """Play until stopped; the last episode is played to its end."""
        for played in itertools.count():
            if stopped.is_set():
                return
            order: JsonObject = {"idempotency_key": f"{self._number}-{played}"}
            made = await self._insist(http, f"/envs/{ENV}/episodes", order, {201})
            episode = made["episode"]
            self._ledger.steps[episode] = []
            for step in range(self._random.randint(*STEPS)):
                if not await self._call(http, episode, f"{self._number}-{played}-{step}"):
                    self._ledger.cut_off.add(episode)
                    break
            else:
                await self._insist(http, f"/envs/{ENV}/episodes/{episode}/finish", {"success": True}, {200})
                self._ledger.ended.add(episode)

    async def _call(self, http: aiohttp.ClientSession, episode: str, text: str) -> bool:
        """Call until the call is a step; return False if the episode is over."""
        call: JsonObject = {"name": TOOL["name"], "arguments": {"text": text}}
        body: JsonObject = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        while True:
            answer = await self._insist(http, f"/envs/{ENV}/episodes/{episode}/mcp", body, {200, 404})
            result = answer.get("result")
            if result is None:
                return False
            if not result["isError"]:
                self._ledger.steps[episode].append(text)
                return True
            if "has ended" in result["content"][0]["text"]:
                return False
            await asyncio.sleep(RESEND_S)

    async def _insist(
        self, http: aiohttp.ClientSession, path: str, body: JsonObject, expected: set[int]
    ) -> dict[str, Any]:
        asked = time.monotonic()
        while True:
            with suppress(aiohttp.ClientError, ConnectionError, TimeoutError):
                url = f"http://127.0.0.1:{next(self._ports)}{path}"
                async with http.post(url, json=body, headers={"accept": "application/json"}) as response:
                    answer: dict[str, Any] = await response.json()
                    if response.status in expected:
                        self._ledger.slowest_s = max(self._ledger.slowest_s, time.monotonic() - asked)
                        return answer
            await asyncio.sleep(RESEND_S)


@dataclass
class Stage:
    """The processes that can be killed, and the notes of the clients that play meanwhile."""

    home: Path
    database: EmbeddedServer
    servers: Servers
    ledger: Ledger
    random: random.Random
    not_back: int = 0

    async def pause(self) -> None:
        """Let the clients play."""
        await asyncio.sleep(self.random.uniform(*PAUSE_S))

    async def kill_server(self) -> None:
        """Kill one server and start it again at once."""
        port = self.random.choice(self.servers.ports)
        await self.servers.kill(port)
        await self.servers.start(port)

    async def kill_postmaster(self) -> None:
        """Kill PostgreSQL's main process."""
        pid = status(self.home / "postgres").pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await self._until_back()

    async def kill_backend(self) -> None:
        """Kill one of the processes behind the connections; PostgreSQL then ends all of them and recovers."""
        pids = self._backends()
        while not pids:
            await asyncio.sleep(RESEND_S)
            pids = self._backends()
        with suppress(ProcessLookupError):
            os.kill(self.random.choice(pids), signal.SIGKILL)
        await self._until_back()

    def _backends(self) -> list[int]:
        with psycopg.connect(self.database.dsn) as connection:
            rows = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
                "AND backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY pid"
            ).fetchall()
        return [int(row[0]) for row in rows]

    async def fill_disk(self) -> None:
        """Leave no room on the disk for a while."""
        ballast = self.home / "ballast"
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(2**16))
        await self.pause()
        ballast.unlink()
        await self._until_back()

    async def _until_back(self) -> None:
        deadline = time.monotonic() + REVIVAL_S
        while not await asyncio.to_thread(lambda: status(self.home / "postgres").running):
            if time.monotonic() > deadline:
                self.not_back += 1
                await asyncio.to_thread(self.database.ensure_running)
                return
            await asyncio.sleep(0.1)


async def campaign(
    name: str, kills: int, clients: int, seed: int, kill: Callable[[Stage], Awaitable[None]], *, servers: int = 1
) -> Row:
    """Kill while clients play; then count."""
    place = tmpfs() if kill is Stage.fill_disk else nullcontext(None)
    with place as folder:
        home = Path(tempfile.mkdtemp(prefix="dreamgym-kills-", dir=folder))
        home.chmod(0o711)
        database = EmbeddedServer.start(home / "postgres")
        ledger = Ledger()
        stage = Stage(home, database, Servers(home, servers), ledger, random.Random(f"{seed}:{name}"))
        try:
            async with _playing(stage, clients, seed):
                for _ in range(kills):
                    await stage.pause()
                    await kill(stage)
                    _say(f"{name}: {sum(map(len, ledger.steps.values()))} steps, {len(ledger.ended)} ends")
                await stage.pause()
            row = await _settled(Row(name, kills, not_back=stage.not_back), database.dsn, ledger)
        finally:
            await stage.servers.stop()
            database.release()
        shutil.rmtree(home)
    return row


@asynccontextmanager
async def _playing(stage: Stage, clients: int, seed: int) -> AsyncIterator[None]:
    await asyncio.gather(*map(stage.servers.start, stage.servers.ports))
    limits = aiohttp.ClientTimeout(total=ANSWER_LIMIT_S)
    stopped = asyncio.Event()
    async with aiohttp.ClientSession(timeout=limits, connector=aiohttp.TCPConnector(limit=0)) as http:
        players = [Client(n, stage.servers.ports, stage.ledger, seed).play(http, stopped) for n in range(clients)]
        playing = asyncio.gather(*players)
        try:
            yield
            stopped.set()
            await asyncio.wait_for(playing, END_LIMIT_S)
        finally:
            playing.cancel()


async def _settled(row: Row, dsn: str, ledger: Ledger) -> Row:
    """Count until nothing is missing or the time is up; return the row."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        counted = _counted(row, dsn, ledger)
        if not counted.missing or time.monotonic() > deadline:
            return counted
        await asyncio.sleep(0.5)


def _counted(row: Row, dsn: str, ledger: Ledger) -> Row:
    with psycopg.connect(dsn) as connection:
        stored: dict[str, Counter[str]] = {episode: Counter() for episode in ledger.steps}
        for episode, text in connection.execute(
            "SELECT episode_id, body -> 'action' -> 'arguments' ->> 'text' FROM episode_steps"
        ):
            stored.setdefault(episode, Counter())[text] += 1
        over = {row[0] for row in connection.execute("SELECT id FROM episodes WHERE stop_reason IS NOT NULL")}
        kept = {row[0] for row in connection.execute("SELECT id FROM trajectories")}
    told = [(episode, text) for episode, texts in ledger.steps.items() for text in texts]
    row.acknowledged = len(told)
    row.lost = sum(stored[episode][text] == 0 for episode, text in told)
    row.doubled = sum(times - 1 for texts in stored.values() for times in texts.values())
    row.ends, row.ends_lost = len(ledger.ended), len(ledger.ended - over)
    row.missing, row.cut_off = len(ledger.ended - kept), len(ledger.cut_off)
    row.slowest_s = round(ledger.slowest_s, 1)
    return row


@contextmanager
def tmpfs() -> Iterator[str]:
    """A small disk in memory. Raises NoTmpfs."""
    folder = tempfile.mkdtemp(prefix="dreamgym-disk-")
    command = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_MEGABYTES}m,mode=0711", "tmpfs", folder]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        os.rmdir(folder)
        raise NoTmpfs(mounted.stderr.strip())
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=False)
        os.rmdir(folder)


def _furnish(home: Path) -> None:
    """Write an environment folder, and a plugin that makes this file's model available."""
    folder, plugin = home / ENV, home / "plugin" / "noting-1.0.dist-info"
    folder.mkdir()
    plugin.mkdir(parents=True)
    (folder / "env.toml").write_text(f'name = "{ENV}"\n')
    (folder / "tools.json").write_text(json.dumps({"tools": [TOOL]}))
    (folder / "tasks.jsonl").write_text(json.dumps({"id": "take", "env": ENV, "instruction": "Take notes."}) + "\n")
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: noting\nVersion: 1.0\n")
    (plugin / "entry_points.txt").write_text("[dreamgym.models]\nnoting = kills:NotingModel\n")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def run(args: argparse.Namespace) -> list[Row]:
    """Run the campaigns that the arguments ask for."""
    wanted = [
        ("server", args.server, Stage.kill_server, 1),
        ("one of two servers", args.replicas, Stage.kill_server, 2),
        ("PostgreSQL's postmaster", args.postmaster, Stage.kill_postmaster, 1),
        ("a PostgreSQL backend", args.backend, Stage.kill_backend, 1),
        ("nothing, the disk is full", args.disk, Stage.fill_disk, 1),
    ]
    rows = []
    for name, kills, kill, servers in wanted:
        if kills:
            try:
                rows.append(await campaign(name, kills, args.clients, args.seed, kill, servers=servers))
                _say(str(rows[-1]))
            except NoTmpfs as error:
                _say(f"{name}: skipped, no tmpfs can be mounted here ({error})")
    return rows


def main() -> None:
    """Run the campaigns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"server": 3, "replicas": 3, "postmaster": 3, "backend": 3, "disk": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"number of failures (default {default})")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    args = parser.parse_args()
    rows = asyncio.run(run(args))
    if args.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    columns = [column.name for column in fields(Row)]
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {args.clients} clients, seed {args.seed}\n")
    print(f"| {' | '.join(column.replace('_', ' ') for column in columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(str(getattr(row, column)) for column in columns)} |")


if __name__ == "__main__":
    main()
