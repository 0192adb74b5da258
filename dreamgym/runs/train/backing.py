"""The backing of practice: a server and a store that are restarted if they fail, or sessions in this process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from dreamgym_server.archive import stored_as, trajectory_of
from dreamgym_server.local import LocalEnvironment
from dreamgym_server.sessions import Episodes
from dreamgym_server.sources import DreamWorlds, RealWorlds

from dreamgym.dream.confidence import Calibration
from dreamgym.dream.load import load_model
from dreamgym.dream.model import Part
from dreamgym.embedding import load_encoder
from dreamgym.environment import EnvironmentSpec, real_of
from dreamgym.errors import StoreError
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.episode_store import Episode
from dreamgym.replay.memory import MemoryBuffer, MemoryEpisodeStore
from dreamgym.replay.postgres import Store
from dreamgym.runs.console import say
from dreamgym.runs.opening import Against
from dreamgym.runs.server_process import ServerProcess
from dreamgym.runs.train.config import TrainConfig
from dreamgym.types import Trajectory


@dataclass
class _Watched:
    """An environment whose episodes go to a store, with a check whether the store's database was restarted."""

    spec: EnvironmentSpec
    store: Store
    _since: str | None = field(default=None, init=False)
    """Start time of the database when it was last seen."""

    async def begin(self) -> None:
        """Remember the start time of the database, so that `recover` notices if it goes away from now on."""
        self._since = await self.store.database.started_at()

    async def _is_restarted(self) -> bool:
        """True if the database went away since `begin`. If so, wait until it answers. Raises StoreError."""
        try:
            now = await self.store.database.started_at()
        except StoreError:
            now = None  # it does not answer
        if now == self._since:
            return False
        say("the database went away; waiting for it")
        await self.store.recover()
        return True


@dataclass
class _Stored(_Watched):
    """An environment whose running episodes are in the store, too: what an interrupted update took can be counted."""

    async def take_back(self, run: str, iteration: int) -> int:
        """Delete what a run stored in an iteration and later ones. Return the number of real steps taken in them.

        Episodes of the iteration before are stored if a killed server still held them.
        """
        for episode in await self.store.episodes.unstored(self.spec.name, run, iteration - 1):
            if (trajectory := stored_as(episode, self.spec)) is not None:
                await self.store.buffer.add([trajectory])
        return await self.store.buffer.take_back(self.spec.name, run, iteration)

    async def tiers(self, run: str, iteration: int) -> dict[str, int]:
        """Number of steps of an iteration that each tier answered."""
        return await self.store.episodes.tiers(self.spec.name, run, iteration)

    async def examples(self, run: str, iteration: int, most: int) -> list[tuple[str, Trajectory]]:
        """One rollout of each of the first groups of an iteration, with the names of the groups."""
        return rollouts_of(await self.store.episodes.examples(self.spec.name, run, iteration, most), self.spec)


@dataclass
class ServerAndStore(_Stored):
    """A running server, and the store that it shares with the trainer."""

    server: ServerProcess

    async def recover(self) -> bool:
        """Restart what went away since the last call. Return True if anything had.

        In both cases the server is stopped in order and restarted, so that it stores nothing old later.

        Raises:
            EnvironmentUnavailable: the server does not come back.
            StoreError: the database does not come back.
        """
        gone = []
        code = self.server.exit_code
        if code is not None:
            gone.append(f"the server ended with exit code {code}")
        if await self._is_restarted():
            gone.append("the database went away")
        if not gone:
            return False
        await asyncio.to_thread(self.server.stop)
        await asyncio.to_thread(self.server.start)
        await self.begin()
        say(f"{' and '.join(gone)} in the middle of an update, which is played again")
        return True


@dataclass
class _InProcess(_Watched):
    """A server's sessions without the server."""

    episodes: Episodes

    def environment(self, version: int, group: str) -> LocalEnvironment:
        """A new environment to play in. The arguments are stored with each of its episodes."""
        return LocalEnvironment(self.episodes, self.spec.name, group=group, policy_version=version)

    async def recover(self) -> bool:
        """Wait until the last update is stored. Return True if the database went away meanwhile and is back.

        Raises:
            StoreError: the database does not come back.
        """
        await self.episodes.archived()
        if not await self._is_restarted():
            return False
        await self.begin()
        say("the database went away in the middle of an update, which is played again")
        return True


@dataclass
class RealInProcess(_InProcess, _Stored):
    """Sessions in the real environment: each step is stored when it is taken."""

    async def take_back(self, run: str, iteration: int) -> int:
        """See `_Stored.take_back`. What this process still has to store is stored first."""
        await self.episodes.archived()
        return await super().take_back(run, iteration)


@dataclass
class DreamInProcess(_InProcess):
    """Sessions in a dream: episodes of this process, whose trajectories are stored.

    Running episodes are in memory only. An interrupted update is played again, so nothing is lost with them.
    """

    held: MemoryEpisodeStore
    _last: Sequence[Episode] = field(default=(), init=False)
    """The episodes of the last update. All are over."""

    async def recover(self) -> bool:
        """See `_InProcess.recover`. The episodes held until now are those of the last update."""
        await self.episodes.archived()
        self._last = self.held.clear()
        return await super().recover()

    async def take_back(self, run: str, iteration: int) -> int:
        """Delete what a run stored in an iteration and later ones. Return the number of real steps taken in them."""
        await self.episodes.archived()
        self.held.clear()
        return await self.store.buffer.take_back(self.spec.name, run, iteration)

    async def tiers(self, run: str, iteration: int) -> dict[str, int]:
        """Number of steps of the last update that each tier answered."""
        counts = Counter(step.provenance.tier.value for one in self._last for step in one.transitions)
        return dict(sorted(counts.items()))

    async def examples(self, run: str, iteration: int, most: int) -> list[tuple[str, Trajectory]]:
        """One rollout of each of the first groups of the last update, with the names of the groups."""
        first: dict[str, Episode] = {}
        for episode in sorted(self._last, key=lambda one: (one.group or "", one.id)):
            first.setdefault(episode.group or "", episode)
        return rollouts_of(list(first.values())[:most], self.spec)


Backing = ServerAndStore | RealInProcess | DreamInProcess


def rollouts_of(episodes: Sequence[Episode], spec: EnvironmentSpec) -> list[tuple[str, Trajectory]]:
    """The trajectories of finished episodes, with the names of their groups."""
    played = [(episode.group or "", trajectory_of(episode, spec)) for episode in episodes]
    return [(group, trajectory) for group, trajectory in played if trajectory is not None]


@asynccontextmanager
async def in_process(
    spec: EnvironmentSpec, config: TrainConfig, store: Store
) -> AsyncIterator[RealInProcess | DreamInProcess]:
    """Open sessions in this process, in the environment that the settings ask for."""
    if config.against is Against.REAL:
        episodes = Episodes({spec.name: RealWorlds(spec, real_of(spec).create)}, store.episodes, store.buffer)
        async with episodes.running():
            yield RealInProcess(spec, store, episodes)
        return
    async with AsyncExitStack() as stack:
        dream, held = await _dream(spec, config, store, stack), MemoryEpisodeStore()
        episodes = Episodes({spec.name: dream}, held, store.buffer)
        await stack.enter_async_context(episodes.running())
        yield DreamInProcess(spec, store, episodes, held)


async def _dream(spec: EnvironmentSpec, config: TrainConfig, store: Store, stack: AsyncExitStack) -> DreamWorlds:
    """The dream of what is stored. If its model does not learn from dreams, memory holds the recordings alone."""
    predictions = None if Part.CACHE in config.without else store.predictions
    model = load_model(config.model, env=spec.name, predictions=predictions)
    stack.push_async_callback(model.close)
    buffer: ReplayBuffer = store.buffer
    if not model.learns_from_dreams:
        buffer = MemoryBuffer(load_encoder())
        await buffer.add(await store.buffer.trajectories(spec.name))
    calibration = None if config.calibration is None else Calibration.load(config.calibration)
    return DreamWorlds(spec, model, buffer, without=frozenset(config.without), calibration=calibration)
