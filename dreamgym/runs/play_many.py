"""Playing many episodes: which there are to play, several at a time, and keeping each as soon as it is over.

An episode is known by its id, which says who played what with which seed. So the same command goes on where it was cut
off: what is there already is not played again. An episode that failed before its first step leaves nothing to keep.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dreamgym.budget import check_budget
from dreamgym.environment import Behaviour, Environment, first_reason, read_jsonl
from dreamgym.episode import play
from dreamgym.errors import BudgetSpent, EnvironmentUnavailable, InvalidInput, MissingPackage
from dreamgym.evaluation.episodes import WORKERS, play_many
from dreamgym.files import open_to_append, write_whole
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.runs.console import now_and_then, say
from dreamgym.types import Provenance, Source, StopReason, Task, Tier, Trajectory

if TYPE_CHECKING:
    from dreamgym_server.sources import Worlds

BATCH = 100
STORE_EVERY_S = 10.0
HOPELESS = 20
"""So many failures one after another end the collection: the next would fail too."""


class Planned(NamedTuple):
    """One episode to play."""

    number: int
    id: str
    task: Task
    seed: int


def plan(who: str, setting: str, tasks: Sequence[Task], episodes: int, seed: int) -> list[Planned]:
    """The episodes of a collection: tasks in turn, episode i seeded with seed + i.

    Args:
        who: the behaviour or agent.
        setting: whatever else makes it another collection, such as the model behind a dream.
        tasks: at least one.
        episodes: how many.
        seed: of the first.
    """
    planned = []
    for number in range(episodes):
        task, own = tasks[number % len(tasks)], seed + number
        digest = hashlib.sha256("\0".join([who, setting, task.id, task.instruction]).encode()).hexdigest()[:8]
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{task.env}-{Path(who).name}-{own}").strip("-")
        planned.append(Planned(number, f"{name}-{digest}", task, own))
    return planned


class Kept(Protocol):
    """Where episodes go."""

    ids: set[str]
    """What was there at the start."""

    async def add(self, trajectory: Trajectory) -> None:
        """Keep one; at the latest `close` writes it."""

    async def close(self, order: Mapping[str, int]) -> None:
        """Write what is not yet written. An order is given where all episodes are there."""


class InFile:
    """A JSONL file: a line is written as soon as its episode is over. Raises InvalidInput where another one writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as opened:
            self._file = opened.enter_context(os.fdopen(open_to_append(path), "ab+"))
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                message = f"{path}: another collection is writing to it: name another --out, or wait"
                raise InvalidInput(message) from error
            self._heal()
            self.ids = {trajectory.id for trajectory in read_jsonl(path, Trajectory)}
            opened.pop_all()  # it stays open where all is well

    def _heal(self) -> None:
        """A last line without its end was cut off in writing: it goes, and its episode is played again."""
        self._file.seek(0)
        written = self._file.read()
        whole = written.rfind(b"\n") + 1
        if whole == len(written):
            return
        try:
            Trajectory.model_validate_json(written[whole:])
            self._file.write(b"\n")
        except ValueError:
            say(f"{self._path}: the last line was half written; its episode is played again")
            self._file.truncate(whole)
        self._file.flush()

    async def add(self, trajectory: Trajectory) -> None:
        """One line."""
        self._file.write(trajectory.model_dump_json().encode() + b"\n")
        self._file.flush()

    async def close(self, order: Mapping[str, int]) -> None:
        """Where all are there, in the order of their numbers after whatever else the file has."""
        if order:
            lines = self._path.read_bytes().splitlines(keepends=True)
            ids = [Trajectory.model_validate_json(line).id for line in lines]
            places = [order.get(name, -1) for name in ids]
            if places != sorted(places):
                arranged = [lines[i] for i in sorted(range(len(lines)), key=places.__getitem__)]
                write_whole(self._path, b"".join(arranged).decode())
        self._file.close()


class InBuffer:
    """The replay buffer, in batches."""

    def __init__(self, buffer: ReplayBuffer, ids: set[str]) -> None:
        self.ids = ids
        self._buffer = buffer
        self._batch: list[Trajectory] = []
        self._stored = time.monotonic()

    @classmethod
    async def of(cls, buffer: ReplayBuffer, env: str, source: Source) -> InBuffer:
        """With the ids of what is stored."""
        stored = await buffer.trajectories(env, sources=frozenset({source}))
        return cls(buffer, {trajectory.id for trajectory in stored})

    async def add(self, trajectory: Trajectory) -> None:
        """At the latest the next but `BATCH`, or the first after some seconds, writes it."""
        self._batch.append(trajectory)
        if len(self._batch) >= BATCH or time.monotonic() - self._stored > STORE_EVERY_S:
            await self._write()

    async def close(self, order: Mapping[str, int]) -> None:
        """Store the rest; a buffer has its own order."""
        await self._write()

    async def _write(self) -> None:
        batch, self._batch = self._batch, []
        if batch:
            await self._buffer.add(batch)
        self._stored = time.monotonic()


Play = Callable[[Planned], Awaitable[Trajectory]]
"""Plays one episode; what it raises is a failure of this episode alone, unless it is MissingPackage."""


class Collecting:
    """Plays what is not there yet, and keeps count.

    Args:
        planned: all episodes.
        kept: where they go.
        version: what was played, as `Provenance.model` of real steps.
    """

    def __init__(self, planned: Sequence[Planned], kept: Kept, *, version: str | None) -> None:
        self._all = planned
        self._kept = kept
        self._version = version
        self._todo = [one for one in planned if one.id not in kept.ids]
        self._began, self._progress = time.monotonic(), now_and_then(say)
        self.played = self.won = 0
        self.failed: list[str] = []
        self._in_a_row = 0
        self._last = ""

    @property
    def there(self) -> int:
        """How many were there at the start."""
        return len(self._all) - len(self._todo)

    async def run(self, players: Iterable[Play]) -> None:
        """Let the players share the episodes; however it ends, what is over is kept."""
        if self.there:
            say(f"{self.there} of {len(self._all)} episodes are there already")
        is_complete = False
        try:
            await play_many([partial(self._play, player) for player in players], self._todo)
            is_complete = not self.failed
            if self.failed and not self.played:
                raise EnvironmentUnavailable(f"no episode could be played; the last failed with: {self._last}")
        finally:
            order = {one.id: one.number for one in self._all} if is_complete else {}
            await self._kept.close(order)
            say(self._line())
            if self.failed:
                more = " …" if self.failed[10:] else ""
                say(f"{len(self.failed)} episodes failed: {', '.join(self.failed[:10])}{more}")
            if self.there + self.played < len(self._all):
                say("the same command goes on with the others")

    async def _play(self, player: Play, one: Planned) -> None:
        """Play one and keep it, if there is something to keep.

        Raises:
            BudgetSpent: it could not be played to its end; it is not kept.
            MissingPackage: nothing can be played.
            EnvironmentUnavailable: too many failed one after another.
        """
        try:
            trajectory = self._signed(await player(one), one)
            check_budget()  # an agent's episode may have gone on without the answers that it asked for
        except (BudgetSpent, MissingPackage):
            raise
        except Exception as error:  # noqa: BLE001  # other people's agents and environments: the rest goes on
            self._fail(one, f"{type(error).__name__}: {first_reason(error)}")
        else:
            is_failed = trajectory.stop_reason is StopReason.ERROR
            if is_failed:
                self._fail(one, trajectory.error or "it failed")
            else:
                self._in_a_row = 0
            if trajectory.transitions or not is_failed:
                await self._kept.add(trajectory)
                self.played += 1
                self.won += trajectory.success
        self._progress(self._line())

    def _fail(self, one: Planned, why: str) -> None:
        say(f"episode {one.number} ({one.task.id}, seed {one.seed}) failed: {why}")
        self.failed.append(one.id)
        self._last = why
        self._in_a_row += 1
        if self._in_a_row >= HOPELESS:
            raise EnvironmentUnavailable(f"{HOPELESS} episodes failed one after another, the last with: {why}")

    def _signed(self, trajectory: Trajectory, one: Planned) -> Trajectory:
        """With its id, and in real steps the seed and what was played."""

        def signed(provenance: Provenance) -> Provenance:
            if trajectory.source is not Source.REAL or provenance.tier is not Tier.REAL:
                return provenance
            return provenance.model_copy(update={"seed": one.seed, "model": provenance.model or self._version})

        steps = [s.model_copy(update={"provenance": signed(s.provenance)}) for s in trajectory.transitions]
        return trajectory.model_copy(update={"id": one.id, "transitions": tuple(steps)})

    def _line(self) -> str:
        done, all_ = self.there + self.played, len(self._all)
        share = f", {self.won / self.played:.0%} successful" if self.played else ""
        tried = self.played + len(self.failed)
        rate = tried / max(1e-9, time.monotonic() - self._began)
        left = (len(self._todo) - tried) / rate if rate else 0
        speed = f", {60 * rate:.0f} a minute" if tried else ""
        ahead = f"{speed}, {_span(left)} left" if left else speed
        return f"{done} of {all_} episodes{share}{ahead}"


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class BehaviourPlayer:
    """Plays one episode after another in one environment; after a failure in a new one."""

    def __init__(self, worlds: Worlds, behaviour: Behaviour) -> None:
        self._worlds, self._behaviour = worlds, behaviour
        self._environment: Environment | None = None

    async def __call__(self, one: Planned) -> Trajectory:
        """Play it to its end."""
        if self._environment is None:
            self._environment = self._worlds.create("")
        is_whole = False
        try:
            played = await play(
                self._environment,
                one.task,
                self._behaviour,
                spec=self._worlds.spec,
                seed=one.seed,
                source=self._worlds.source,
            )
            is_whole = played.error is None
        finally:
            if not is_whole:
                await self.close()
        return played

    async def close(self) -> None:
        """Close the environment; the next episode gets another."""
        environment, self._environment = self._environment, None
        if environment is not None:
            await environment.close()


async def play_in_order(
    worlds: Worlds, behaviour: Behaviour, tasks: Sequence[Task], episodes: int, *, seed: int
) -> list[Trajectory]:
    """Play `episodes` episodes, a few at a time, in the order of the tasks; episode i is seeded with seed + i.

    Nothing is kept, and an environment that does not start ends it: for measurements, where each episode counts.
    """
    players = [BehaviourPlayer(worlds, behaviour) for _ in range(min(WORKERS, episodes))]
    try:
        return await play_many(players, plan("", "", tasks, episodes, seed))
    finally:
        for player in players:
            await player.close()
