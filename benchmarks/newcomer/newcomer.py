"""Take a newcomer's way from an empty folder to a trained agent of their own, and measure the time of each stage.

    python3 benchmarks/newcomer/newcomer.py             # installs into a new virtual environment first
    python3 benchmarks/newcomer/newcomer.py .venv/bin   # uses the programs of that folder

It needs only a package index. The other files of this folder are the newcomer's own. The commands are those of the
README, docs/recording.md, docs/howto/environment.md and docs/training.md.
"""

from __future__ import annotations

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

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
TINY = ["--policy", "tiny", "--steps", "2", "--groups", "2", "--group-size", "4", "--probe", "0"]


class Newcomer:
    """One newcomer with a folder, programs and a home of their own."""

    def __init__(self, folder: Path, programs: Path | None) -> None:
        self.folder = folder
        self.programs = programs or folder / "venv" / "bin"
        self.environment = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"}
        self.environment.setdefault("DREAMGYM_HOME", str(folder / "dreamgym"))

    def install(self) -> None:
        """Install as in the quickstart."""
        venv.create(self.folder / "venv", with_pip=True)
        subprocess.run(
            [self.programs / "pip", "install", "--quiet", "-c", "constraints.txt", ".[demo]"], cwd=PROJECT, check=True
        )

    def run(self, *command: str) -> str:
        """Run a command; return what it prints. If it fails, exit with all of its output."""
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        return done.stdout

    @contextmanager
    def serving(self, *command: str) -> Iterator[str]:
        """Start a command; yield the URL that it prints first. At the end, send it a Ctrl-C."""
        process = subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True, process_group=0
        )
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)

    def record_and_simulate(self) -> None:
        """Record an MCP server under its client, and check that the client gets the same answers from a simulation."""
        with self.serving("dreamgym", "record", "stock", "--out", "stock/", "--port", "0", "--", *server()) as url:
            real = self.run("python", str(HERE / "stock_client.py"), url)
        with self.serving("dreamgym", "serve", "stock/", "--model", "nearest", "--port", "0") as url:
            simulated = self.run("python", str(HERE / "stock_client.py"), url)
        if simulated != real:
            sys.exit(f"the simulation answers\n{simulated}and the real server\n{real}")

    def play_own_environment(self) -> None:
        """Check and play the newcomer's environment, and play the simulation made from the recorded play."""
        doors = f"{HERE / 'doors.py'}:doors"
        self.run("dreamgym", "env", "doctor", doors)
        self.run("dreamgym", "collect", doors, "--agent", "random", "--episodes", "60")
        self.run("dreamgym", "play", doors, "--agent", "random", "--against", "real")
        print(self.run("dreamgym", "play", doors, "--agent", "random", "--against", "dream", "--model", "nearest"))

    def train_own_agent(self) -> None:
        """Train the policy behind the newcomer's agent in the simulation, and measure it in the real environment."""
        doors, agent = f"{HERE / 'doors.py'}:doors", f"{HERE / 'agent.py'}:play"
        self.run("dreamgym", "train", doors, "--agent", agent, "--model", "nearest", *TINY, "--out", "run")
        print(self.run("dreamgym", "eval", doors, "--policy", "run/policy", "--agent", agent, "--against", "real"))


def server() -> list[str]:
    return ["python", str(HERE / "stock_server.py")]


def main(programs: Path | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # as root, PostgreSQL runs as a user of its own
        newcomer = Newcomer(Path(folder), programs)
        stages = {
            "the first answer: dreamgym demo --quick": lambda: newcomer.run("dreamgym", "demo", "--quick"),
            "an MCP server recorded and simulated": newcomer.record_and_simulate,
            "an environment of one's own, real and simulated": newcomer.play_own_environment,
            "an agent of one's own trained and measured": newcomer.train_own_agent,
        }
        if programs is None:
            stages = {"pip install -c constraints.txt '.[demo]'": newcomer.install, **stages}
        start = time.monotonic()
        for name, stage in stages.items():
            began = time.monotonic()
            stage()
            print(f"{time.monotonic() - began:6.1f} s  {name}", flush=True)
        print(f"{time.monotonic() - start:6.1f} s  in all")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute() if sys.argv[1:] else None)
