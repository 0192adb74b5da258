"""The server and the store of a run, which bring themselves back when they were killed or restarted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from dreamgym_server.archive import stored_as, trajectory_of

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import StoreError
from dreamgym.replay.postgres import Store
from dreamgym.runs.console import say
from dreamgym.runs.server_process import ServerProcess
from dreamgym.types import Trajectory


@dataclass
class ServerAndStore:
    """A running server, and the store that it shares with the trainer."""

    spec: EnvironmentSpec
    store: Store
    server: ServerProcess
    _since: str | None = field(default=None, init=False)
    """When the database that was last seen had started."""

    async def begin(self) -> None:
        """What goes away from now on is noticed."""
        self._since = await self.store.database.started_at()

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
        try:
            since = await self.store.database.started_at()
        except StoreError:
            since = None  # it does not answer
        if since != self._since:
            say("the database went away; waiting for it")
            await self.store.recover()
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
        found = await self.store.episodes.examples(self.spec.name, run, iteration, most)
        played = [(episode.group or "", trajectory_of(episode, self.spec)) for episode in found]
        return [(group, trajectory) for group, trajectory in played if trajectory is not None]
