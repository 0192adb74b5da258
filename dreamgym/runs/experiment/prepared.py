"""The start of all arms of one seed: recordings, a database that contains them, and a warm-started policy."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dreamgym.environment import EnvironmentSpec, RealEnvironment, load_spec, read_jsonl, read_trajectories, real_of
from dreamgym.errors import EnvironmentUnavailable, InvalidInput, UnknownName
from dreamgym.files import write_whole
from dreamgym.redaction import redact_by, redacted
from dreamgym.replay.embedded import EmbeddedServer, default_folder
from dreamgym.replay.postgres import databases
from dreamgym.runs.console import say
from dreamgym.runs.experiment.plan import SHUFFLED, Arm, Plan, Play
from dreamgym.runs.opening import open_store, tasks_of
from dreamgym.runs.play_many import play_in_order
from dreamgym.types import StopReason, Trajectory, Transition

if TYPE_CHECKING:
    from dreamgym_server.sources import Worlds


@dataclass(frozen=True)
class Prepared:
    """One seed of an experiment."""

    plan: Plan
    seed: int
    folder: Path
    dsn: str
    """DSN of the database server; each run has a database of its own there."""
    spec: EnvironmentSpec
    real: RealEnvironment

    @cached_property
    def recorded(self) -> list[Trajectory]:
        """The seed's real episodes: those played for it, then those of files. Made once and kept in the folder."""
        file = self.folder / "recorded.jsonl"
        if not file.exists():
            read = [self._read(one.file) for one in self.plan.files]  # a missing file is told before anything is played
            played = [asyncio.run(self._played(number, play)) for number, play in enumerate(self.plan.plays)]
            write_whole(file, "".join(t.model_dump_json() + "\n" for some in played + read for t in some))
        return read_jsonl(file, Trajectory)

    def check_files(self) -> None:
        """Raises InvalidInput if a file has other episodes than those that the folder keeps. It may be gone."""
        if not (self.folder / "recorded.jsonl").exists() or not all(one.file.is_file() for one in self.plan.files):
            return
        read = [trajectory for one in self.plan.files for trajectory in self._read(one.file)]
        if self.recorded[sum(play.episodes for play in self.plan.plays) :] != read:
            raise InvalidInput(
                f"{', '.join(str(one.file) for one in self.plan.files)}: other episodes than those that {self.folder} "
                "began with, so that new results do not compare: restore the file, or give another folder with --out"
            )

    @cached_property
    def digest(self) -> str:
        """Hash of the folder's path and recordings, for names of databases: a server may outlive the folder."""
        told = str(self.folder).encode() + (self.folder / "recorded.jsonl").read_bytes()
        return hashlib.sha256(told).hexdigest()[:8]

    @property
    def worlds(self) -> Worlds:
        """The real environment."""
        from dreamgym_server.sources import RealWorlds

        return RealWorlds(self.spec, self.real.create)

    @property
    def real_steps(self) -> int:
        """Number of real steps taken before any training."""
        return sum(len(trajectory.transitions) for trajectory in self.recorded)

    def warm(self) -> Path:
        """Folder of the warm start, a policy that imitates the plan's `warm` episodes; made if it is not there."""
        folder = self.folder / "warm"
        if not (folder / "config.json").is_file():
            from dreamgym_integrations.trainers.policy.scratch import create_policy
            from dreamgym_integrations.trainers.policy.sft import clone

            say(f"seed {self.seed}: warm start")
            how = self.plan.warm
            create_policy(how.policy, self.spec, self.recorded, self.folder / "untrained", seed=self.seed)
            warm, ends = [], 0
            for play in self.plan.plays:
                begins, ends = ends, ends + play.episodes
                warm += self.recorded[begins:ends] if play.warm else []
            clone(
                self.spec,
                warm,
                self.folder / "untrained",
                folder,
                steps=how.steps,
                batch=how.batch,
                learning_rate=how.learning_rate,
                seed=self.seed,
            )
        return folder

    def database(self, run: str, arm: Arm) -> str:
        """DSN of a run's own database, filled with the recordings. An interrupted run gets its database again."""
        known = "_".join(re.sub(r"\W+", "_", str(value)) for value in arm.known.values())
        template = "_".join(filter(None, [f"seed_{self.seed}", known, self.digest]))
        with alone(self.folder):
            if databases.exists(self.dsn, run):
                return databases.dsn_of(self.dsn, run)
            if not databases.exists(self.dsn, template):
                given = self.given(arm)
                say(f"seed {self.seed}: storing {len(given)} recorded episodes")
                filling = f"filling_{template}"
                databases.drop(self.dsn, filling)
                asyncio.run(_fill(databases.create(self.dsn, filling), given))
                databases.create(self.dsn, template, template=filling)
                databases.drop(self.dsn, filling)
            return databases.create(self.dsn, run, template=template)

    def given(self, arm: Arm) -> Sequence[Trajectory]:
        """The recordings that the arm's dream knows."""
        recorded = self.recorded
        if arm.recordings is not None:
            chosen = set(random.Random(self.seed).sample(range(len(recorded)), len(recorded))[: arm.recordings])
            recorded = [trajectory for number, trajectory in enumerate(recorded) if number in chosen]
        if arm.spoiled in SHUFFLED:
            has_calls = arm.spoiled == "calls and next states"
            return shuffled(recorded, self.seed, calls=has_calls, share=arm.spoiled_share)
        if arm.spoiled == "every reward":
            return [episode for trajectory in recorded for episode in rewarded(trajectory)]
        if arm.spoiled == "no reward":
            return [unrewarded(trajectory) for trajectory in recorded]
        return recorded

    async def _played(self, number: int, play: Play) -> list[Trajectory]:
        say(f"seed {self.seed}: recording {play.episodes} real episodes of {play.behaviour}")
        tasks = self.plan.recordable(tasks_of(self.spec, "train", self.real))[: play.tasks]
        if not tasks:
            raise InvalidInput(
                f"no task of the split train may be recorded: held_out = {self.plan.held_out!r} fits all of them"
            )
        seed = 1_000_000 * (self.seed + 1) + 100_000 * number
        behaviour, redact = self.real.behaviours[play.behaviour], redact_by(self.spec.redact)
        played = await play_in_order(self.worlds, behaviour, tasks, play.episodes, seed=seed)
        failed = [one for one in played if one.error is not None]
        if failed:
            raise EnvironmentUnavailable(
                f"{len(failed)} of {len(played)} real episodes of {play.behaviour} failed, the first with: "
                f"{failed[0].error}; nothing was kept: run the same command again"
            )
        return [redacted(one, redact) for one in played]

    def _read(self, file: Path) -> list[Trajectory]:
        """The episodes of a file except of tested, probed and held-out tasks. Raises InvalidInput if there are none.

        `check_apart` compares the worlds of the splits only, so tasks of the file that are in no split are reported.
        """
        if not file.is_file():
            raise InvalidInput(f"[[recorded]] file: {file} does not exist")
        kept_apart = {
            task.id for split in ("dev", self.plan.test.split) for task in tasks_of(self.spec, split, self.real)
        }
        known = [one for one in read_trajectories(file) if one.task.id not in kept_apart]
        found = [one for one in known if self.plan.recordable([one.task])]
        if not found:
            raise InvalidInput(
                f"[[recorded]] file: {file} has no episodes except of tasks that are tested, probed or held out"
            )
        listed = {task.id for task in tasks_of(self.spec, "train", self.real)}
        if stray := sorted({one.task.id for one in found} - listed):
            say(
                f"{file}: {len(stray)} of its tasks are in no split, such as {stray[0]!r}: their worlds were not "
                "compared with those of the test"
            )
        return found


def database_folder(folder: Path) -> Path:
    """Data folder of a run folder's database server."""
    base = default_folder()
    return base.with_name(f"{base.name}-{folder.name}")


@contextmanager
def prepared_seeds(plan: Plan, folder: Path) -> Iterator[list[Prepared]]:
    """The seeds of an experiment, with a database server for this folder, which stops when nobody uses it.

    Raises UnknownName before that if there is no such environment, or if it has no such behaviour.
    """
    spec = load_spec(plan.env)
    real = real_of(spec)
    played = {play.behaviour for play in plan.plays} | {arm.behaviour for arm in plan.arm if arm.behaviour is not None}
    if unknown := played - set(real.behaviours):
        raise UnknownName("behaviour", min(unknown), real.behaviours)
    server = EmbeddedServer.start(database_folder(folder))
    try:
        yield [Prepared(plan, seed, folder / f"seed-{seed}", server.dsn, spec, real) for seed in plan.seeds]
    finally:
        server.release()


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock a folder against other threads and other experiments, so that its content is made only once.

    The lock file contains the id of the process that has the lock. Waiting for another process is reported.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            if (holder := lock.read()) not in {"", str(os.getpid())}:
                say(f"waiting for process {holder}, which works in {folder}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def shuffled(
    trajectories: Sequence[Trajectory], seed: int, *, calls: bool = False, share: float = 1.0
) -> list[Trajectory]:
    """Copies with the same states and calls, in which a share of the answers is permuted among themselves.

    With `calls`, the calls are permuted too, so that the data no longer shows which calls are possible in a state.
    """
    steps = [step for trajectory in trajectories for step in trajectory.transitions]
    lots = random.Random(seed)
    chosen = lots.sample(range(len(steps)), round(share * len(steps)))
    answered_by = dict(zip(chosen, lots.sample(chosen, len(chosen)), strict=True))
    called_by = dict(zip(chosen, lots.sample(chosen, len(chosen)), strict=True)) if calls else {}
    numbers = iter(range(len(steps)))

    def answered(step: Transition, *, last: bool) -> Transition:
        number = next(numbers)
        if number not in answered_by:
            return step
        other = steps[answered_by[number]]
        ends = {"terminated": other.result.terminated and last, "truncated": last and not other.result.terminated}
        result = other.result.model_copy(update=ends)
        action = steps[called_by.get(number, number)].action
        return step.model_copy(update={"action": action, "result": result, "next_state": other.next_state})

    return [
        trajectory.model_copy(
            update={
                "transitions": tuple(
                    answered(step, last=number + 1 == len(trajectory.transitions))
                    for number, step in enumerate(trajectory.transitions)
                )
            }
        )
        for trajectory in trajectories
    ]


def rewarded(trajectory: Trajectory) -> list[Trajectory]:
    """Each step as an episode of its own that succeeds, so that every action has the same reward."""

    def of_step(number: int, step: Transition) -> Trajectory:
        result = step.result.model_copy(update={"reward": 1.0, "terminated": True, "truncated": False})
        update = {"id": f"{trajectory.id}-{number}", "stop_reason": StopReason.TERMINATED, "world": trajectory.world_id}
        return trajectory.model_copy(update={**update, "transitions": (step.model_copy(update={"result": result}),)})

    return [of_step(number, step) for number, step in enumerate(trajectory.transitions)]


def unrewarded(trajectory: Trajectory) -> Trajectory:
    """A copy of the episode with the same end but without its success."""

    def without(step: Transition) -> Transition:
        return step.model_copy(update={"result": step.result.model_copy(update={"reward": 0.0})})

    return trajectory.model_copy(update={"transitions": tuple(map(without, trajectory.transitions))})


async def _fill(dsn: str, trajectories: Sequence[Trajectory]) -> None:
    async with open_store(dsn) as store:
        for start in range(0, len(trajectories), 500):
            await store.buffer.add(trajectories[start : start + 500])
