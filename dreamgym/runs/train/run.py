"""One phase of practice: the server in a process of its own, the environments reached through its door."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from dreamgym.curriculum.generator import LanguageVariation, RecordedWorlds, StartVariation, TaskGenerator
from dreamgym.curriculum.sampler import Curriculum, each_alone
from dreamgym.embedding import load_encoder
from dreamgym.environment import EnvironmentSpec, real_of
from dreamgym.replay.predictions import Predictions
from dreamgym.runs.console import say
from dreamgym.runs.opening import Against, open_store, tasks_of
from dreamgym.runs.players import player_at, player_in
from dreamgym.runs.server_process import server_process, without_flags
from dreamgym.runs.train.backing import ServerAndStore
from dreamgym.runs.train.config import TrainConfig
from dreamgym.training.early_stop import Fall, RealProbes, Seen
from dreamgym.training.practice import Alone, Exchange, Practice, Settings, read_record
from dreamgym.training.probe import evaluate
from dreamgym.training.rollout import Player, Policy
from dreamgym.types import JsonObject, Origin, Task, Trajectory

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal
    from dreamgym_integrations.trainers.policy.model import ChatCodec
    from dreamgym_server.worlds import Worlds


@dataclass(frozen=True)
class Run:
    """One phase: where, from what, to where."""

    spec: EnvironmentSpec
    env: str
    config: TrainConfig
    settings: Settings
    base: Path
    out: Path
    probe_tasks: Sequence[Task] = ()
    """Played in the real environment every `probe_every` updates; a measurement, never fed back."""
    dsn: str | None = None
    resume: bool = False
    on_note: Callable[[JsonObject], None] = lambda line: None
    processes: Exchange = field(default_factory=Alone)
    """Those that train together."""


@dataclass(frozen=True)
class _Ground:
    """What practice stands on, as the first process found it: all that the others are told."""

    url: str
    """Of the server."""
    tasks: Sequence[Task]
    generated: Sequence[Task]
    """Those made by `dreamgym tasks --generate`, or by a run before."""
    varies: bool
    """Tasks are varied."""


@dataclass
class _House:
    """What the first process alone has open."""

    run: Run
    backing: ServerAndStore | None = None
    generator: TaskGenerator | None = None

    def open(self, portal: BlockingPortal, opened: ExitStack) -> _Ground:
        """Open the store and start the server, until the stack closes them."""
        run, config = self.run, self.run.config
        store = opened.enter_context(portal.wrap_async_context_manager(open_store(run.dsn)))
        parts = without_flags(config.without)
        if config.calibration is not None:
            parts += ("--calibration", str(config.calibration))
        server = opened.enter_context(
            server_process(run.env, config.against, model=config.model, dsn=store.dsn, extra=parts)
        )
        self.backing, url = ServerAndStore(run.spec, store, server), server.url
        portal.call(self.backing.begin)
        if config.against is Against.REAL:
            return _Ground(url, list(tasks_of(run.spec, "train", real_of(run.spec))), (), varies=False)
        recorded = portal.call(store.buffer.trajectories, run.spec.name)
        self.generator = _generator(run, recorded, store.predictions)
        generated = portal.call(store.buffer.tasks, run.spec.name) if self.generator is not None else ()
        return _Ground(
            url,
            list({t.task.id: t.task for t in recorded}.values()),
            [task for task in generated if task.origin is Origin.GENERATED],
            varies=self.generator is not None,
        )


def run_training(run: Run) -> str | None:
    """Train as the run says, and leave the policy that counts in `out/policy`; what is to be said of it, if anything.

    Of several processes the first opens the store and the server, probes and writes; the others play and learn.
    """
    from anyio.from_thread import start_blocking_portal
    from dreamgym_integrations.trainers.common.distributed import of_first
    from dreamgym_integrations.trainers.policy.train import train_policy

    with start_blocking_portal() as portal, ExitStack() as opened:
        house = _House(run)
        ground = of_first(run.processes, partial(house.open, portal, opened))
        practice = portal.call(_practice, run, house, ground)
        watch = _Watch(run, practice) if run.processes.index == 0 else None
        if (stopped := of_first(run.processes, partial(_stopped_before, run))) is not None:
            return of_first(run.processes, partial(_settle, run, stopped))
        train_policy(
            practice,
            run.base,
            run.out,
            run.settings,
            portal=portal,
            player=lambda policy, codec: _player(run, policy, codec, ground.url),
            probe=watch.probe if watch is not None and run.probe_tasks else None,
            resume=run.resume,
            on_learned=practice.note,
        )
    return of_first(run.processes, partial(_settle, run, None if watch is None else watch.reason))


def _settle(run: Run, reason: str | None) -> str | None:
    """Leave the policy that counts, and say which where it is not the last one."""
    best, policy, partial_copy = (run.out / name for name in ("best", "policy", "policy.partial"))
    if not best.is_dir() or (reason is None and run.config.keep == "last"):
        return reason
    shutil.rmtree(partial_copy, ignore_errors=True)
    shutil.copytree(best, partial_copy)
    shutil.rmtree(policy, ignore_errors=True)
    partial_copy.rename(policy)
    update = _probes(run)[0].best
    if reason is None and update != run.settings.steps:
        return f"the policy is that of update {update}, the best of the probes in the real environment"
    return reason


def _stopped_before(run: Run) -> str | None:
    """Why the run that is to be resumed was stopped by its last probe, where it was.

    Raises:
        InvalidInput: it is another run.
    """
    from dreamgym_integrations.trainers.policy.run_folder import identity, newest_checkpoint

    reason = _reason(run) if run.resume else None
    if reason is not None:
        newest_checkpoint(run.out, identity(run.spec, run.base, run.settings))
    return reason


def updates_for(real_steps: int, settings: Settings, spec: EnvironmentSpec, record: Sequence[JsonObject]) -> int:
    """So many updates use up the real steps, if episodes stay as long as they were; `record` is of practice so far."""
    lengths = [float(str(line["mean_steps"])) for line in record if "mean_steps" in line]
    length = mean(lengths[-10:]) if lengths else spec.max_steps
    return max(1, math.floor(real_steps / (settings.groups * settings.group_size * max(1.0, length))))


async def warm_start(spec: EnvironmentSpec, dsn: str | None, out: Path, seed: int) -> None:
    """Make `out/warm`, a tiny policy that imitates the recorded play, where it is not there yet."""
    if (out / "warm" / "config.json").is_file():
        return
    from dreamgym_integrations.trainers.policy.sft import clone
    from dreamgym_integrations.trainers.policy.tiny import create_tiny_policy

    say("warm start: a tiny policy learns from the recorded play …")
    async with open_store(dsn) as store:
        recorded = await store.buffer.trajectories(spec.name)
    create_tiny_policy(recorded, out / "untrained", seed=seed)
    clone(
        spec,
        recorded,
        out / "untrained",
        out / "warm",
        steps=200,
        batch=32,
        learning_rate=3e-3,
        seed=seed,
        on_progress=lambda step, steps: say(f"    {step} of {steps} steps"),
    )


def _player(run: Run, policy: Policy, codec: ChatCodec, url: str) -> Player:
    """The policy by itself, or the agent with the policy behind it."""
    config = run.config
    return player_at(url, run.spec, policy, codec, agent=config.agent, limit_s=config.episode_limit_s)


async def _practice(run: Run, house: _House, ground: _Ground) -> Practice:
    generator = house.generator
    if generator is None and ground.varies:  # the first process varies; the others wait for what it makes
        generator = StartVariation(run.spec, RecordedWorlds(()))
    settings = run.settings
    groups: Callable[[Task], str] = each_alone
    if settings.algorithm == "ppo":
        from dreamgym.curriculum.clusters import cluster_of

        groups = cluster_of(ground.tasks, load_encoder(None), settings.groups, seed=settings.seed)
    curriculum = Curriculum(
        ground.tasks,
        share=settings.share if ground.varies else 0,
        seed=settings.seed,
        strategy=settings.strategy,
        band=settings.band,
        groups=groups,
    )
    curriculum.add(ground.generated)
    return Practice(
        run.spec,
        curriculum,
        generator,
        settings,
        run.out / "metrics.jsonl",
        where=run.config.against.value,
        real_steps=run.config.real_steps,
        buffer=None if house.backing is None else house.backing.store.buffer,
        backing=house.backing,
        on_note=run.on_note,
    )


def _generator(run: Run, recorded: Sequence[Trajectory], predictions: Predictions) -> TaskGenerator | None:
    from dreamgym.dream.select import load_llm

    worlds = RecordedWorlds(recorded)
    llm = load_llm(run.config.model, predictions=predictions)
    if llm is not None:
        return LanguageVariation(run.spec, llm, worlds)
    return StartVariation(run.spec, worlds) if run.spec.deterministic else None


@dataclass
class _Watch:
    """Looks at the policy in the real environment, on the same tasks each time."""

    run: Run
    practice: Practice
    reason: str | None = None
    """Why training was stopped, where a probe stopped it."""

    async def probe(self, policy: Policy, codec: ChatCodec, update: int) -> Seen:
        """Play the probe's tasks; says whether this is the best policy so far, and whether to stop."""
        run, config = self.run, self.run.config
        async with player_in(
            _reality(run), policy, codec, agent=config.agent, limit_s=config.episode_limit_s
        ) as player:
            result = await evaluate(player, run.probe_tasks, seed=run.settings.seed)
        self.practice.note_probe(update, "real", result)
        self.reason = _reason(run)
        return Seen(best=_probes(run)[0].best == update, stop=self.reason is not None)


def _reality(run: Run) -> Worlds:
    from dreamgym_server.worlds import RealWorlds

    return RealWorlds(run.spec, real_of(run.spec).create)


def _probes(run: Run) -> tuple[RealProbes, Fall | None]:
    """All that the record holds, and what the last of them showed."""
    settings, fall = run.settings, None
    probes = RealProbes(planned=2 + settings.steps // settings.probe_every)
    for line in read_record(run.out / "metrics.jsonl"):
        if isinstance(outcomes := line.get("real_outcomes"), list):
            seen = [None if outcome is None else float(str(outcome)) for outcome in outcomes]
            fall = probes.add(int(str(line["step"])), seen)
    return probes, fall


def _reason(run: Run) -> str | None:
    """Why training must not go on after the last probe."""
    probes, fall = _probes(run)
    if fall is None or not run.config.stop:
        return None
    return (
        f"stopped at update {fall.now}: success in the real environment has fallen since update {fall.best} "
        f"(by chance alone {fall.chance:.2g}), so what is learned in the {run.config.against} no longer helps; "
        f"the policy is that of update {probes.best}"
    )
