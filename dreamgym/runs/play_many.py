"""Plans many episodes, plays several at a time and keeps each as soon as it is over.

The id of an episode identifies its player, task and seed. So the same command continues an interrupted collection:
episodes that were kept are not played again. An episode that fails before its first step is not kept.
"""

from __future__ import annotations

import hashlib
import json
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
from dreamgym.errors import BudgetSpent, EnvironmentUnavailable, InvalidInput, MissingPackage, StoreError
from dreamgym.evaluation.episodes import WORKERS, play_many
from dreamgym.files import open_alone, write_whole
from dreamgym.redaction import Redact, redacted
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.runs.console import now_and_then, say
from dreamgym.types import Provenance, Source, StopReason, Task, Tier, Trajectory

if TYPE_CHECKING:
    from dreamgym_server.sources import Worlds

    from dreamgym.replay.postgres import Store

BEGINNING = b'{"id":'
"""The first bytes of the line of an episode."""
BATCH = 100
STORE_EVERY_S = 10.0
HOPELESS = 20
"""Number of failures in a row that end the collection, because the next episode would fail too."""


class Planned(NamedTuple):
    """One episode to play."""

    number: int
    id: str
    task: Task
    seed: int


def plan(who: str, setting: str, tasks: Sequence[Task], episodes: int, seed: int) -> list[Planned]:
    """Plan the episodes of a collection. They take the tasks in turn; episode i has the seed `seed + i`.

    Args:
        who: name of the behaviour or agent.
        setting: everything else that makes it a different collection, such as the model of a dream.
        tasks: at least one task.
        episodes: number of episodes.
        seed: seed of the first episode.
    """
    planned = []
    for number in range(episodes):
        task, own = tasks[number % len(tasks)], seed + number
        digest = hashlib.sha256("\0".join([who, setting, task.id, task.instruction]).encode()).hexdigest()[:8]
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{task.env}-{Path(who).name}-{own}").strip("-")
        planned.append(Planned(number, f"{name}-{digest}", task, own))
    return planned


class Kept(Protocol):
    """A place where played episodes are kept."""

    ids: set[str]
    """Ids of the episodes that were there at the start."""

    async def add(self, trajectory: Trajectory) -> None:
        """Keep an episode. It may be written later, in `close` at the latest."""

    async def close(self, order: Mapping[str, int]) -> None:
        """Write the rest. `order` gives each episode's number by id if all are there; otherwise it is empty."""


class InFile:
    """Keeps episodes in a JSONL file; each line is written as soon as its episode is over.

    Raises:
        InvalidInput: another command is writing to the file, it cannot be written, or it contains something else. Then
            it stays as it is.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with ExitStack() as opened:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = opened.enter_context(open_alone(path))
            except OSError as error:
                raise InvalidInput(f"{path} cannot be written: {error.strerror}; give another file") from error
            self._heal()
            self.ids = {trajectory.id for trajectory in read_jsonl(path, Trajectory)}
            opened.pop_all()  # without an error, the file stays open

    def _heal(self) -> None:
        """Repair a last line without a newline. If its episode is cut off, remove it: the episode is played again.

        A file with anything but episodes is left as it is.
        """
        self._file.seek(0)
        written = self._file.read()
        whole = written.rfind(b"\n") + 1
        if whole == len(written):
            return
        *lines, last = written.split(b"\n")
        if not all(map(_is_episode, filter(bytes.strip, lines))):
            return
        if _is_episode(last):
            self._file.write(b"\n")
        elif _is_cut_off(last):
            say(f"{self._path}: the last line was half written; its episode is played again")
            self._file.truncate(whole)
        self._file.flush()

    async def add(self, trajectory: Trajectory) -> None:
        """Write the episode as one line."""
        self._file.write(trajectory.model_dump_json().encode() + b"\n")
        self._file.flush()

    async def close(self, order: Mapping[str, int]) -> None:
        """Close the file. If all episodes are there, order them by number, after any other lines of the file."""
        if order:
            lines = [line for line in self._path.read_bytes().splitlines(keepends=True) if line.strip()]
            ids = [Trajectory.model_validate_json(line).id for line in lines]
            places = [order.get(name, -1) for name in ids]
            if places != sorted(places):
                arranged = [lines[i] for i in sorted(range(len(lines)), key=places.__getitem__)]
                write_whole(self._path, b"".join(arranged).decode())
        self._file.close()


def _is_episode(line: bytes) -> bool:
    try:
        Trajectory.model_validate_json(line)
    except ValueError:
        return False
    return True


def _is_cut_off(line: bytes) -> bool:
    """True if a line begins as that of an episode and then breaks off."""
    if line[: len(BEGINNING)] != BEGINNING[: len(line)]:
        return False
    try:
        json.loads(line)
    except ValueError:
        return True
    return False


class InBuffer:
    """Keeps episodes in the replay buffer, which it writes in batches.

    Args:
        buffer: the buffer.
        ids: ids of the episodes that are there.
        recover: waits until the buffer's database is back, or raises StoreError.
    """

    def __init__(
        self, buffer: ReplayBuffer, ids: set[str], recover: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self.ids = ids
        self._buffer = buffer
        self._recover = recover
        self._batch: list[Trajectory] = []
        self._stored = time.monotonic()

    @classmethod
    async def of(cls, store: Store, env: str, source: Source) -> InBuffer:
        """Return one that knows the ids of an environment's stored episodes."""
        stored = await store.buffer.trajectories(env, sources=frozenset({source}))
        return cls(store.buffer, {trajectory.id for trajectory in stored}, store.recover)

    async def add(self, trajectory: Trajectory) -> None:
        """Add an episode to the batch. Write the batch if it is full or STORE_EVERY_S seconds have passed."""
        self._batch.append(trajectory)
        if len(self._batch) >= BATCH or time.monotonic() - self._stored > STORE_EVERY_S:
            await self._write()

    async def close(self, order: Mapping[str, int]) -> None:
        """Store the rest. The order is ignored, because a buffer has its own."""
        await self._write()

    async def _write(self) -> None:
        batch, self._batch = self._batch, []
        if batch:
            try:
                await self._store(batch)
            except BaseException:  # also a cancellation: `close` stores the batch
                self._batch = batch + self._batch
                raise
        self._stored = time.monotonic()

    async def _store(self, batch: list[Trajectory]) -> None:
        try:
            await self._buffer.add(batch)
        except StoreError as error:
            if self._recover is None:
                raise
            say(f"{error}. Waiting for it (episodes not stored yet: {len(batch)})")
            await self._recover()
            await self._buffer.add(batch)


Play = Callable[[Planned], Awaitable[Trajectory]]
"""Plays one episode. Its errors count as failures of this episode alone, except BudgetSpent and MissingPackage."""


class Collecting:
    """Plays the episodes that are not there yet, and counts outcomes.

    Args:
        planned: all episodes of the collection.
        kept: keeps them.
        version: version of the environment, for `Provenance.model` of real steps.
        redact: redacts episodes and reasons of failures by the environment's rules; None if it has none. A server has
            redacted the calls and answers of an agent, but not an exception of the agent itself.
        in_dream: a dream is played, whose success is none in the real environment.
    """

    def __init__(
        self,
        planned: Sequence[Planned],
        kept: Kept,
        *,
        version: str | None,
        redact: Redact | None = None,
        in_dream: bool = False,
    ) -> None:
        self._where = " in the dream" if in_dream else ""
        self._all = planned
        self._redact = redact
        self._kept = kept
        self._version = version
        self._todo = [one for one in planned if one.id not in kept.ids]
        self._began, self._progress = time.monotonic(), now_and_then(say)
        self.tried = self.played = self.won = 0
        self.judged = self.unjudged = 0
        """Numbers of played episodes whose reward is known, and unknown; failed episodes are in neither."""
        self.failed: list[str] = []
        self._in_a_row = 0
        self._last = ""

    @property
    def there(self) -> int:
        """Number of planned episodes that were there at the start."""
        return len(self._all) - len(self._todo)

    async def run(self, players: Iterable[Play]) -> None:
        """Let the players share the episodes. Finished episodes are kept, however the call ends."""
        if self.there:
            say(f"{self.there} of {len(self._all)} episodes were played before")
        is_complete = False
        try:
            await play_many([partial(self._play, player) for player in players], self._todo)
            is_complete = not self.failed
            if self.failed and len(self.failed) == self.tried:
                raise EnvironmentUnavailable(
                    f"no episode could be played to its end; the last failed with: {self._last}"
                )
        finally:
            order = {one.id: one.number for one in self._all} if is_complete else {}
            await self._kept.close(order)
            say(self._line())
            if self.failed:
                more = " …" if self.failed[10:] else ""
                say(f"{len(self.failed)} episodes failed: {', '.join(self.failed[:10])}{more}")
            if self.there + self.played < len(self._all):
                say("run the same command again to play the others")

    async def _play(self, player: Play, one: Planned) -> None:
        """Play an episode and keep it, unless it failed before its first step.

        Raises:
            BudgetSpent: the episode could not be played to its end and is not kept.
            MissingPackage: no episode can be played.
            EnvironmentUnavailable: too many episodes failed in a row.
        """
        try:
            trajectory = self._signed(redacted(await player(one), self._redact), one)
            check_budget()  # an agent's episode may have gone on without the answers that it asked for
        except (BudgetSpent, MissingPackage):
            raise
        except Exception as error:  # noqa: BLE001  # other people's agents and environments: the rest goes on
            self._fail(one, f"{type(error).__name__}: {first_reason(error)}")
        else:
            is_failed = trajectory.stop_reason is StopReason.ERROR
            if is_failed:
                self._fail(one, trajectory.error or "no reason was given")
            else:
                self._in_a_row = 0
            if trajectory.transitions or not is_failed:
                await self._kept.add(trajectory)
                self.played += 1
                is_known = trajectory.reward is not None
                self.judged += is_known
                self.won += is_known and trajectory.success
                self.unjudged += not is_known and not is_failed
        self.tried += 1
        self._progress(self._line())

    def _fail(self, one: Planned, why: str) -> None:
        why = why if self._redact is None else str(self._redact(why))
        say(f"episode {one.number} ({one.task.id}, seed {one.seed}) failed: {why}")
        self.failed.append(one.id)
        self._last = why
        self._in_a_row += 1
        if self._in_a_row >= HOPELESS:
            raise EnvironmentUnavailable(f"{HOPELESS} episodes failed one after another, the last with: {why}")

    def _signed(self, trajectory: Trajectory, one: Planned) -> Trajectory:
        """The trajectory with its planned id and, in real steps, with the seed and the environment's version."""

        def signed(provenance: Provenance) -> Provenance:
            if trajectory.source is not Source.REAL or provenance.tier is not Tier.REAL:
                return provenance
            return provenance.model_copy(update={"seed": one.seed, "model": provenance.model or self._version})

        steps = [s.model_copy(update={"provenance": signed(s.provenance)}) for s in trajectory.transitions]
        return trajectory.model_copy(update={"id": one.id, "transitions": tuple(steps)})

    def _line(self) -> str:
        done, all_ = self.there + self.played, len(self._all)
        new = " of the new ones" if self.there else ""
        share = f", {self.won / self.judged:.0%}{new} successful{self._where}" if self.judged else ""
        unknown = f", {self.unjudged} with unknown reward (not counted)" if self.unjudged else ""
        rate = self.tried / max(1e-9, time.monotonic() - self._began)
        left = (len(self._todo) - self.tried) / rate if rate else 0
        speed = f", {60 * rate:.0f} a minute" if self.tried else ""
        ahead = f"{speed}, {_span(left)} left" if left else speed
        return f"{done} of {all_} episodes{share}{unknown}{ahead}"


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class BehaviourPlayer:
    """Plays episodes one after another in the same environment. After a failure, it creates a new environment."""

    def __init__(self, worlds: Worlds, behaviour: Behaviour) -> None:
        self._worlds, self._behaviour = worlds, behaviour
        self._environment: Environment | None = None

    async def __call__(self, one: Planned) -> Trajectory:
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

    This is for measurements, in which every episode counts: an environment that does not start ends the call, and
    nothing is stored.
    """
    players = [BehaviourPlayer(worlds, behaviour) for _ in range(min(WORKERS, episodes))]
    try:
        return await play_many(players, plan("", "", tasks, episodes, seed))
    finally:
        for player in players:
            await player.close()
