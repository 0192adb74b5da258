"""`dreamgym train`: a policy practises in the dream, in the real environment, or in one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from dreamgym_integrations.trainers.common.distributed import in_one_process, joined, of_first
from dreamgym_integrations.trainers.common.reporting import reporting

from dreamgym.cli.options import Dsn, EnvName
from dreamgym.environment import EnvironmentSpec, load_spec, real_of
from dreamgym.errors import EnvironmentUnavailable, InvalidInput, StoreError
from dreamgym.runs.console import say
from dreamgym.runs.opening import Against, tasks_of
from dreamgym.runs.settings import described, settings_of
from dreamgym.runs.train.config import TrainConfig
from dreamgym.runs.train.progress import Progress, say_line, shown
from dreamgym.runs.train.run import Run, run_training, updates_for, warm_start
from dreamgym.training.practice import Exchange, Settings, read_record
from dreamgym.types import JsonObject, Task

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}
EPILOG = described(TrainConfig)
RECORDED = {"sft", "dpo"}
"""Algorithms that learn from recordings alone."""


def train(
    context: typer.Context,
    env: EnvName,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings; options go over it.")] = None,
    out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/train"),
    resume: Annotated[bool, typer.Option(help="Continue the run in --out, curriculum included.")] = False,
    dsn: Dsn = None,
) -> None:
    """Train a policy. Metrics go to metrics.jsonl in the run folder, the policy to its folder `policy`.

    Example: dreamgym train coin --policy tiny --steps 100 --against dream --model nearest --out runs/coin
    """
    with joined() as processes:
        begun = of_first(processes, partial(_begun, env, config, context.args, out, resume, dsn, processes.count))
        spec, chosen, base = begun
        if chosen.algorithm in RECORDED:
            from dreamgym.runs.train.recorded import learn_from_recordings

            asyncio.run(learn_from_recordings(spec, chosen, base, out / "policy", dsn))
        else:
            with _resumable(processes):
                practise(Phase(spec, env, chosen, base, out, dsn, resume, processes))


@contextmanager
def _resumable(processes: Exchange) -> Iterator[None]:
    """What ends a run in the middle says how it goes on."""
    try:
        yield
    except (EnvironmentUnavailable, StoreError) as error:
        raise type(error)(f"{error}. What was learned until then is saved: go on with --resume") from error
    except KeyboardInterrupt:
        if processes.index == 0:
            say("stopped: go on with --resume")
        raise


def _begun(
    env: str, file: Path | None, options: Sequence[str], out: Path, resume: bool, dsn: str | None, processes: int
) -> tuple[EnvironmentSpec, TrainConfig, Path]:
    """What is trained, how, and from which policy on; its settings are in the run folder."""
    spec = load_spec(env)
    chosen = settings_of(TrainConfig, file, options)
    if (out / "metrics.jsonl").exists() and not resume:
        raise InvalidInput(f"{out} holds a run already: continue it with --resume, or name another folder with --out")
    if processes > 1:
        _check_alike(chosen)
    out.mkdir(parents=True, exist_ok=True)
    (out / "settings.json").write_text(chosen.model_dump_json(indent=2), encoding="utf-8")
    if chosen.policy != "tiny":
        return spec, chosen, Path(chosen.policy)
    in_one_process(_warm, spec, dsn, out, chosen.seed)
    return spec, chosen, out / "warm"


def _check_alike(config: TrainConfig) -> None:
    """Raises InvalidInput where several processes could not do the same."""
    if config.algorithm in RECORDED:
        raise InvalidInput(f"{config.algorithm} learns from recordings in one process: start it without a launcher")


def _warm(spec: EnvironmentSpec, dsn: str | None, out: Path, seed: int) -> None:
    asyncio.run(warm_start(spec, dsn, out, seed))


@dataclass(frozen=True)
class Phase:
    """Practice in one environment."""

    spec: EnvironmentSpec
    env: str
    config: TrainConfig
    base: Path
    out: Path
    dsn: str | None
    resume: bool
    processes: Exchange
    before: Path | None = None
    """Folder of the phase that it follows."""

    def plan(self) -> tuple[Settings, Sequence[Task]] | None:
        """How to train and what to probe on; None where it is done already."""
        config, out = self.config, self.out
        if (out / "policy" / "config.json").is_file() and self.before is None and config.then is not None:
            return None  # what was interrupted is the phase after this one
        out.mkdir(parents=True, exist_ok=True)
        probed = self._probed()
        if not probed and config.against is Against.DREAM:
            say("no probe: nothing below says anything about the real environment (--probe N plays it)")
        settings = config.settings()
        given = "steps" in config.model_fields_set and self.before is None
        if config.against is Against.REAL and config.real_steps is not None and not given:
            # not its own record: a resumed run plans the same
            record = read_record(self.before / "metrics.jsonl") if self.before else []
            settings = settings.model_copy(
                update={"steps": updates_for(config.real_steps, settings, self.spec, record)}
            )
        return settings, probed

    def _probed(self) -> Sequence[Task]:
        """On which tasks reality is looked at. What an environment folder names is not played unless somebody asks."""
        config = self.config
        asks = config.against is Against.REAL or config.then is not None or "probe" in config.model_fields_set
        if not (self.spec.adapter and config.probe) or (Path(self.env).is_dir() and not asks):
            return []
        return tasks_of(self.spec, "dev", real_of(self.spec))[: config.probe]


def practise(phase: Phase) -> None:
    """In the one environment that is named, and `then` in the real one, which begins with the policy of the dream."""
    play_phase(phase)
    out, config = phase.out, phase.config
    if config.then is not None:
        again = config.model_copy(
            update={
                "against": config.then,
                "then": None,
                "without": (),
                "calibration": None,
                "learning_rate": config.learning_rate * config.then_rate,
            }
        )
        _tell(phase, "now in the real environment")
        play_phase(replace(phase, config=again, base=out / "policy", out=out / "real", before=out))


def play_phase(phase: Phase) -> None:
    """Practise in one environment. The first of several processes shows how it goes."""
    planned = of_first(phase.processes, phase.plan)
    if planned is None:
        return
    settings, probed = planned
    config, out = phase.config, phase.out
    progress = Progress(settings.steps, config.against.value)
    first = phase.processes.index == 0
    log = config.log if first else ()
    with reporting(log, out, config.model_dump(mode="json")) as report, shown(progress) if first else nullcontext():

        def take(line: JsonObject) -> None:
            progress.take(line)
            report(line)
            say_line(progress, line)

        notice = run_training(
            Run(
                phase.spec,
                phase.env,
                config,
                settings,
                phase.base,
                out,
                probed,
                phase.dsn,
                phase.resume,
                take,
                phase.processes,
            )
        )
    if notice is not None:
        _tell(phase, notice)
    _tell(phase, f"policy saved to {out / 'policy'}")


def _tell(phase: Phase, text: str) -> None:
    if phase.processes.index == 0:
        say(text)
