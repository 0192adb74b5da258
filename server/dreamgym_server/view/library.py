"""All episodes that one page shows, from a store and from a run folder, behind one set of methods."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

from dreamgym.errors import DreamGymError, InvalidInput, StoreError, UnknownEpisode
from dreamgym.evaluation.parting import paired_calls, parting
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.listing import EpisodeFilter, EpisodePage, EpisodeSummary
from dreamgym.replay.postgres.forget import Held, held
from dreamgym.replay.postgres.listing import PLACE, EpisodeStep, Recorded, StoredEpisodes
from dreamgym.replay.postgres.pairs import StoredPairs, TaskPair
from dreamgym.types import StopReason, Transition
from dreamgym_server.view.folders import RunFolder, strip
from dreamgym_server.view.parameters import whole

FIRST_WINDOW = 32
"""Number of steps that are compared first."""


class Parting(NamedTuple):
    """A dream and a real episode of one task."""

    dream: EpisodeSummary
    real: EpisodeSummary
    at: int | None
    """Number of the first call, counted from 1, at which they differ; None: they are the same."""
    same_call: bool
    """True if they differ in the answer to the same call."""
    over: Literal["dream", "real"] | None
    """The episode that is over where they differ, while the other goes on; None: both made a call."""

    @property
    def rank(self) -> int:
        """First what the dream did otherwise, then what the agents did otherwise, then what is the same."""
        if self.at is None:
            return 2 if self.dream.success == self.real.success else 0
        has_stopped = self.over == "dream" and self.dream.stop_reason is not StopReason.FINISHED
        return 0 if self.same_call or has_stopped else 1


@dataclass(frozen=True)
class Library:
    """The sources of the episodes that the page shows."""

    store: StoredEpisodes | None = None
    folder: RunFolder | None = None
    buffer: ReplayBuffer | None = None
    """The store's replay buffer, which finds transitions by likeness; None if its encoder is not available."""
    absent: str = ""
    """Why there is no store; empty if there is one, or if none was asked for."""

    async def environments(self) -> list[Held]:
        """The store's contents by environment."""
        return [] if self.store is None else await held(self.store.database)

    async def page(self, chosen: EpisodeFilter, place: str, *, after: str | None, limit: int) -> EpisodePage:
        """Episodes of the store, of the run folder or of one of its files, newest first. Raises InvalidInput."""
        if place == PLACE:
            return await self.stored().page(chosen, after=after, limit=limit)
        first = whole({"after": after or ""}, "after", 0)
        file = None if place == "folder" else place
        return await asyncio.to_thread(self._folder().page, chosen, file=file, first=first, limit=limit)

    async def summary(self, place: str, episode: str) -> EpisodeSummary:
        """One episode without its steps. Raises UnknownEpisode."""
        if place == PLACE:
            return await self.stored().summary(episode)
        return await asyncio.to_thread(self._folder().summary, place, episode)

    async def strip(self, one: EpisodeSummary) -> list[EpisodeStep]:
        """All steps of an episode in short form."""
        if one.place == PLACE:
            return await self.stored().strip(one)
        return strip(await asyncio.to_thread(self._folder().trajectory, one.place, one.id))

    async def steps(self, place: str, episode: str, first: int, count: int) -> Sequence[Transition]:
        """Steps of an episode from number `first` on, counted from 1; at most `count` of them."""
        if place == PLACE:
            return await self.stored().steps(episode, first, count)
        trajectory = await asyncio.to_thread(self._folder().trajectory, place, episode)
        return trajectory.transitions[first - 1 : first - 1 + count]

    async def parting(self, one: EpisodeSummary, other: EpisodeSummary) -> int | None:
        """Number of the first call, counted from 1, at which two episodes differ; None: they are the same."""
        first, window = 1, FIRST_WINDOW
        if self.store is not None and one.place == other.place == PLACE:
            # so that most of two long episodes need not be read
            first += await StoredPairs(self.store.database).alike(one.id, other.id)
        while first <= max(one.outcome.steps, other.outcome.steps):
            sides = [await self.steps(each.place, each.id, first, window) for each in (one, other)]
            found = parting(paired_calls(*sides))
            if found is not None:
                return first - 1 + found
            first, window = first + window, 2 * window  # most differ early; the others are read in few pieces
        return None

    async def partings(self, pairs: Sequence[TaskPair]) -> list[Parting]:
        """The newest two episodes of each pair, and where they differ. A pair with a deleted episode is left out."""
        names = [(pair.dream, pair.real) for pair in pairs]
        stored = [identity for place, identity in chain(*names) if place == PLACE]
        summaries = {one.id: one for one in await self.store.summaries(stored)} if self.store and stored else {}
        openings = await self.store.openings(stored, FIRST_WINDOW) if self.store and stored else {}
        found = []
        for name in names:
            try:
                one, other = [
                    summaries[identity] if identity in summaries else await self.summary(place, identity)
                    for place, identity in name
                ]
                begun = paired_calls(
                    *[
                        openings[each.id] if each.id in openings else await self.steps(*which, 1, FIRST_WINDOW)
                        for each, which in zip((one, other), name, strict=True)
                    ]
                )
                at = parting(begun)
                if at is None and max(one.outcome.steps, other.outcome.steps) > FIRST_WINDOW:
                    at = await self.parting(one, other)
                if at is not None and at > len(begun):
                    begun = paired_calls(*[await self.steps(*which, at, 1) for which in name])
            except UnknownEpisode:  # it was deleted meanwhile
                continue
            if at is None:
                found.append(Parting(one, other, None, same_call=False, over=None))
                continue
            pair = begun[min(at, len(begun)) - 1]
            over: Literal["dream", "real"] | None = (
                "dream" if pair.one is None else "real" if pair.other is None else None
            )
            found.append(Parting(one, other, at, pair.same_call, over))
        return found

    async def pairs(self, env: str, most: int) -> tuple[list[TaskPair], int]:
        """Tasks that were played in a dream and in reality, those of the run folder first; and how many there are.

        Args:
            env: the name of one environment; empty: all.
            most: maximum number of tasks to return.
        """
        found = [] if self.folder is None else await asyncio.to_thread(self.folder.pairs)
        found = [pair for pair in found if env in {"", pair.env}]
        total = len(found)
        if self.store is not None:
            try:
                for one in await self.environments():
                    if env in {"", one.env} and one.synthetic and one.real + one.imported:
                        stored, count = await StoredPairs(self.store.database).pairs(one.env, most)
                        found, total = found + stored, total + count
            except StoreError:
                if self.folder is None:
                    raise
        return found[:most], total

    async def recorded(self, env: str, ids: list[str]) -> list[Recorded]:
        """Transitions by their ids, and where they were recorded. One that is nowhere is left out."""
        found = [] if self.folder is None else await asyncio.to_thread(self.folder.recorded, ids)
        missing = [identity for identity in ids if identity not in {one.id for one in found}]
        if self.store is not None and missing:
            try:
                found += await self.store.recorded(env, missing)
            except DreamGymError:
                if not found:
                    raise
        return found

    async def places(self, episodes: Iterable[str]) -> dict[str, str]:
        """The places of episodes, by their ids. An episode that is nowhere is left out."""
        wanted, found = set(episodes), dict[str, str]()
        for file in await asyncio.to_thread(self.folder.episode_files) if self.folder is not None else ():
            found |= dict.fromkeys(wanted & file.episodes.keys(), file.place)
        if self.store is not None:
            with suppress(DreamGymError):
                found |= dict.fromkeys(await self.store.known(wanted - found.keys()), PLACE)
        return found

    def stored(self) -> StoredEpisodes:
        """The episodes of the store. Raises StoreError if none is open."""
        if self.store is None:
            raise StoreError(self.absent or "no store is open here: only a run folder is shown")
        return self.store

    def _folder(self) -> RunFolder:
        if self.folder is None:
            raise InvalidInput("no run folder is open here: start with `dreamgym view RUNFOLDER`")
        return self.folder
