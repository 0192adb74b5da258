"""What practice is backed by: a server and a store that bring themselves back, or sessions in this process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from dreamgym_server.archive import stored_as, trajectory_of
from dreamgym_server.local import LocalEnvironment
from dreamgym_server.sessions import Episodes
from dreamgym_server.sources import DreamWorlds, RealWorlds, Worlds

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
    """An environment whose episodes go to a store, and whether its database was restarted."""

    spec: EnvironmentSpec
    store: Store
    _since: str | None = field(default=None, init=False)
    """When the database that was last seen had started."""

    async def begin(self) -> None:
        """Notice what goes away from now on."""
        self._since = await self.store.database.started_at()

    async def _is_restarted(self) -> bool:
        """Whether the database went away since `begin`; if so, wait until it answers. Raises StoreError."""
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
class ServerAndStore(_Watched):
    """A running server, and the store that it shares with the trainer."""

    server: ServerProcess

    async def recover(self) -> bool:
        """Bring back what went away since this was last asked; whether anything had.

        The server is started anew in both cases: it ends in order, so that nothing of the time before comes later.

        Raises:
            EnvironmentUnavailable: the server does not come back.
            StoreError: the database does not.
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

    async def take_back(self, run: str, iteration: int) -> int:
        """Forget what a run stored of an iteration and of later ones; the real steps that were taken in them.

        Episodes of the iteration before, which a server that was killed still held, are stored.
        """
        for episode in await self.store.episodes.unstored(self.spec.name, run, iteration - 1):
            if (trajectory := stored_as(episode, self.spec)) is not None:
                await self.store.buffer.add([trajectory])
        return await self.store.buffer.take_back(self.spec.name, run, iteration)

    async def tiers(self, run: str, iteration: int) -> dict[str, int]:
        """How many steps of an iteration each tier answered."""
        return await self.store.episodes.tiers(self.spec.name, run, iteration)

    async def examples(self, run: str, iteration: int, most: int) -> list[tuple[str, Trajectory]]:
        """Rollouts of an iteration, one of each of its first groups, with the names of the groups."""
        return rollouts_of(await self.store.episodes.examples(self.spec.name, run, iteration, most), self.spec)


@dataclass
class InProcess(_Watched):
    """The sessions of a server without the server: episodes of this process, whose trajectories the store keeps.

    Running episodes are in memory only. An update that is cut off is played again, so nothing is lost with them.
    """

    episodes: Episodes
    held: MemoryEpisodeStore
    _last: Sequence[Episode] = field(default=(), init=False)
    """The episodes of the last update. All are over."""

    def environment(self, version: int, group: str) -> LocalEnvironment:
        """One to play in. The arguments are stored with each of its episodes."""
        return LocalEnvironment(self.episodes, self.spec.name, group=group, policy_version=version)

    async def recover(self) -> bool:
        """Wait for what the last update stored; True if the database had gone away meanwhile, and is back.

        Raises:
            StoreError: the database does not come back.
        """
        await self.episodes.archived()
        self._last = self.held.clear()
        if not await self._is_restarted():
            return False
        await self.begin()
        say("the database went away in the middle of an update, which is played again")
        return True

    async def take_back(self, run: str, iteration: int) -> int:
        """Forget what a run stored of an iteration and of later ones; the real steps that were taken in them."""
        await self.episodes.archived()
        self.held.clear()
        return await self.store.buffer.take_back(self.spec.name, run, iteration)

    async def tiers(self, run: str, iteration: int) -> dict[str, int]:
        """How many steps of the last update each tier answered."""
        counts = Counter(step.provenance.tier.value for one in self._last for step in one.transitions)
        return dict(sorted(counts.items()))

    async def examples(self, run: str, iteration: int, most: int) -> list[tuple[str, Trajectory]]:
        """Rollouts of the last update, one of each of its first groups, with the names of the groups."""
        first: dict[str, Episode] = {}
        for episode in sorted(self._last, key=lambda one: (one.group or "", one.id)):
            first.setdefault(episode.group or "", episode)
        return rollouts_of(list(first.values())[:most], self.spec)


def rollouts_of(episodes: Sequence[Episode], spec: EnvironmentSpec) -> list[tuple[str, Trajectory]]:
    """The trajectories of finished episodes, with the names of their groups."""
    played = [(episode.group or "", trajectory_of(episode, spec)) for episode in episodes]
    return [(group, trajectory) for group, trajectory in played if trajectory is not None]


@asynccontextmanager
async def in_process(spec: EnvironmentSpec, config: TrainConfig, store: Store) -> AsyncIterator[InProcess]:
    """The sessions of this process, in the environment that the settings ask for."""
    async with AsyncExitStack() as stack:
        worlds: Worlds
        if config.against is Against.REAL:
            worlds = RealWorlds(spec, real_of(spec).create)
        else:
            worlds = await _dream(spec, config, store, stack)
        held = MemoryEpisodeStore()
        episodes = Episodes({spec.name: worlds}, held, store.buffer)
        await stack.enter_async_context(episodes.running())
        yield InProcess(spec, store, episodes, held)


async def _dream(spec: EnvironmentSpec, config: TrainConfig, store: Store, stack: AsyncExitStack) -> DreamWorlds:
    """The dream of what is stored. A model that does not learn from dreams sees recordings only: memory holds those."""
    predictions = None if Part.CACHE in config.without else store.predictions
    model = load_model(config.model, env=spec.name, predictions=predictions)
    stack.push_async_callback(model.close)
    buffer: ReplayBuffer = store.buffer
    if not model.learns_from_dreams:
        buffer = MemoryBuffer(load_encoder(None))
        await buffer.add(await store.buffer.trajectories(spec.name))
    calibration = None if config.calibration is None else Calibration.load(config.calibration)
    return DreamWorlds(spec, model, buffer, without=frozenset(config.without), calibration=calibration)
