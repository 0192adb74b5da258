"""A counter as a real environment, the same counter as a dream, and real servers for both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import httpx2
from dreamgym_server.app import build
from dreamgym_server.running import running
from dreamgym_server.sources import DreamWorlds, RealWorlds, Worlds
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from dreamgym.dream.model import Prediction, Query
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import EpisodeFinished, StoreError
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.episode_store import Episode, EpisodeStore
from dreamgym.replay.memory import MemoryEpisodeStore
from dreamgym.types import JsonObject, Provenance, StepResult, Task, Tier, ToolCall


@asynccontextmanager
async def told(url: str, **options: Any) -> AsyncIterator[Client]:
    """A client of the SDK that gets reward and end of an episode, as a trainer does."""
    async with (
        httpx2.AsyncClient(headers={"X-DreamGym-Tell": "reward"}, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http), **options) as client,
    ):
        yield client


ADD_TOOL: JsonObject = {
    "name": "add",
    "x-vendor": {"z": 1, "a": [None, 2.5]},
    "description": "Add to the counter; the goal ends the task.",
    "inputSchema": {
        "type": "object",
        "required": ["n"],
        "properties": {"n": {"type": "integer", "minimum": 0}, "a": {"type": "string"}},
        "additionalProperties": False,
    },
    "execution": {"taskSupport": "forbidden"},
}
PEEK_TOOL: JsonObject = {"name": "peek", "inputSchema": {"type": "object"}}


def counter_spec(name: str = "counter", /, **fields: object) -> EnvironmentSpec:
    """A counter that is solved at 10."""
    return EnvironmentSpec.model_validate(
        {
            "name": name,
            "tools_list": {"tools": [ADD_TOOL, PEEK_TOOL], "vendorNote": "kept"},
            "max_steps": 20,
            "ends_itself": True,
            "tasks": [
                Task(id=f"{name}-{i}", env=name, instruction=f"Reach 10, start at {i}.", initial_state=f"count {i}")
                for i in range(3)
            ],
            **fields,
        }
    )


class Someone:
    """A client that is still connected or, if `gone`, has disconnected."""

    def __init__(self, *, gone: bool = False) -> None:
        self.gone = gone

    async def is_disconnected(self) -> bool:
        return self.gone


class CounterEnvironment:
    """The real counter. `salt` is added to its observations, so that a replay with another salt differs."""

    def __init__(self, spec: EnvironmentSpec, salt: str = "") -> None:
        self._spec, self._salt = spec, salt
        self._count: int | None = None
        self.closed = False

    @property
    def tools(self) -> Sequence[JsonObject]:
        return self._spec.tools

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        self._count = int((task.initial_state or "count 0").split()[-1])
        return StepResult(observation=f"count {self._count}{self._salt}")

    async def step(self, action: ToolCall) -> StepResult:
        if self._count is None or self._count >= 10:
            raise EpisodeFinished("over")
        self._count = count_after(self._count, action)
        return StepResult(
            observation=f"count {self._count}{self._salt}",
            reward=1.0 if self._count == 10 else 0.0,
            terminated=self._count >= 10,
        )

    async def close(self) -> None:
        self.closed = True


def count_after(count: int, action: ToolCall) -> int:
    """Value of the counter after the action."""
    n = action.arguments.get("n", 0)
    assert isinstance(n, int)
    return count + n


class CounterModel:
    """An experience model of the counter. `before` is called in every prediction; it may wait, fail or inspect."""

    name = "counter-model"
    demonstrations = 2
    learns_from_dreams = False

    def __init__(self) -> None:
        self.before: Callable[[Query], object] = lambda query: None
        self.asked: list[Query] = []

    async def predict(self, query: Query) -> Prediction:
        self.asked.append(query)
        waiting = self.before(query)
        if waiting is not None:
            await waiting  # type: ignore[misc]
        count = count_after(int(query.state.text.split()[-1]), query.action)
        return Prediction(
            reasoning="it adds up",
            observation=f"count {count}",
            next_state=f"count {count}",
            success=count == 10,
            terminated=count >= 10,
            provenance=Provenance(tier=Tier.MODEL, model=self.name, seed=query.seed),
        )

    async def close(self) -> None:
        pass


class BreakableStore(MemoryEpisodeStore):
    """A store that fails like a lost database while `broken`; its clock is ahead by `later`."""

    broken = False
    later = timedelta()

    def now(self) -> datetime:
        return super().now() + self.later

    async def check(self) -> None:
        self._check()

    async def create(self, episode: Episode, *, idempotency_key: str | None = None) -> Episode:
        self._check()
        return await super().create(episode, idempotency_key=idempotency_key)

    async def load(self, episode_id: str) -> Episode:
        self._check()
        return await super().load(episode_id)

    def _check(self) -> None:
        if self.broken:
            raise StoreError("the database cannot be reached: start it")


class Stage:
    """Servers over one buffer and one episode store; starting a second one is a restart."""

    def __init__(self, buffer: ReplayBuffer, episodes: EpisodeStore) -> None:
        self.buffer, self.episodes = buffer, episodes
        self.model = CounterModel()

    @property
    def breakable(self) -> BreakableStore:
        """The episode store, which must be a `BreakableStore`."""
        assert isinstance(self.episodes, BreakableStore)
        return self.episodes

    def dream(self, spec: EnvironmentSpec | None = None) -> DreamWorlds:
        return DreamWorlds(spec or counter_spec(), self.model, self.buffer)

    def real(self, spec: EnvironmentSpec | None = None, salt: str = "") -> RealWorlds:
        spec = spec or counter_spec()
        return RealWorlds(spec, lambda: CounterEnvironment(spec, salt))

    @asynccontextmanager
    async def serve(
        self, *worlds: Worlds, port: int = 0, **options: Any
    ) -> AsyncIterator[tuple[str, httpx2.AsyncClient]]:
        """A server and an HTTP client of it."""
        app = build(worlds or [self.dream()], self.buffer, self.episodes, **options)
        async with running(app, port=port) as url, httpx2.AsyncClient(base_url=url) as http:
            yield url, http
