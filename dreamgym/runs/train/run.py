"""One training run: in a dream, in the real environment, or in one after the other.

The environments run behind a server in a process of its own, or in this process (`in_process`). If several processes
train together, only the first opens the store, starts the server, probes and writes. The others play their share and
learn.
"""

from __future__ import annotations

import asyncio
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, TypeVar

from dreamgym_integrations.trainers.common.distributed import in_one_process, joined, of_first
from dreamgym_integrations.trainers.common.reporting import reporting
from pydantic import TypeAdapter

from dreamgym.curriculum.generator import LanguageVariation, RecordedWorlds, StartVariation, TaskGenerator
from dreamgym.curriculum.goal_variation import goal_variation, held_out
from dreamgym.curriculum.sampler import Curriculum, each_alone
from dreamgym.dream.mapped import mapped_worlds
from dreamgym.dream.model import Part
from dreamgym.embedding import load_encoder
from dreamgym.environment import EnvironmentSpec, load_spec, real_of
from dreamgym.errors import BudgetSpent, EnvironmentUnavailable, InvalidInput, StoreError
from dreamgym.evaluation.setting import Setting
from dreamgym.files import alone_in, make_folder, write_whole
from dreamgym.redaction import redact_by, redacted_task
from dreamgym.runs.console import say
from dreamgym.runs.estimate import of_episodes, say_estimate
from dreamgym.runs.kept import read_kept
from dreamgym.runs.opening import (
    Against,
    as_described,
    check_model,
    may_be_learned,
    open_store,
    say_tasks_of_no_split,
    seeded,
    stored_trajectories,
    tasks_of,
    unrecorded,
)
from dreamgym.runs.players import player_at
from dreamgym.runs.server_process import server_process
from dreamgym.runs.train.backing import Backing, ServerAndStore, in_process
from dreamgym.runs.train.config import NEW, RECORDED, TrainConfig
from dreamgym.runs.train.memory import say_memory
from dreamgym.runs.train.probing import ProbesInReality
from dreamgym.runs.train.progress import Progress, say_line, shown
from dreamgym.runs.train.recorded import learn_from_recordings
from dreamgym.training.practice import Practice, ProcessGroup, Settings
from dreamgym.training.record import read_record
from dreamgym.training.rollout import Player, Policy, TokenPlayer
from dreamgym.types import JsonObject, Origin, Task, Trajectory

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal
    from dreamgym_integrations.trainers.policy.model import PolicyCodec

T = TypeVar("T")
LARGE = 40_000_000
"""Size of a checkpoint's weights, in bytes, from which on a policy learns slowly: ten million weights of 32 bits."""
THEN_RATE = 0.3
"""Share of the learning rate with which the phase `then` begins, because its few real steps refine the policy."""


def train(
    env: str,
    config: TrainConfig | Callable[[], TrainConfig],
    out: Path,
    *,
    resume: bool = False,
    dsn: str | None = None,
) -> Path:
    """Train a policy.

    Under a launcher such as torchrun, every process calls this, and only the first prints and writes.

    Args:
        env: the environment's name, or its folder.
        config: settings of the run, or a function that reads them, which only the first process calls.
        out: run folder: settings.json, metrics.jsonl, checkpoints and, at the end, the checkpoint folder `policy`.
        resume: continue the run in `out`, curriculum included.
        dsn: DSN of the store; None: the embedded server.

    Returns:
        The folder of the trained policy.

    Raises:
        InvalidInput: the settings do not fit together, `out` contains a run and `resume` is not set, it contains a
            policy that was learned from recordings, or another training works in it.
        BudgetSpent: the budget was spent in the middle of an update, which is played again with `resume`.
        EnvironmentUnavailable: every rollout of an update failed, or the server does not come back.
        StoreError: the database does not come back.
        TrainingStopped: there is nothing to learn from, or a checkpoint cannot be saved.
        KeyboardInterrupt: after Ctrl-C, when the running update is done and saved; after a second Ctrl-C, at once.
    """
    with joined() as processes, ExitStack() as held:

        def begin() -> TrainRun:
            chosen = config if isinstance(config, TrainConfig) else config()
            return TrainRun.begin(env, chosen, out, held, resume=resume, dsn=dsn, processes=processes.count)

        run = replace(of_first(processes, begin), processes=processes)
        if run.config.algorithm in RECORDED:
            asyncio.run(learn_from_recordings(run.spec, run.config, run.base, run.policy, dsn))
            return run.policy
        with _resumable(processes):
            run.play()
            if (second := run.then) is None:
                return run.policy
            run.tell("now in the real environment")
            second.play()
            return second.policy


@contextmanager
def _resumable(processes: ProcessGroup) -> Iterator[None]:
    """Add to the errors that interrupt a run how to continue it."""
    try:
        yield
    except (BudgetSpent, EnvironmentUnavailable, StoreError) as error:
        raise type(error)(f"{error}. What was learned until then is saved: continue with --resume") from error
    except KeyboardInterrupt:
        if processes.index == 0:
            say("stopped: continue with --resume")
        raise


@dataclass(frozen=True)
class _Served:
    """The server and the tasks that the first process opened: all that the other processes need to know."""

    url: str | None
    """None if the first process plays by itself."""
    tasks: Sequence[Task]
    generated: Sequence[Task]
    """Tasks made by `dreamgym tasks --generate`, or by an earlier run."""
    varies: bool
    """True if tasks are varied."""


@dataclass(frozen=True)
class TrainRun:
    """Practice in one environment, from one policy, in one run folder."""

    spec: EnvironmentSpec
    env: str
    """Name or folder of the environment, as it is given to the server's process."""
    config: TrainConfig
    base: Path
    """Checkpoint folder of the policy to start from."""
    out: Path
    dsn: str | None = None
    resume: bool = False
    processes: ProcessGroup | None = None
    """The processes that train together; set by `train`."""
    before: Path | None = None
    """Folder of the run in a dream that this one in the real environment follows."""

    @classmethod
    def begin(
        cls,
        env: str,
        config: TrainConfig,
        out: Path,
        held: ExitStack,
        *,
        resume: bool,
        dsn: str | None,
        processes: int,
    ) -> TrainRun:
        """Write the settings and, for a policy from scratch, make its warm start. Raises InvalidInput.

        No other training can use the folder `out` until `held` is closed.
        """
        is_begun = (out / "metrics.jsonl").exists()
        if is_begun and not resume:
            raise InvalidInput(
                f"{out} holds a run already: continue it with --resume, or give another folder with --out"
            )
        if (out / "policy").exists() and not is_begun:
            raise InvalidInput(f"{out / 'policy'} is there already: give another folder with --out, or remove it")
        if processes > 1 and config.in_process:
            raise InvalidInput("in_process plays in one process: leave it out, or start without a launcher")
        if processes > 1 and config.algorithm in RECORDED:
            raise InvalidInput(f"{config.algorithm} learns from recordings in one process: start it without a launcher")
        base = Path(config.policy)
        if config.policy not in NEW and not config.tinker and not (base / "config.json").is_file():
            raise InvalidInput(
                f"no policy checkpoint in {base}: expected a folder with a config.json, as training saves it"
            )
        config = _with_rate(config, base)
        # a resumed run goes on with what it knows
        spec = load_spec(env) if config.stored_only or (resume and is_begun) else asyncio.run(seeded(env, dsn))
        _check_reality(config, spec, processes)
        if not is_begun and config.algorithm not in RECORDED and config.against is Against.DREAM:
            asyncio.run(check_model(config.model, spec))  # a resumed run keeps its model
        make_folder(out)
        held.enter_context(alone_in(out, waits=False))
        settings = out / "settings.json"
        if is_begun and settings.is_file():
            kind: TypeAdapter[JsonObject] = TypeAdapter(JsonObject)
            before = read_kept(settings, kind, "the settings of a run", "give another folder with --out")
            _check_same_play(out, before, config)
        else:
            write_whole(settings, config.model_dump_json(indent=2))
        if config.policy in NEW:
            base = out / "warm"
            if not (resume and (base / "config.json").is_file()):
                in_one_process(_warm_start, config.policy, spec, dsn, out, config.seed)
        return cls(spec, env, config, base, out, dsn, resume)

    @property
    def policy(self) -> Path:
        """Checkpoint folder of the trained policy."""
        return self.out / "policy"

    @property
    def then(self) -> TrainRun | None:
        """The run in the real environment that follows, if the settings ask for one."""
        config = self.config
        if config.then is None:
            return None
        update = {
            "against": config.then,
            "then": None,
            "without": (),
            "calibration": None,
            "learning_rate": config.learning_rate * THEN_RATE,
        }
        again = config.model_copy(update=update)
        return replace(self, config=again, base=self.policy, out=self.out / "real", before=self.out)

    def tell(self, text: str) -> None:
        """Print the text once, however many processes train."""
        if self._is_first:
            say(text)

    def play(self) -> None:
        """Train, and leave the policy that counts in `out/policy`. The first process shows the progress."""
        planned = self._of_first(self._plan)
        if planned is None:
            return
        settings, probed = planned
        progress = Progress(settings.steps, self.config.against.value)
        log, drawn = (self.config.log, shown(progress)) if self._is_first else ((), nullcontext())
        with reporting(log, self.out, self.config.model_dump(mode="json")) as report, drawn:

            def take(line: JsonObject) -> None:
                progress.take(line)
                report(line)
                say_line(progress, line)

            notice = self._practise(settings, probed, take)
        if notice is not None:
            self.tell(notice)
        self.tell(f"policy saved to {self.policy}; dreamgym view {self.out} shows the run")

    @property
    def _processes(self) -> ProcessGroup:
        assert self.processes is not None, "`train` sets it"
        return self.processes

    @property
    def _is_first(self) -> bool:
        return self._processes.index == 0

    def _of_first(self, make: Callable[[], T]) -> T:
        return of_first(self._processes, make)

    def _plan(self) -> tuple[Settings, Sequence[Task]] | None:
        """Settings to train with and tasks to probe on; None if the run after this one has begun."""
        config, out = self.config, self.out
        if self.then is not None and self.then.out.is_dir() and self.policy.is_dir():
            return None
        out.mkdir(parents=True, exist_ok=True)
        # an environment folder's own code is run only if the user asks for the real environment
        asks = config.against is Against.REAL or config.then is not None or "probe" in config.model_fields_set
        probed: Sequence[Task] = []
        if self.spec.adapter and config.probe and (asks or not Path(self.env).is_dir()):
            probed = tasks_of(self.spec, "dev", real_of(self.spec))[: config.probe]
        if not probed and config.against is Against.DREAM:
            say("no probe: the figures below show nothing about the real environment (--probe N measures it)")
        if config.agent is None and not self.spec.is_over_when_done and self.before is None:
            say(
                f"{self.spec.name!r} does not end its tasks, and a policy without an agent never says that it is done: "
                f"its episodes end after {self.spec.max_steps} steps, which is no success; give an --agent"
            )
        settings = config.settings()
        given = "steps" in config.model_fields_set and self.before is None
        if config.against is Against.REAL and config.real_steps is not None and not given:
            # from the record of the run before, not its own, so that a resumed run makes the same plan
            record = read_record(self.before / "metrics.jsonl") if self.before else []
            steps = updates_for(config.real_steps, settings, self.spec, record)
            settings = settings.model_copy(update={"steps": steps})
        return settings, probed

    def _practise(
        self, settings: Settings, probed: Sequence[Task], on_note: Callable[[JsonObject], None]
    ) -> str | None:
        """Train. Return a notice on the policy that is left, if there is one."""
        from anyio.from_thread import start_blocking_portal
        from dreamgym_integrations.trainers.policy.memory import of_practice
        from dreamgym_integrations.trainers.policy.train import train_policy

        config = self.config
        with start_blocking_portal() as portal, ExitStack() as opened:
            backing: Backing | None = None
            generator: TaskGenerator | None = None

            def open_server() -> _Served:
                nonlocal backing, generator
                backing = self._open(portal, opened)
                tasks, generator = portal.call(self._tasks, backing)
                made = portal.call(backing.store.buffer.tasks, self.spec.name) if generator is not None else ()
                redact = redact_by(self.spec.redact)
                generated = [redacted_task(task, redact) for task in made if task.origin is Origin.GENERATED]
                url = backing.server.url if isinstance(backing, ServerAndStore) else None
                return _Served(url, tasks, generated, varies=generator is not None)

            served = self._of_first(open_server)
            if generator is None and served.varies:  # the first process varies tasks; the others wait for its tasks
                generator = StartVariation(self.spec, RecordedWorlds(()))
            practice = Practice(
                self.spec,
                _curriculum(self.spec, served, settings),
                generator,
                settings,
                self.out / "metrics.jsonl",
                where=config.against.value,
                real_steps=config.real_steps,
                buffer=None if backing is None else backing.store.buffer,
                backing=backing,
                on_note=on_note,
            )
            watch = ProbesInReality(self.spec, config, settings, practice, self.out, probed)
            if (stopped := self._of_first(lambda: self._stopped_before(watch, settings))) is not None:
                return self._of_first(lambda: watch.settle(stopped))

            def player(policy: Policy, codec: PolicyCodec) -> Player:
                if backing is not None and not isinstance(backing, ServerAndStore):
                    return TokenPlayer(policy, codec, self.spec, backing.environment)
                assert served.url is not None, "several processes play at the first one's server"
                return player_at(served.url, self.spec, policy, codec, agent=config.agent)

            if self._is_first and not settings.tinker and config.policy not in NEW:
                say_memory(of_practice(self.base, settings, processes=self._processes.count))
            train_policy(
                practice,
                self.base,
                self.out,
                settings,
                portal=portal,
                player=player,
                probe=watch.probe if self._is_first and probed else None,
                resume=self.resume,
                on_learned=practice.note,
            )
        return self._of_first(lambda: watch.settle(watch.reason))

    def _stopped_before(self, watch: ProbesInReality, settings: Settings) -> str | None:
        """Why the last probe stopped the resumed run; None if it did not. Raises InvalidInput if it is another run."""
        from dreamgym_integrations.trainers.policy.run_folder import identity, newest_checkpoint

        reason = watch.recorded_reason() if self.resume else None
        if reason is not None:
            newest_checkpoint(self.out, identity(self.spec, self.base, settings))
        return reason

    def _open(self, portal: BlockingPortal, opened: ExitStack) -> Backing:
        """Open the store, and start the server or the sessions of this process, until the stack closes them."""
        config = self.config
        store = opened.enter_context(portal.wrap_async_context_manager(open_store(self.dsn)))
        if config.in_process:
            here = opened.enter_context(portal.wrap_async_context_manager(in_process(self.spec, config, store)))
            portal.call(here.begin)
            return here
        model = str(Setting(model=config.model or "", without=config.without)) or None
        extra = [] if config.calibration is None else ["--calibration", str(config.calibration)]
        extra += ["--store"] if config.against is Against.REAL else []
        server = opened.enter_context(server_process(self.env, config.against, model=model, dsn=store.dsn, extra=extra))
        backing = ServerAndStore(self.spec, store, server)
        portal.call(backing.begin)
        return backing

    async def _tasks(self, backing: Backing) -> tuple[list[Task], TaskGenerator | None]:
        """The tasks to practise, and what varies them: nothing in reality, or if `share` is less than one task."""
        from dreamgym.dream.load import load_llm

        if self.config.against is Against.REAL:
            return list(tasks_of(self.spec, "train", real_of(self.spec))), None
        recorded = await backing.store.buffer.trajectories(self.spec.name)
        tasks = practised(self.spec, recorded)
        worlds = RecordedWorlds(as_described(self.spec, recorded))
        config = self.config
        llm = load_llm(config.model, predictions=backing.store.predictions)
        settings, chosen = config.settings(), Setting(model=config.model or "", without=config.without)
        done = sum("rollout_s" in line for line in read_record(self.out / "metrics.jsonl"))
        alike = settings.group_size
        if episodes := max(0, settings.steps - done) * settings.groups * alike:
            say_estimate(await of_episodes(self.spec, chosen, recorded, episodes, alike=alike, seed=config.seed), say)
        if int(settings.share * settings.groups) == 0:
            if settings.share:
                say(
                    f"no tasks are generated: --share {settings.share:g} of --groups {settings.groups} is less than "
                    f"one task; give --groups {math.ceil(1 / settings.share)}, a larger --share, or --share 0 for none"
                )
            return tasks, None
        if not {Part.EFFECTS, Part.STATE, Part.RETRIEVAL} & set(chosen.without):
            goals = goal_variation(self.spec, await mapped_worlds(self.spec, backing.store.buffer))
            if goals is not None:
                return tasks, goals
        if llm is not None:
            return tasks, LanguageVariation(self.spec, llm, worlds, held_out=partial(held_out, self.spec))
        return tasks, StartVariation(self.spec, worlds) if self.spec.deterministic else None


def practised(spec: EnvironmentSpec, recorded: Sequence[Trajectory]) -> list[Task]:
    """The tasks to practise in a dream: recorded ones, and those of the environment's description, redacted.

    A task that was not recorded must be playable and decidable. So it needs a check, and a known start: either the task
    has an initial state, or all episodes begin alike. Tasks of a split other than `train` are left out.

    Raises:
        InvalidInput: all tasks are of another split.
    """
    tasks = {trajectory.task.id: trajectory.task for trajectory in as_described(spec, recorded)}
    redact = redact_by(spec.redact)
    for task in unrecorded(spec):
        tasks.setdefault(task.id, redacted_task(task, redact))
    say_tasks_of_no_split(tasks.values())
    found = [task for task in tasks.values() if may_be_learned(task)]
    if tasks and not found:
        raise InvalidInput(
            f"no task of {spec.name!r} to practise: expected tasks without a split or of the split 'train', and all "
            f"{len(tasks)} are of another, such as {next(iter(tasks))!r}: change metadata.split"
        )
    return found


def _curriculum(spec: EnvironmentSpec, served: _Served, settings: Settings) -> Curriculum:
    groups: Callable[[Task], str] = each_alone
    if settings.algorithm == "ppo":
        from dreamgym.curriculum.clusters import cluster_of

        groups = cluster_of(served.tasks, load_encoder(), settings.groups, seed=settings.seed)
    curriculum = Curriculum(
        served.tasks,
        share=settings.share if served.varies else 0,
        seed=settings.seed,
        strategy=settings.strategy,
        groups=groups,
        held_out=partial(held_out, spec),
    )
    curriculum.add(served.generated)
    return curriculum


def updates_for(real_steps: int, settings: Settings, spec: EnvironmentSpec, record: Sequence[JsonObject]) -> int:
    """Number of updates that use up the real steps, if episodes stay as long as in `record`, the practice so far."""
    lengths = [float(str(line["mean_steps"])) for line in record if "mean_steps" in line]
    length = mean(lengths[-10:]) if lengths else spec.max_steps
    return max(1, math.floor(real_steps / (settings.groups * settings.group_size * max(1.0, length))))


def _check_reality(config: TrainConfig, spec: EnvironmentSpec, processes: int) -> None:
    """Raises InvalidInput if a dream before reality would be in vain.

    There must be a real environment, and the real steps must pay for one update.
    """
    if Against.REAL in (config.against, config.then):
        real_of(spec)
    least = config.group_size * spec.max_steps * processes
    if config.real_steps is not None and config.real_steps < least:
        raise InvalidInput(
            f"--real-steps {config.real_steps} is not enough for one update: {processes * config.group_size} episodes "
            f"may take {least} steps; give more, or lower --group-size"
        )


def _with_rate(config: TrainConfig, base: Path) -> TrainConfig:
    """The settings, with a lower learning rate for a large policy if none is given: 1e-3 would destroy it at once."""
    weights = [*base.glob("*.safetensors"), *base.glob("*.bin")]
    large = bool(config.tinker) or sum(file.stat().st_size for file in weights) >= LARGE
    if "learning_rate" in config.model_fields_set or not large:
        return config
    imitates, adapts = config.algorithm in RECORDED, bool(config.lora or config.tinker)
    rates = {(False, False): 2e-6, (False, True): 2e-5, (True, False): 1e-5, (True, True): 2e-4}
    return config.model_copy(update={"learning_rate": rates[imitates, adapts]})


def _check_same_play(out: Path, before: JsonObject, config: TrainConfig) -> None:
    """Raise InvalidInput if a resumed run would play otherwise than it began; `Identity` compares what it learns."""

    def is_same(was: object, now: object) -> bool:
        if isinstance(was, str) and isinstance(now, str) and ".py:" in was and ".py:" in now:  # files of an agent
            (was, begun), (now, given) = was.rsplit(":", 1), now.rsplit(":", 1)
            return begun == given and is_same(was, now)
        if not (isinstance(was, str) and isinstance(now, str) and Path(now).exists()):
            return was == now
        # of a path that is gone only its last part counts, since a run may go on in another folder
        return Path(was).samefile(now) if Path(was).exists() else Path(was).name == Path(now).name

    mine = config.model_dump(mode="json")
    names = ["algorithm", "against", "model", "without", "agent", "calibration"]
    names += ["policy"] if config.policy in NEW else []
    changed = [
        f"{name} was {before[name]} and is {mine[name]} now"
        for name in names
        if name in before and not is_same(before[name], mine[name])
    ]
    if changed:
        raise InvalidInput(f"{out} contains another run: {', '.join(changed)}; start this one in another folder")


def _warm_start(named: str, spec: EnvironmentSpec, dsn: str | None, out: Path, seed: int) -> None:
    """Make `out/warm`, a policy from scratch that imitates the recordings. That of an earlier run is removed.

    Nothing is learned from tasks of a split other than `train`.
    """
    from dreamgym_integrations.trainers.policy.scratch import warm_start

    for name in ("untrained", "warm"):
        shutil.rmtree(out / name, ignore_errors=True)
    say(f"warm start: a {named} policy learns from the recorded play …")
    stored = as_described(spec, asyncio.run(stored_trajectories(spec, dsn)))
    recorded = [one for one in stored if may_be_learned(one.task)]
    warm_start(
        named, spec, recorded, out, seed=seed, on_progress=lambda step, steps: say(f"    {step} of {steps} steps")
    )
