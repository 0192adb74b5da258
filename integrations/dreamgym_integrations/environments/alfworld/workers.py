"""Worker processes that play ALFWorld's games, each for many episodes in turn.

The engine blocks and may die, so it is kept out of this process. An episode belongs to one worker. This process keeps
the episode's commands. It replays them if the worker died and was replaced, or dropped the episode to make room. So the
death of a worker fails only the call that was waiting for an answer.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib.util
import itertools
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import IO, cast

from pydantic import JsonValue

import dreamgym
import dreamgym_integrations
from dreamgym.errors import EnvironmentUnavailable, MissingPackage
from dreamgym.types import JsonObject

LIMIT_S = 120.0
"""A worker that is silent for longer is killed. Building the largest kitchen takes 10 seconds on a busy machine."""
MODULE = "dreamgym_integrations.environments.alfworld.engine"


class Worker:
    """One worker process, started by the first request. One thread sends it one request at a time."""

    def __init__(self, folder: Path) -> None:
        self.episodes = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._folder = folder
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="alfworld")
        self._rest = b""
        self._errors: IO[bytes]

    async def ask(self, request: JsonObject) -> JsonObject:
        """Send a request and return its answer. Raises EnvironmentUnavailable, MissingPackage."""
        return await asyncio.wrap_future(self._thread.submit(self._ask, request))

    def tell(self, request: JsonObject) -> None:
        """Send a request without waiting for the answer; does nothing if there is no process."""
        if self.process is not None:
            self._thread.submit(self._ask, request)

    def stop(self) -> None:
        """End the process; the next request starts another."""
        process, self.process, self._rest = self.process, None, b""
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, self._errors):
                cast("IO[bytes]", stream).close()

    def _ask(self, request: JsonObject) -> JsonObject:
        if self.process is None or self.process.poll() is not None:
            self.stop()
            self._start()
        assert self.process is not None
        stdin = cast("IO[bytes]", self.process.stdin)
        try:
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
            answer = cast("JsonObject", json.loads(self._line()))
        except (OSError, ValueError) as error:
            self.stop()
            raise EnvironmentUnavailable(f"an ALFWorld worker process ended during a step: {error}") from error
        if "error" in answer:
            raise EnvironmentUnavailable(f"ALFWorld's engine failed: {answer['error']}")
        return answer

    def _line(self) -> bytes:
        assert self.process is not None
        stdout = cast("IO[bytes]", self.process.stdout).fileno()
        ready = select.poll()
        ready.register(stdout, select.POLLIN)
        while b"\n" not in self._rest:
            if not ready.poll(1000 * LIMIT_S):
                raise OSError(f"no answer within {LIMIT_S:.0f} seconds")
            more = os.read(stdout, 1 << 16)
            if not more:
                raise OSError(f"its output ended; last line on stderr: {self._last_words()}")
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _last_words(self) -> str:
        """The last line that the process wrote to stderr, which shows why it ended."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "none")

    def _start(self) -> None:
        if importlib.util.find_spec("alfworld") is None or importlib.util.find_spec("textworld") is None:
            raise MissingPackage("ALFWorld", "alfworld")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        # Without a session of its own, Ctrl-C would end it before a run has saved. It ends when its input ends. With a
        # fixed hash seed the planner finds the same plan in every process. -P keeps the current folder off the path: a
        # file called alfworld.py there would hide the package.
        ours = [str(Path(str(package.__file__)).parents[1]) for package in (dreamgym, dreamgym_integrations)]
        inherited = os.environ.get("PYTHONPATH")
        path = os.pathsep.join([*ours, inherited] if inherited else ours)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path},
        )


class Workers:
    """The workers of one cache folder."""

    def __init__(self, folder: Path, count: int) -> None:
        self.all: Sequence[Worker] = [Worker(folder) for _ in range(count)]
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        atexit.register(self.stop)

    def take(self) -> tuple[Worker, int]:
        """The worker with the fewest episodes, and a number for a new episode."""
        with self._lock:
            worker = min(self.all, key=lambda worker: worker.episodes)
            worker.episodes += 1
            return worker, next(self._numbers)

    def give_back(self, worker: Worker, number: int) -> None:
        """Release an episode that is over."""
        with self._lock:
            worker.episodes -= 1
        worker.tell({"do": "close", "player": number})

    async def plan(self, problem: str) -> list[str]:
        """The planner's commands for a game, from its start to its goal; empty if it finds no plan."""
        worker, number = self.take()
        try:
            commands = (await worker.ask({"do": "plan", "problem": problem}))["plan"]
        finally:
            self.give_back(worker, number)
        assert isinstance(commands, list)
        return [str(command) for command in commands]

    def stop(self) -> None:
        """End all processes."""
        for worker in self.all:
            worker.stop()


@cache
def workers(folder: Path, count: int) -> Workers:
    """The workers that all environments of this process share."""
    return Workers(folder, count)


class WorkerEpisode:
    """One game in a worker. It is replayed if the worker does not know it any more."""

    def __init__(self, pool: Workers, problem: str) -> None:
        self._pool = pool
        self._problem = problem
        self._said: list[str] = []
        self._place: tuple[Worker, int] | None = None

    async def begin(self) -> JsonObject:
        """Start the episode, or replay it to its current step; returns the worker's answer."""
        self._place = self._place or self._pool.take()
        worker, number = self._place
        said: list[JsonValue] = [*self._said]
        return await worker.ask({"do": "start", "player": number, "problem": self._problem, "said": said})

    async def ask(self, request: JsonObject) -> JsonObject:
        """Send a request about this episode and return its answer. Replays the episode first if that is needed."""
        assert self._place is not None
        worker, number = self._place
        answer = await worker.ask({**request, "player": number})
        if answer.get("unknown"):
            await self.begin()
            answer = await worker.ask({**request, "player": number})
        return answer

    async def step(self, command: str) -> JsonObject:
        """Give one command to the game."""
        answer = await self.ask({"do": "step", "command": command})
        self._said.append(command)
        return answer

    def end(self) -> None:
        """Release the episode's place in its worker."""
        place, self._place = self._place, None
        if place is not None:
            self._pool.give_back(*place)
