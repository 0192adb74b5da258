"""A real environment made as slow as one behind the web: few calls at a time, and some seconds for each.

    dreamgym experiment examples/experiments/cost-coin.toml

Calls wait for a free session in the order of their arrival; the start of an episode does not wait. The default is 4
sessions and 0.5 s per call on the game `coin`. Other values are options of an environment folder:

    [real]
    adapter = "benchmarks/studies/slowed.py:slowed"
    name = "mapreader"
    seconds = 2.0
    sessions = 4
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Sequence
from threading import Lock

from pydantic import Field, ValidationError

from dreamgym.environment import Environment, EnvironmentSpec, RealEnvironment, first_reason, load_real
from dreamgym.errors import InvalidInput
from dreamgym.types import Frozen, JsonObject, StepResult, Task, ToolCall


class Slowness(Frozen):
    """Options of the slowed environment."""

    name: str = "coin"
    """The environment that is slowed."""
    seconds: float = Field(default=0.5, ge=0)
    """Seconds that each call takes."""
    sessions: int = Field(default=4, ge=1)
    """Calls at a time, over all episodes of the process."""


class Sessions:
    """Computes when each call is answered if at most `count` are served at a time."""

    def __init__(self, count: int, seconds: float) -> None:
        self._seconds = seconds
        self._free = [float("-inf")] * count
        self._lock = Lock()

    def answered(self, now: float) -> float:
        """When a call that comes at time `now` is answered; the first to come is the first served."""
        with self._lock:
            done = max(now, heapq.heappop(self._free)) + self._seconds
            heapq.heappush(self._free, done)
        return done


class SlowedEnvironment:
    """An environment whose steps wait for a session."""

    def __init__(self, environment: Environment, sessions: Sessions) -> None:
        self._environment, self._sessions = environment, sessions

    @property
    def tools(self) -> Sequence[JsonObject]:
        """The tools of the environment."""
        return self._environment.tools

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        """Start, without waiting."""
        return await self._environment.reset(task, seed=seed)

    async def step(self, action: ToolCall) -> StepResult:
        """Wait for a session and for the seconds of the call, then act."""
        now = time.monotonic()
        await asyncio.sleep(self._sessions.answered(now) - now)
        return await self._environment.step(action)

    async def close(self) -> None:
        """Close the environment."""
        await self._environment.close()


class Slowed:
    """The real environment with its tasks and behaviours, but with slow steps."""

    def __init__(self, real: RealEnvironment, how: Slowness) -> None:
        self._real = real
        self._sessions = Sessions(how.sessions, how.seconds)
        self.behaviours = real.behaviours
        self.spec: EnvironmentSpec = real.spec.model_copy(
            update={"adapter": f"{__file__}:slowed", "options": how.model_dump()}
        )

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of the environment."""
        return self._real.tasks(split)

    def create(self) -> Environment:
        """A new environment; all share the sessions."""
        return SlowedEnvironment(self._real.create(), self._sessions)


def slowed(options: JsonObject) -> Slowed:
    """Load `benchmarks/studies/slowed.py:slowed`. Raises InvalidInput for an option that it does not know."""
    try:
        how = Slowness.model_validate(options)
    except ValidationError as error:
        raise InvalidInput(f"a slowed environment: {first_reason(error)}") from error
    return Slowed(load_real(how.name), how)
