"""The stages of the demonstration; each leaves a file and finds what an interrupted run left.

collect → seed → an unchanged agent plays → warm start → GRPO in the dream → what that is worth in the real game.
The dream is made of recorded play and no real step is taken while training. The real game only measures, on test tasks
that nothing else touches, and the last checkpoint is the one that counts: no choice is made by looking.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import multiprocessing
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from dreamgym.cli.collect import play_behaviour
from dreamgym.dream.model import Part
from dreamgym.environment import load_real, read_jsonl
from dreamgym.replay import databases
from dreamgym.runs.console import say
from dreamgym.runs.demo.measure import measure
from dreamgym.runs.demo.report import write_report
from dreamgym.runs.demo.side_by_side import side_by_side
from dreamgym.runs.opening import open_store
from dreamgym.runs.train.config import TrainConfig
from dreamgym.runs.train.run import Run, run_training
from dreamgym.runs.versions import commit
from dreamgym.types import JsonObject, Source, Task, Trajectory

ENV = "coin"
Result = TypeVar("Result")


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    worlds: int = 400
    episodes_per_world: int = 10
    warm_episodes: int = 1500
    warm_steps: int = 200
    seeds: int = 3
    """Training runs in the dream."""
    controls: int = 1
    """The same with the episode's history withheld from retrieval."""
    steps: int = 100
    probe_every: int = 25
    curve_tasks: int = 300
    """The first test tasks: the curves."""
    final_tasks: int = 500
    """The last test tasks: the table."""


QUICK = Size(
    worlds=40,
    warm_episodes=400,
    warm_steps=40,
    seeds=1,
    steps=2,
    probe_every=2,
    curve_tasks=20,
    final_tasks=20,
)


@dataclass(frozen=True)
class Arm:
    """One training run of the demonstration."""

    name: str
    seed: int
    knows_history: bool


class Demo:
    """One run of the demonstration.

    Args:
        folder: where everything goes.
        size: how much of everything.
        dsn: a database of the user's to fill; None for an embedded server of its own.
    """

    def __init__(self, folder: Path, size: Size, dsn: str | None) -> None:
        self.folder = folder
        self.size = size
        self.real = load_real(ENV)
        self._given_dsn = dsn
        self._began = time.monotonic()
        self.seconds: dict[str, float] = {}
        self.arms = [
            *(Arm(f"dream-{seed}", seed, True) for seed in range(size.seeds)),
            *(Arm(f"control-{seed}", seed, False) for seed in range(size.controls)),
        ]

    def run(self) -> None:
        """Go through all stages and write the report."""
        self.say(f"everything goes to {self.folder}; `dreamgym demo --out {self.folder}` continues an interrupted run")
        with self._database() as dsn:
            self._run(dsn)

    def _run(self, dsn: str) -> None:
        recorded = self._timed("collect", self._collect)
        self._timed("seed", partial(asyncio.run, self._seed(recorded, dsn)))
        self._timed("play", partial(side_by_side, self.folder, ENV, self.real.tasks("train")[0], dsn, self.say))
        self._timed("warm start", partial(self._warm_start, recorded))
        self._timed("train", partial(self._train, dsn))
        self.say("6/6 measure: every policy on the same tasks, in the dream and in the real game")
        results = self._timed("measure", partial(asyncio.run, measure(self, dsn)))
        report = {
            "environment": ENV,
            "size": asdict(self.size),
            "recorded": {"episodes": len(recorded), "real_steps": sum(len(t.transitions) for t in recorded)},
            "commit": commit(),
            "seconds": {**self.seconds, "total": round(time.monotonic() - self._began)},
            **results,
        }
        write_report(report, self.folder)
        self.say(f"report.md, report.json and report.png are in {self.folder}")

    def say(self, text: str) -> None:
        """Talk to the person, with the time since the start."""
        elapsed = int(time.monotonic() - self._began)
        say(f"[{elapsed // 60:02d}:{elapsed % 60:02d}] {text}")

    def _timed(self, stage: str, work: Callable[[], Result]) -> Result:
        began = time.monotonic()
        result = work()
        self.seconds[stage] = round(time.monotonic() - began, 1)
        return result

    @contextmanager
    def _database(self) -> Iterator[str]:
        """A server of its own, gone when the demonstration is done; an interrupted one finds it again."""
        if self._given_dsn is not None:
            yield self._given_dsn
            return
        from dreamgym.replay.embedded import EmbeddedServer, default_folder

        base = default_folder()
        server = EmbeddedServer.start(base.with_name(f"{base.name}-{self.folder.name}"))
        try:
            yield server.dsn
        finally:
            server.release()
        shutil.rmtree(server.folder)

    def _collect(self) -> list[Trajectory]:
        self.say("1/6 collect: playing the real game, well and deliberately badly")
        file = self.folder / "recorded.jsonl"
        if not file.exists():
            tasks = self.real.tasks("train")[: self.size.worlds]
            mixed = asyncio.run(self._played("mixed", tasks, len(tasks) * self.size.episodes_per_world, seed=100_000))
            noisy = asyncio.run(self._played("noisy", tasks, self.size.warm_episodes, seed=0))
            part = file.with_suffix(".part")
            part.write_text("".join(t.model_dump_json() + "\n" for t in [*noisy, *mixed]), encoding="utf-8")
            part.rename(file)
        return read_jsonl(file, Trajectory)

    async def _played(self, behaviour: str, tasks: Sequence[Task], episodes: int, *, seed: int) -> list[Trajectory]:
        played: list[Trajectory] = []
        chosen, spec = self.real.behaviours[behaviour], self.real.spec
        async for trajectory in play_behaviour(
            spec, self.real.create, chosen, tasks, episodes, seed=seed, source=Source.REAL
        ):
            played.append(trajectory)
            if len(played) % 1000 == 0 or len(played) == episodes:
                won = sum(t.success for t in played) / len(played)
                self.say(f"    {behaviour} play: {len(played)} of {episodes} episodes, {won:.0%} successful")
        return played

    async def _seed(self, recorded: Sequence[Trajectory], dsn: str) -> None:
        self.say("2/6 seed: storing it in PostgreSQL, with embeddings")
        async with open_store(dsn) as store:
            for start in range(0, len(recorded), 500):
                await store.buffer.add(recorded[start : start + 500])
                self.say(f"    {min(start + 500, len(recorded))} of {len(recorded)} episodes")

    def _warm_start(self, recorded: Sequence[Trajectory]) -> None:
        from dreamgym_integrations.trainers.policy.sft import clone
        from dreamgym_integrations.trainers.policy.tiny import create_tiny_policy

        self.say("4/6 warm start: a policy of 110 thousand parameters imitates mostly random play")
        if (self.folder / "warm" / "config.json").exists():
            return
        noisy = recorded[: self.size.warm_episodes]
        create_tiny_policy(recorded, self.folder / "untrained", seed=0)
        clone(
            self.real.spec,
            noisy,
            self.folder / "untrained",
            self.folder / "warm",
            steps=self.size.warm_steps,
            batch=32,
            learning_rate=3e-3,
            seed=0,
            on_progress=lambda step, steps: self.say(f"    {step} of {steps} steps"),
        )

    def _train(self, dsn: str) -> None:
        self.say("5/6 train: GRPO inside the dream, through the server; the real game is only looked at")
        spawn = multiprocessing.get_context("spawn")
        digest = hashlib.sha256(str(self.folder).encode()).hexdigest()[:8]
        left = [arm for arm in self.arms if not (self.folder / arm.name / "policy" / "config.json").exists()]
        names = {arm: f"{arm.name.replace('-', '_')}_{digest}" for arm in left}
        for name in names.values():  # a copy of the recordings each: what one run generates, no other one knows
            if not databases.exists(dsn, name):
                databases.create(dsn, name, template=databases.name_of(dsn))
        with ProcessPoolExecutor(2, mp_context=spawn) as pool:
            running = [
                pool.submit(train_arm, self.folder, arm, self.size, databases.dsn_of(dsn, name), self._began)
                for arm, name in names.items()
            ]
            for finished in as_completed(running):
                finished.result()
        for name in names.values():
            databases.drop(dsn, name)


def train_arm(folder: Path, arm: Arm, size: Size, dsn: str, began: float) -> None:
    """Train one arm in this process, in a database of its own."""
    out, real = folder / arm.name, load_real(ENV)
    out.mkdir(exist_ok=True)
    config = TrainConfig(
        steps=size.steps,
        seed=arm.seed,
        probe_every=size.probe_every,
        model="nearest",
        without=() if arm.knows_history else (Part.HISTORY,),
        stop=False,
        keep="last",  # the probes are of test tasks: nothing is chosen by them
    )
    start = time.monotonic()
    run_training(
        Run(
            spec=real.spec,
            env=ENV,
            config=config,
            settings=config.settings(),
            base=folder / "warm",
            out=out,
            probe_tasks=real.tasks("test")[: size.curve_tasks],
            dsn=dsn,
            resume=True,
            on_note=partial(_show, arm.name, began),
        )
    )
    (out / "seconds.json").write_text(json.dumps(round(time.monotonic() - start, 1)), encoding="utf-8")


def _show(arm: str, began: float, line: JsonObject) -> None:
    elapsed = int(time.monotonic() - began)
    clock = f"[{elapsed // 60:02d}:{elapsed % 60:02d}]     {arm:<10} update {line['step']:>3}"
    if "real_success" in line:
        say(f"{clock}: {float(str(line['real_success'])):.0%} of {line['real_episodes']} REAL test episodes successful")
    elif "inside_success" in line and int(str(line["step"])) % 5 == 0:
        say(f"{clock}: {float(str(line['inside_success'])):.0%} successful in the dream")
