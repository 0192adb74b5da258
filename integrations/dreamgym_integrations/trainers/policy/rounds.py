"""Sources of an update's rollouts: they are played when the update begins, or ahead of it.

Rollouts that are played ahead come from a copy of the policy that is some updates behind. It plays while the trainer
learns, so neither waits for the other if both take about as long.
"""

from __future__ import annotations

import asyncio
import copy
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any, Protocol

from anyio.from_thread import BlockingPortal

from dreamgym.errors import EnvironmentUnavailable
from dreamgym.training.practice import Practice
from dreamgym.training.rollout import Player, Rollout
from dreamgym.types import JsonObject


@dataclass(frozen=True)
class Round:
    """The rollouts of one update, and the state of practice when they were played."""

    groups: list[list[Rollout]]
    curriculum: JsonObject
    """State of the curriculum after the round."""
    dead_updates: int
    """Number of rounds in a row, up to this one, with nothing to learn from."""
    is_last: bool
    """True if the remaining real steps are too few for another round."""


class Rounds(Protocol):
    """Provides the rollouts of one update after the other."""

    def take(self, update: int) -> Round:
        """The round that an update learns from. Blocking; raises any error of playing it."""

    def updated(self, updates: int) -> None:
        """Called when the policy has had this many updates."""

    def close(self) -> None:
        """Stop playing."""


class OfModel(Protocol):
    """A policy that samples from the weights of a model in this process."""

    model: Any

    def forget(self) -> None:
        """Called when the weights of the model have changed."""


def _cancelled(update: int) -> EnvironmentUnavailable:
    return EnvironmentUnavailable(
        f"the round of update {update} was cancelled while it was played: an environment raised CancelledError"
    )


class RoundsOnDemand:
    """Each round is played by the policy as it is when the update begins."""

    def __init__(self, practice: Practice, player: Player, portal: BlockingPortal) -> None:
        self._practice, self._player, self._portal = practice, player, portal

    def take(self, update: int) -> Round:
        try:
            return self._portal.call(played, self._practice, self._player, update, update)
        except CancelledError:
            raise _cancelled(update) from None

    def updated(self, updates: int) -> None:
        pass

    def close(self) -> None:
        pass


class RoundsAhead:
    """Plays with a policy that is a fixed number of updates behind, while the trainer learns.

    The number is fixed and not only a bound, so that a run can be repeated: the round of update k is played with the
    weights after k - staleness updates. A resumed run has no older weights than those of its checkpoint, and begins
    with them. Copies of the trained weights are kept until they have been played with, at most `staleness` copies.

    Args:
        practice: plays the groups.
        player: lets `behind` play.
        portal: the event loop on which the environments live.
        behind: the policy that plays; it gets a copy of the model.
        model: the model that is trained.
        staleness: number of updates that `behind` is behind, at least 1.
        updates: number of updates of the run; no round is played for a later one.
    """

    def __init__(
        self,
        practice: Practice,
        player: Player,
        portal: BlockingPortal,
        behind: OfModel,
        model: Any,
        *,
        staleness: int,
        updates: int,
    ) -> None:
        self._practice, self._player, self._portal = practice, player, portal
        self._behind, self._model = behind, model
        self._staleness, self._updates = staleness, updates
        self._trained: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        """The trained weights after each update, until they are played with."""
        self._rounds: asyncio.Queue[Round | Exception] = asyncio.Queue()
        self._playing: Future[None] | None = None
        self._ended = asyncio.Event()
        """Set when nothing is played any more."""
        self._unfinished: int | None = None
        """Update whose round was cancelled while it was played."""
        self._learned = 0
        """Number of updates of the policy that is trained."""

    def take(self, update: int) -> Round:
        """The round that an update learns from; the first call starts the playing."""
        if self._playing is None:
            self._learned = update
            self._behind.model = _copy(self._model)
            self._playing = self._portal.start_task_soon(self._play, update)
        found = self._portal.call(self._rounds.get)
        if isinstance(found, Exception):
            raise found
        return found

    def updated(self, updates: int) -> None:
        """Keep the weights for the round that is played with them."""
        self._learned = updates
        if updates + self._staleness < self._updates:
            trained = {name: one.detach().clone() for name, one in self._model.named_parameters() if one.requires_grad}
            self._portal.call(self._trained.put_nowait, trained)

    def close(self) -> None:
        """Stop playing. Record the whole episodes that taught nothing, and the real steps of a cancelled round.

        Raises:
            StoreError: the database does not answer, so the real steps of the cancelled round are not in the record.
        """
        if self._playing is None:
            return
        self._playing.cancel()
        self._portal.call(self._ended.wait)
        left = [self._rounds.get_nowait() for _ in range(self._rounds.qsize())]
        episodes = sum(len(group) for one in left if isinstance(one, Round) for group in one.groups)
        if episodes:
            self._practice.note({"step": self._learned, "dropped_episodes": episodes})
        if self._unfinished is not None:
            self._portal.call(self._practice.take_back, self._unfinished)

    async def _play(self, first: int) -> None:
        try:
            for update in range(first, self._updates):
                version = max(first, update - self._staleness)
                if version > first:
                    await asyncio.to_thread(self._load, await self._trained.get())
                found = await played(self._practice, self._player, update, version)
                self._rounds.put_nowait(found)
                if found.is_last:
                    return
        except asyncio.CancelledError:
            self._unfinished = update
            self._rounds.put_nowait(_cancelled(update))  # for a trainer that waits for the round
            raise
        except Exception as error:  # noqa: BLE001  # the trainer raises it where it waits for the round
            self._rounds.put_nowait(error)
        finally:
            self._ended.set()

    def _load(self, trained: dict[str, Any]) -> None:
        self._behind.model.load_state_dict(trained, strict=False)
        self._behind.forget()


def _copy(model: Any) -> Any:
    """A model with the same weights and structure."""
    found = copy.deepcopy(model)
    for module in found.modules():  # wrappers of accelerate and TRL, which would still call the trained model
        module.__dict__.pop("forward", None)
    return found


async def played(practice: Practice, player: Player, update: int, version: int) -> Round:
    """Play the round of an update with a policy that has had `version` updates."""
    groups = await practice.iterate(player, update, version=version)
    return Round(groups, practice.curriculum.state(), practice.dead_updates, practice.spent)
