"""`dreamgym train`: a policy practises in the dream, in the real environment, or in one after the other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from dreamgym_integrations.trainers.reporting import reporting

from dreamgym.cli.settings import described, settings_of
from dreamgym.cli.train.config import TrainConfig
from dreamgym.cli.train.progress import Progress, say_line, shown
from dreamgym.cli.train.run import Run, run_training, updates_for, warm_start
from dreamgym.cli.wiring import Against, Dsn, EnvName, say, tasks_of
from dreamgym.environment import EnvironmentSpec, load_spec
from dreamgym.errors import InvalidInput
from dreamgym.training import read_record
from dreamgym.types import JsonObject

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}
EPILOG = described(TrainConfig)


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
    spec = load_spec(env)
    chosen = settings_of(TrainConfig, config, context.args)
    if (out / "metrics.jsonl").exists() and not resume:
        raise InvalidInput(f"{out} holds a run already: continue it with --resume, or name another folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    (out / "settings.json").write_text(chosen.model_dump_json(indent=2), encoding="utf-8")
    base = Path(chosen.policy)
    if chosen.policy == "tiny":
        base = out / "warm"
        asyncio.run(warm_start(spec, dsn, out, chosen.seed))
    if chosen.algorithm in ("sft", "dpo"):
        from dreamgym.cli.train.recorded import learn_from_recordings

        asyncio.run(learn_from_recordings(spec, chosen, base, out / "policy", dsn))
    else:
        practise(spec, env, chosen, base, out, dsn, resume=resume)


def practise(
    spec: EnvironmentSpec, env: str, config: TrainConfig, base: Path, out: Path, dsn: str | None, *, resume: bool
) -> None:
    """In the one environment that is named, and `then` in the real one, which begins with the policy of the dream."""
    phase(spec, env, config, base, out, dsn, resume=resume)
    if config.then is not None:
        again = config.model_copy(update={"against": config.then, "then": None, "refresh": 0, "without": ()})
        say("now in the real environment")
        phase(spec, env, again, out / "policy", out / "real", dsn, resume=resume, before=out)


def phase(
    spec: EnvironmentSpec,
    env: str,
    config: TrainConfig,
    base: Path,
    out: Path,
    dsn: str | None,
    *,
    resume: bool,
    before: Path | None = None,
) -> None:
    """Practise in one environment; `before` is the folder of the phase that it follows."""
    if (out / "policy" / "config.json").is_file() and before is None and config.then is not None:
        return  # what was interrupted is the phase after this one
    out.mkdir(parents=True, exist_ok=True)
    probed = tasks_of(spec, "dev")[: config.probe] if spec.adapter and config.probe else []
    if not probed and config.against is Against.DREAM:
        say("no probe: nothing below says anything about the real environment")
    settings = config.settings()
    if config.against is Against.REAL and config.real_steps is not None:
        record = read_record(before / "metrics.jsonl") if before else []  # not its own: a resumed run plans the same
        settings = settings.model_copy(update={"steps": updates_for(config.real_steps, settings, spec, record)})
    progress = Progress(settings.steps, config.against.value)
    with reporting(config.log, out, config.model_dump(mode="json")) as report, shown(progress):

        def take(line: JsonObject) -> None:
            progress.take(line)
            report(line)
            say_line(progress, line)

        ended = run_training(Run(spec, env, config, settings, base, out, probed, dsn, resume, take, progress.take))
    if ended is not None:
        say(ended)
    say(f"policy saved to {out / 'policy'}")
