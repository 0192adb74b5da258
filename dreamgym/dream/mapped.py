"""The dreams that are played on mapped states: of objects, or of pages. The kind of the reader decides which."""

from __future__ import annotations

from typing import Any

from dreamgym.dream.learned import LearnedOnce
from dreamgym.dream.model import Prediction, Query
from dreamgym.dream.objects import ObjectEpisode, ObjectWorlds
from dreamgym.dream.pages import PageEpisode, PageWorlds
from dreamgym.environment import EnvironmentSpec, installed_real
from dreamgym.reading import PageReader, Reader
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.state import as_text

MappedWorlds = ObjectWorlds | PageWorlds
MappedEpisode = ObjectEpisode | PageEpisode


async def mapped_worlds(spec: EnvironmentSpec, buffer: ReplayBuffer) -> MappedWorlds | None:
    """Return what an environment's recordings show now; None if no reader turns its words into objects or pages.

    Raises:
        StoreError: the recordings cannot be read.
    """
    if spec.state is not None or spec.adapter is None:
        return None
    place = spec.adapter, as_text(spec.options)
    if place not in _hooks:
        real = installed_real(spec)
        _hooks[place] = getattr(real, "reader", None), getattr(real, "goals", None)
    reader, goals = _hooks[place]
    if isinstance(reader, PageReader):
        pages = reader  # in the closure below a type checker would not know the narrowed type of `reader`
        return await _pages.of(buffer, spec.name, lambda recorded: PageWorlds.of(recorded, pages, goals))
    if reader is None or spec.text_argument is None:
        return None
    return await _objects.of(buffer, spec.name, lambda recorded: ObjectWorlds.of(recorded, reader, goals))


_objects = LearnedOnce[ObjectWorlds](sessions=None)
_pages = LearnedOnce[PageWorlds](sessions=None)
_hooks: dict[tuple[str, str], tuple[Reader | None, Any]] = {}
"""Reader and goals by adapter and options. Kept, because searching installed packages takes 10 ms or more."""


class MappedTier:
    """A running episode on mapped states as a tier, for a dream whose answers get a confidence."""

    infers = True

    def __init__(self, episode: MappedEpisode) -> None:
        self._episode = episode

    async def answer(self, query: Query) -> Prediction | None:
        """The answer that the recordings show."""
        return self._episode.answer(query.action, query.state.text, seed=query.seed)
