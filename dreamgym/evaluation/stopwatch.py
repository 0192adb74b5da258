"""Times an environment: wall time of each reset and step, CPU time of each reset.

CPU time is that of this process and of all its descendants, a Java machine or a browser for instance.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from dreamgym.environment import Environment
from dreamgym.types import JsonObject, StepResult, Task, ToolCall


class Stopwatch:
    """Wraps an environment and measures its times."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.task: Task | None = None
        self.resets_s: list[float] = []
        self.resets_cpu_s: list[float] = []
        self.steps_s: list[float] = []

    @property
    def tools(self) -> Sequence[JsonObject]:
        """The wrapped environment's tools."""
        return self._environment.tools

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        """Start a task."""
        cpu, began = cpu_s(), time.perf_counter()
        first = await self._environment.reset(task, seed=seed)
        self.resets_s.append(time.perf_counter() - began)
        self.resets_cpu_s.append(cpu_s() - cpu)
        self.task = task
        return first

    async def step(self, action: ToolCall) -> StepResult:
        """Act once."""
        began = time.perf_counter()
        result = await self._environment.step(action)
        self.steps_s.append(time.perf_counter() - began)
        return result

    async def close(self) -> None:
        """Close the wrapped environment."""
        await self._environment.close()


def cpu_s() -> float:
    """CPU seconds of this process and of all its living descendants."""
    ticks = os.sysconf("SC_CLK_TCK")
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        parents[int(folder.name)] = int(fields[1])
        used[int(folder.name)] = int(fields[11]) + int(fields[12])
    own = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return time.process_time() + sum(used[pid] for pid in own - {os.getpid()}) / ticks
