"""How long a new user waits: from `pip install` to an agent answered by the simulation of their own server.

    python benchmarks/studies/mirror/first_answer.py

Everything happens in a new virtual environment and with a new home for data. The agent is one the user already has:
it runs in the environment of this script. Its chat model is scripted, so no time here is a language model's thinking.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import run as demonstration
from dreamgym_integrations.models.chat_server import chat_server
from fresh import node
from plans import PLANS, chat_model

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[2]
AGENT = PROJECT / "examples" / "langgraph_create_agent.py"
TASK = "Who leads the Analytical Engine?"
EPISODES = 3


def timed(what: str, since: float) -> float:
    now = time.monotonic()
    print(f"{now - since:6.1f} s  {what}", flush=True)
    return now


@contextmanager
def started(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, process_group=0)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)


def wait_for(url: str) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            with urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    sys.exit(f"{url} did not answer")


async def answered(url: str) -> str:
    """The agent as its own documentation starts it."""
    async with chat_server(chat_model) as chat_url:
        command = [sys.executable, "-W", "ignore", str(AGENT), url, chat_url, TASK]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
    return out.decode().strip()


def main() -> None:
    node()
    with tempfile.TemporaryDirectory() as home:
        binaries, folder = Path(home) / "venv" / "bin", Path(home) / "crm"
        Path(home).chmod(0o755)  # as root, PostgreSQL runs as a user of its own
        environment = {**os.environ, "DREAMGYM_HOME": f"{home}/dreamgym", "HOME": home}
        environment.pop("DREAMGYM_DSN", None)
        start = last = time.monotonic()
        venv.create(Path(home) / "venv", with_pip=True)
        last = timed("python -m venv", last)
        install = [str(binaries / "pip"), "install", "-q", "--no-cache-dir", "-c", "constraints.txt", ".[server]"]
        subprocess.run(install, cwd=PROJECT, check=True)
        last = timed("pip install -c constraints.txt '.[server]'", last)
        record = [str(binaries / "dreamgym"), "record", "memory", "--out", str(folder), "--port", "0", "--"]
        with started([*record, sys.executable, str(HERE / "fresh.py"), "memory"], environment) as recorder:
            assert recorder.stdout is not None
            url = recorder.stdout.readline().strip().removesuffix("/mcp")
            last = timed("dreamgym record …: it listens", last)
            asyncio.run(demonstration.work(url, PLANS["memory"][:EPISODES]))
            last = timed(f"the agent works through {EPISODES} tasks on the real server", last)
        last = timed("the recorder has written the environment folder", last)
        subprocess.run(
            [str(binaries / "dreamgym"), "seed", str(folder), str(folder / "trajectories.jsonl")],
            env=environment,
            check=True,
        )
        last = timed("dreamgym seed … (the database starts for the first time)", last)
        serve = [str(binaries / "dreamgym-serve"), str(folder), "--model", "nearest", "--port", "8765"]
        with started(serve, environment):
            wait_for("http://127.0.0.1:8765/healthz")
            last = timed("dreamgym-serve …: it listens", last)
            answer = asyncio.run(answered("http://127.0.0.1:8765/envs/memory/mcp"))
            timed(f"the agent answers {TASK!r} with {answer!r}", last)
        timed("in all", start)


if __name__ == "__main__":
    main()
