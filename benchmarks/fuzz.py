"""Attack a server with malformed requests, expensive requests and too many connections, and watch its health.

The attacked servers are a `dreamgym-serve` process that serves a dream with redaction and a token, and a `dreamgym
record` in front of a real MCP server. `--seed` fixes all random draws. The columns are:

- failed: answers with a status of 500 or more; an agent that is refused at its start counts as 503, and not as failed;
- hung: requests without an answer after ten seconds, except requests that are never completed;
- tracebacks in the log, and the length of the log;
- health: the longest wait for `/healthz` during the attack, over a separate connection; and how often it was refused.

    python benchmarks/fuzz.py --requests 6000 --sessions 500
    python benchmarks/fuzz.py --requests 600 --code FOLDER        the servers of another checkout, to compare with
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import random
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import aiohttp
from dreamgym_server.connections import MAX_BODY_BYTES

from dreamgym.replay.embedded import EmbeddedServer

STUDIES = Path(__file__).parent / "studies"
COIN = Path(__file__).parents[1] / "examples" / "coin"
TOKEN = "a token for fuzzing"
ANSWER_S = 10.0
STOP_S = 30.0
FILES = 256
"""Open files that the server may have in the last two rows."""
AT_ONCE = 16
ROOM = MAX_BODY_BYTES - 400
"""Bytes for the odd part of a body."""


@dataclass
class Row:
    """One line of the table."""

    attack: str
    requests: int = 0
    answered: Counter[int] = field(default_factory=Counter)
    failed: int = 0
    hung: int = 0
    tracebacks: int = 0
    log_kilobytes: int = 0
    health_ms: float = 0.0
    health_refused: int = 0
    megabytes: float = 0.0
    """Growth of the server's memory."""


class Server:
    """A server process, its log and its memory."""

    def __init__(self, place: Place, files: int | None, *command: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.log = place.home / f"server-{self.port}.log"
        named = [str(self.port) if word == "PORT" else word for word in command]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*limited(files), sys.executable, "-m", *named],
                stdout=subprocess.PIPE,
                stderr=log,
                env=place.environ(),
                cwd=place.home,
            )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise SystemExit(f"{command[0]} did not start: {self.log.read_text()[-500:]}")

    @property
    def megabytes(self) -> float:
        """Resident memory."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 2**20

    def stop(self) -> None:
        """Terminate the process; kill it if it does not end in time."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass
class Place:
    """A folder and a database for the servers, and the checkout whose code they run."""

    home: Path
    dsn: str
    code: Path | None
    """Another checkout; None for the installed packages."""

    def environ(self) -> dict[str, str]:
        """Environment variables of every server."""
        own = {"DREAMGYM_TOKEN": TOKEN, "DREAMGYM_DSN": self.dsn, "DREAMGYM_HOME": str(self.home)}
        if self.code is not None:
            parts = ("", "server", "client", "integrations")
            own["PYTHONPATH"] = os.pathsep.join(str(self.code.resolve() / part) for part in parts)
        return {**os.environ, **own, "OMP_NUM_THREADS": "1"}

    def serve(self, files: int | None) -> Server:
        """Start a server of a dream with recordings and redaction."""
        folder = self.home / "coin"
        if not folder.exists():
            shutil.copytree(COIN, folder)
            with (folder / "env.toml").open("a", encoding="utf-8") as file:
                file.write("\n[redact]\n")
            seed = [sys.executable, "-m", "dreamgym", "seed", str(folder), str(folder)]
            subprocess.run(
                seed,
                check=True,
                env=self.environ(),
                cwd=self.home,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        command = ("dreamgym.cli.serve", str(folder), "--model", "nearest")
        return Server(self, files, *command, "--port", "PORT")

    def record(self, files: int | None) -> Server:
        """Start a recorder in front of the helpdesk."""
        folder = tempfile.mkdtemp(dir=self.home)
        real = (sys.executable, str(STUDIES / "helpdesk" / "server.py"))
        return Server(self, files, "dreamgym", "record", "desk", "--out", folder, "--port", "PORT", "--", *real)


def limited(files: int | None) -> list[str]:
    """Words before a command that limit its open files; none for None."""
    return [] if files is None else ["prlimit", f"--nofile={files}:{files}"]


def mutated(chance: random.Random, value: Any, depth: int = 0) -> Any:
    """The value with one part replaced by something unexpected."""
    if depth < 4 and isinstance(value, dict) and value and chance.random() < 0.8:
        key = chance.choice(sorted(value))
        return {**value, key: mutated(chance, value[key], depth + 1)}
    odd: list[Any] = [
        None,
        True,
        -1,
        10**400,
        float("nan"),
        "",
        "\x00",
        "\ud800",
        "a" * 70_000,
        [],
        {},
        [[[]]],
        "é" * 99,
    ]
    odd += [{"$ref": "http://127.0.0.1:9/x"}, {"key": "x" * 600}, [1] * 500, "../../etc/passwd", "<script>", 1e308]
    return chance.choice(odd)


def body_of(chance: random.Random, message: Any) -> bytes:
    """The message, mutated, as bytes; some are not valid JSON."""
    text = json.dumps(mutated(chance, message))
    raw = text.encode("utf-8", "surrogatepass")
    if chance.random() < 0.2:
        cut = chance.randrange(len(raw) + 1)
        raw = raw[:cut] + chance.randbytes(chance.randrange(20)) + raw[cut:]
    return raw[: chance.randrange(len(raw) + 1)] if chance.random() < 0.1 else raw


def called(**arguments: Any) -> dict[str, Any]:
    """A tool call as a message."""
    params = {"name": "act", "arguments": arguments or {"command": "look around"}}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


def requests_of(chance: random.Random, episode: str, token: str) -> tuple[str, str, bytes, dict[str, str]]:
    """Method, path, body and headers of a malformed request to one of the routes."""
    base = "/envs/coin"
    doors: list[tuple[str, str, Any]] = [
        ("POST", f"{base}/episodes", {"task_id": "coin-train-0", "seed": 1, "group": "g", "idempotency_key": "k"}),
        (
            "POST",
            f"{base}/episodes",
            {"task": {"id": "t", "env": "coin", "instruction": "x", "metadata": {"success": {}}}},
        ),
        ("POST", f"{base}/episodes/{episode}/fork", {"step": 0, "idempotency_key": "f"}),
        ("POST", f"{base}/episodes/none/finish", {"answer": "x", "success": True}),
        ("POST", f"{base}/episodes/{episode}/mcp", called()),
        ("POST", f"{base}/episodes/{token}/mcp", called()),
        ("POST", f"{base}/mcp", {**called(), "method": chance.choice(["initialize", "tools/list", "ping", "x/y"])}),
        ("POST", f"{base}/openenv/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}}),
        (chance.choice(["GET", "PUT", "DELETE", "PATCH"]), f"{base}/episodes/{chance.randbytes(4).hex()}", {}),
    ]
    method, path, message = chance.choice(doors)
    headers = {"Authorization": f"Bearer {TOKEN}", "accept": "application/json", "content-type": "application/json"}
    odd = ["", "x", "a" * 3000, "2099-01-01", "text/event-stream", "*/*", "chunked"]
    if chance.random() < 0.3:
        names = ["accept", "content-type", "mcp-protocol-version", "mcp-session-id", "x-dreamgym-episode", "mcp-method"]
        headers[chance.choice(names)] = chance.choice(odd)
    return method, path, body_of(chance, message), headers


OPENED = {
    "accept": "application/json, text/event-stream",
    "content-type": "application/json",
    "authorization": f"Bearer {TOKEN}",
}
"""Headers of a client that has the server's token."""
EXPENSIVE: dict[str, bytes] = {
    "quotes in a string that never ends": b"[" * 65 + b'"' + b'\\"' * (ROOM // 2),
    "brackets": b"[" * ROOM,
    "a long word beside an @": json.dumps(called(command="a" * 60_000 + " @")).encode(),
    "slashes beside _authToken": json.dumps(called(command="/" * 60_000 + " _authToken")).encode(),
    "arguments of a megabyte": json.dumps(called(command="a" * ROOM + " @")).encode(),
    "a number of a million digits": b'{"jsonrpc": "2.0", "id": ' + b"9" * ROOM + b"}",
    "many keys": json.dumps({f"k{n}": n for n in range(ROOM // 18)}).encode(),
}


async def post(
    session: aiohttp.ClientSession, row: Row, method: str, url: str, body: bytes, headers: dict[str, str]
) -> None:
    """Send a request and count how it was answered."""
    row.requests += 1
    try:
        async with session.request(method, url, data=body, headers=headers) as answer:
            await answer.read()
            row.answered[answer.status] += 1
            row.failed += answer.status >= 500
    except TimeoutError:
        row.hung += 1
    except (aiohttp.ClientError, ValueError):
        row.answered[0] += 1


async def fuzz(server: Server, row: Row, count: int, seed: int) -> None:
    """Send malformed requests to all routes."""
    async with client(server) as session:
        made = await episode_of(session)
        chances = [random.Random(f"{seed}:{number}") for number in range(count)]
        waiting = iter(chances)

        async def work() -> None:
            for chance in waiting:
                method, path, body, headers = requests_of(chance, made["episode"], made["token"])
                await post(session, row, method, path, body, headers)

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))


async def wire(server: Server, row: Row, count: int, seed: int) -> None:
    """Send bytes that are not HTTP."""
    for number in range(count):
        chance = random.Random(f"wire:{seed}:{number}")
        raw = chance.choice(
            [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"POST /envs HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\n"]
        )
        raw += chance.randbytes(chance.randrange(200)) + b"\r\n\r\n"
        row.requests += 1
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(raw)
        try:
            async with asyncio.timeout(ANSWER_S):
                with suppress(OSError):
                    writer.write_eof()
                    await reader.read()
            row.answered[0] += 1
        except TimeoutError:
            row.hung += 1
        writer.close()


async def expensive(server: Server, row: Row, count: int, seed: int) -> None:
    """Send bodies that once took a server hours."""
    async with client(server) as session:
        made = await episode_of(session)
        for body in EXPENSIVE.values():
            for path in (f"/envs/coin/episodes/{made['episode']}/mcp", "/envs/coin/openenv/mcp", "/envs/coin/episodes"):
                await post(session, row, "POST", path, body, OPENED)


async def fuzz_websocket(server: Server, row: Row, count: int, seed: int) -> None:
    """Send malformed messages over OpenEnv's websocket; reconnect after each time it is closed."""
    messages: list[Any] = [
        {"type": "reset", "data": {"seed": 1}},
        {"type": "step", "data": {"type": "call_tool", "tool_name": "act", "arguments": {"command": "look around"}}},
        {"type": "mcp", "data": called()},
        {"type": "state"},
    ]
    async with client(server) as session:
        line: aiohttp.ClientWebSocketResponse | None = None
        for number in range(count):
            chance = random.Random(f"websocket:{seed}:{number}")
            row.requests += 1
            try:
                if line is None or line.closed:
                    line = await session.ws_connect("/envs/coin/openenv/ws", headers=OPENED)
                text = body_of(chance, chance.choice(messages)).decode(errors="replace")
                await (line.send_str(text) if chance.random() < 0.9 else line.send_bytes(text.encode()))
                said = await line.receive(ANSWER_S)
                row.answered[200 if said.type is aiohttp.WSMsgType.TEXT else 0] += 1
            except TimeoutError:
                row.hung += 1
            except (aiohttp.ClientError, ConnectionError):
                row.answered[0] += 1
        if line is not None:
            await line.close()


async def fuzz_recorder(server: Server, row: Row, count: int, seed: int) -> None:
    """Send malformed requests to all routes of a recorder."""
    start = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "fuzz", "version": "1"}}
    doors: list[tuple[str, Any]] = [
        ("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": start}),
        ("/record/fuzz/mcp", called()),
        ("/record/fuzz/mcp", {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}),
        ("/record/fuzz", {"task": "Do it.", "task_id": "t"}),
        ("/record/fuzz/finish", {"answer": "Done.", "success": True}),
    ]
    async with client(server) as session:
        for _, message in (doors[0], doors[2]):  # without a list of tools, no run could be finished
            await post(session, row, "POST", "/record/listed/mcp", json.dumps(message).encode(), OPENED)
        for number in range(count):
            chance = random.Random(f"recorder:{seed}:{number}")
            path, message = chance.choice(doors)
            body = body_of(chance, message)
            if b"\\ud800" not in body:  # it is passed on, and the helpdesk, a Python server, does not answer it
                await post(session, row, "POST", path, body, OPENED)


async def expensive_recorder(server: Server, row: Row, count: int, seed: int) -> None:
    """Send bodies that once took a recorder hours to forward and to record."""
    async with client(server) as session:
        for body in EXPENSIVE.values():
            for path in ("/mcp", "/record/expensive/mcp", "/record/expensive"):
                await post(session, row, "POST", path, body, OPENED)


async def half_sent(server: Server, row: Row, count: int, seed: int) -> None:
    """Begin requests without a token and do not complete them."""
    opened = []
    for _ in range(count):
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"POST /envs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
            opened.append(writer)
            row.requests += 1
    await asyncio.sleep(3)
    for writer in opened:
        writer.close()


async def sessions(server: Server, row: Row, count: int, seed: int) -> None:
    """Run well-behaved agents at once, with separate connections: each must be served fully, or refused with 503."""

    async def one() -> None:
        row.requests += 1
        async with client(server) as session:
            try:
                made = await episode_of(session)
            except aiohttp.ClientResponseError as error:
                row.answered[error.status] += 1
                row.failed += error.status != 503
                return
            own = {**OPENED, "authorization": f"Bearer {made['token']}"}
            async with session.post(f"/envs/coin/episodes/{made['episode']}/mcp", json=called(), headers=own) as answer:
                await answer.read()
            row.answered[answer.status] += 1
            row.failed += answer.status != 200

    for result in await asyncio.gather(*(one() for _ in range(count)), return_exceptions=True):
        row.hung += isinstance(result, TimeoutError)
        row.failed += isinstance(result, Exception) and not isinstance(result, TimeoutError)


@asynccontextmanager
async def client(server: Server) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of the server."""
    limits = aiohttp.ClientTimeout(total=ANSWER_S)
    headers = {"accept": "application/json"}
    base = f"http://127.0.0.1:{server.port}"
    async with aiohttp.ClientSession(base, timeout=limits, headers=headers) as session:
        yield session


async def episode_of(session: aiohttp.ClientSession) -> dict[str, Any]:
    """Create an episode."""
    given = {"Authorization": f"Bearer {TOKEN}"}
    async with session.post("/envs/coin/episodes", json={"seed": 1}, headers=given, raise_for_status=True) as answer:
        made: dict[str, Any] = await answer.json()
    return made


async def watched(server: Server, row: Row, attack: Awaitable[None]) -> None:
    """Run the attack, and meanwhile ask for the server's health."""
    before, logged = server.megabytes, server.log.stat().st_size
    done = threading.Event()

    def watch() -> None:  # in a thread, so that it does not wait for the attackers
        while not done.wait(0.02):
            asked = time.monotonic()
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=ANSWER_S)
            try:
                connection.request("GET", "/healthz")
                row.health_refused += connection.getresponse().status != 200
            except (OSError, http.client.HTTPException):
                row.health_refused += 1
            finally:
                connection.close()
            row.health_ms = max(row.health_ms, 1000 * (time.monotonic() - asked))

    watching = asyncio.create_task(asyncio.to_thread(watch))
    try:
        await attack
    finally:
        done.set()
        await watching
    log = server.log.read_bytes()[logged:]
    row.tracebacks, row.log_kilobytes = log.count(b"Traceback"), len(log) // 1024
    row.megabytes = server.megabytes - before


Attack = Callable[[Server, Row, int, int], Coroutine[Any, Any, None]]
"""Takes a server, a row, the number of requests, and a seed."""
# consecutive attacks on the same kind of server share one process
ATTACKS: dict[str, tuple[Attack, Callable[[Place, int | None], Server], int | None]] = {
    "malformed requests": (fuzz, Place.serve, None),
    "bytes that are no HTTP": (wire, Place.serve, None),
    "expensive bodies": (expensive, Place.serve, None),
    "malformed messages, websocket": (fuzz_websocket, Place.serve, None),
    "recorder: malformed requests": (fuzz_recorder, Place.record, None),
    "recorder: expensive bodies": (expensive_recorder, Place.record, None),
    f"half-sent requests, {FILES} files": (half_sent, Place.serve, FILES),
    f"agents at once, {FILES} files": (sessions, Place.serve, FILES),
}


@contextmanager
def placed(code: Path | None) -> Iterator[Place]:
    """A new folder and database, removed afterwards."""
    home = Path(tempfile.mkdtemp(prefix="dreamgym-fuzz-"))
    home.chmod(0o711)
    database = EmbeddedServer.start(home / "postgres")
    try:
        yield Place(home, database.dsn, code)
    finally:
        database.release()
        shutil.rmtree(home, ignore_errors=True)


def table(rows: list[Row]) -> Iterator[str]:
    """Lines of the rows as a Markdown table."""
    head = ("attack", "requests", "answered", "failed", "hung", "tracebacks", "log kB", "health, ms", "health refused")
    yield f"| {' | '.join(head)} | memory, MB |"
    yield "|---" * (len(head) + 1) + "|"
    for row in rows:
        answered = ", ".join(f"{count} × {status or 'closed'}" for status, count in sorted(row.answered.items()))
        yield (
            f"| {row.attack} | {row.requests} | {answered} | {row.failed} | {row.hung} | {row.tracebacks} | "
            f"{row.log_kilobytes} | {row.health_ms:.0f} | {row.health_refused} | {row.megabytes:+.0f} |"
        )


def main() -> None:
    """Attack, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--code", type=Path, help="checkout of the attacked servers; default: the installed packages")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    counts: dict[Attack, int] = {
        fuzz: given.requests,
        wire: given.requests // 10,
        fuzz_websocket: given.requests // 10,
        fuzz_recorder: given.requests // 10,
        half_sent: 400,
        sessions: given.sessions,
    }
    rows = []
    with placed(given.code) as place:
        for (start, files), attacks in groupby(ATTACKS.items(), lambda item: item[1][1:]):
            server = start(place, files)
            try:
                for name, (attack, *_) in attacks:
                    row = Row(name)
                    asyncio.run(watched(server, row, attack(server, row, counts.get(attack, 0), given.seed)))
                    rows.append(row)
                    print(f"{name}: {row.requests} requests", file=sys.stderr, flush=True)
            finally:
                server.stop()
    print(
        json.dumps([{**vars(row), "answered": dict(row.answered)} for row in rows])
        if given.json
        else "\n".join(table(rows))
    )


if __name__ == "__main__":
    main()
