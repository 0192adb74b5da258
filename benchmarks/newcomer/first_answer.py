"""Measure how long a newcomer waits from `git clone` to the first simulated answer of their own MCP server.

    python benchmarks/newcomer/first_answer.py

The commands are those of docs/recording.md, in a clone of this checkout's last commit, with a new virtual environment,
a new home and no cache. Each stage has its wall time and the CPU time of all descendants of this process. PostgreSQL is
not one of them, and is not counted. The last row shows how busy the machine was.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from newcomer import HERE, PROJECT, Newcomer

from dreamgym.evaluation.stopwatch import cpu_s


class Stages:
    """The times of all stages, which are the rows of the table."""

    def __init__(self) -> None:
        self.wall_s: dict[str, float] = {}
        self.cpu_s: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began, cpu = time.monotonic(), _cpu_s()
        yield
        self.wall_s[name] = self.wall_s.get(name, 0) + time.monotonic() - began
        self.cpu_s[name] = self.cpu_s.get(name, 0) + _cpu_s() - cpu

    def table(self) -> Iterator[str]:
        """Lines of the table as Markdown."""
        yield "| | wall, s | CPU, s |"
        yield "|---|---|---|"
        for name, wall_s in self.wall_s.items():
            yield f"| {name} | {wall_s:.1f} | {self.cpu_s[name]:.1f} |"
        for what, left_out in (("in all", set[str]()), ("without pip", {PIP})):
            wall_s, used_s = (
                sum(time_s for name, time_s in times.items() if name not in left_out)
                for times in (self.wall_s, self.cpu_s)
            )
            yield f"| **{what}** | **{wall_s:.1f}** | **{used_s:.1f}** |"
        yield f"| processes that ran or waited for a core, mean of 5 minutes | {os.getloadavg()[1]:.1f} | |"


PIP = "`pip install -c constraints.txt '.[server]'`"


def _cpu_s() -> float:
    """CPU seconds of the descendants of this process, including those that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime + cpu_s() - time.process_time()


def main() -> None:
    """Run all stages, and print the table."""
    with tempfile.TemporaryDirectory() as home, ExitStack() as server:
        Path(home).chmod(0o755)  # as root, PostgreSQL runs as a user of its own
        newcomer, stages = Newcomer(Path(home), None), Stages()
        newcomer.environment["HOME"] = home
        for ours in ("DREAMGYM_DSN", "DREAMGYM_ENCODER", "PYTHONPATH"):
            newcomer.environment.pop(ours, None)
        with stages("`git clone`"):
            newcomer.run("git", "clone", "--quiet", str(PROJECT), "dreamgym")
        with stages("`python3 -m venv`"):
            newcomer.run(sys.executable, "-m", "venv", "venv")
        newcomer.folder /= "dreamgym"
        with stages(PIP):
            newcomer.run("pip", "install", "--quiet", "--no-cache-dir", "-c", "constraints.txt", ".[server]")
        with stages("`dreamgym record ./stock -- …` listens"):
            record = ("dreamgym", "record", "./stock", "--port", "0", "--", "python", str(HERE / "stock_server.py"))
            url = server.enter_context(newcomer.serving(*record))
        with stages("the agent makes three calls of the real server"):
            real = newcomer.run("python", str(HERE / "stock_client.py"), url)
        with stages("Ctrl-C: the folder is written"):
            server.close()
        with stages("`dreamgym label ./stock last …`"):
            newcomer.run("dreamgym", "label", "./stock", "last", "--task", "Take two ropes.", "--success")
        with stages("`dreamgym serve ./stock --model nearest` listens; the database is made"):
            url = server.enter_context(
                newcomer.serving("dreamgym", "serve", "./stock", "--model", "nearest", "--port", "0")
            )
        with stages("the agent makes the same three calls of the simulation"):
            simulated = newcomer.run("python", str(HERE / "stock_client.py"), url)
        print("\n".join(stages.table()))
        if simulated != real:
            sys.exit(f"the simulation answers\n{simulated}and the real server\n{real}")


if __name__ == "__main__":
    main()
