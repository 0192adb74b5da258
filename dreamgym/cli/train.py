"""`dreamgym train`: GRPO with the curriculum, in the dream or in the real environment, through the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dreamgym.cli.wiring import (
    Against,
    Dsn,
    EnvName,
    ModelName,
    Seed,
    Without,
    left_out,
    opened_store,
    say,
    server,
    tasks_of,
    without_flags,
)
from dreamgym.curriculum.generator import LanguageVariation, RecordedWorlds, StartVariation, TaskGenerator
from dreamgym.curriculum.sampler import Curriculum
from dreamgym.environment import Environment, EnvironmentSpec, load_spec, real_of
from dreamgym.errors import InvalidInput
from dreamgym.evaluation import evaluate
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.rollout import Codec, Policy, TokenPlayer
from dreamgym.training import Practice, Settings
from dreamgym.types import JsonObject, Task, Trajectory

if TYPE_CHECKING:
    from dreamgym_integrations.trainers.run import Probe

TRAINABLE = "react"


@dataclass(frozen=True)
class Run:
    """One training run: where, from what, to where."""

    spec: EnvironmentSpec
    env: str
    against: Against
    base: Path
    out: Path
    settings: Settings
    probe_tasks: Sequence[Task] = ()
    """Played in the real environment every `probe_every` updates; a measurement, never fed back."""
    model: str | None = None
    dsn: str | None = None
    server_flags: Sequence[str] = ()
    resume: bool = False
    on_note: Callable[[JsonObject], None] = lambda line: None


def train(
    env: EnvName,
    policy: Annotated[str, typer.Option(help="Checkpoint folder to start from, or `tiny`: made from the recordings.")],
    steps: Annotated[int, typer.Option(min=1, help="Policy updates.")],
    against: Annotated[Against, typer.Option(help="Where the policy practises.")] = Against.DREAM,
    agent: Annotated[str, typer.Option(help="The agent around the policy; so far the built-in one.")] = TRAINABLE,
    out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/train"),
    resume: Annotated[bool, typer.Option(help="Continue the run in --out, curriculum included.")] = False,
    probe: Annotated[int, typer.Option(min=0, help="Real dev episodes per probe; 0 for none.")] = 200,
    model: ModelName = None,
    without: Without = None,
    dsn: Dsn = None,
    seed: Seed = 0,
) -> None:
    """Train a policy. Metrics go to metrics.jsonl in the run folder, the policy to its folder `policy`.

    Example: dreamgym train coin --policy tiny --steps 100 --against dream --model nearest --out runs/coin
    """
    spec = load_spec(env)
    flags = without_flags(left_out(without, against))
    if agent != TRAINABLE:
        raise InvalidInput(f"agent {agent!r} cannot be trained yet: only {TRAINABLE!r}, whose tokens are recorded here")
    if (out / "metrics.jsonl").exists() and not resume:
        raise InvalidInput(f"{out} holds a run already: continue it with --resume, or name another folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    if policy == "tiny" and not (out / "warm").exists():
        say("warm start: a tiny policy learns from the recorded play …")
        asyncio.run(_warm_start(spec, dsn, out, seed))
    probed = tasks_of(spec, "dev")[:probe] if spec.adapter and probe else []
    if not probed:
        say("no probe: the curve below says nothing about the real environment")
    settings = Settings(steps=steps, seed=seed)
    base = out / "warm" if policy == "tiny" else Path(policy)
    run_training(Run(spec, env, against, base, out, settings, probed, model, dsn, flags, resume, _show))
    say(f"policy saved to {out / 'policy'}")


def run_training(run: Run) -> None:
    """Train as the run says: the server in a process of its own, the environments reached through its door."""
    from anyio.from_thread import start_blocking_portal
    from dreamgym_client.environment import RemoteEnvironment
    from dreamgym_integrations.trainers.run import train_policy

    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(opened_store(run.dsn)) as store,
        server(run.env, run.against, model=run.model, dsn=store.dsn, extra=run.server_flags) as url,
    ):

        def remote(version: int, group: str) -> Environment:
            return RemoteEnvironment(url, run.spec.name, policy_version=version, group=group)

        practice = portal.call(_practice, run, store.buffer)
        train_policy(
            practice,
            run.base,
            run.out,
            run.settings,
            portal=portal,
            player=lambda policy, codec: TokenPlayer(policy, codec, run.spec, remote),
            probe=_probe(run, practice) if run.probe_tasks else None,
            resume=run.resume,
        )


async def _practice(run: Run, buffer: ReplayBuffer) -> Practice:
    recorded = await buffer.trajectories(run.spec.name)
    tasks = list({t.task.id: t.task for t in recorded}.values())
    if run.against is Against.REAL:
        tasks = list(tasks_of(run.spec, "train"))
    generator = _generator(run, recorded) if run.against is Against.DREAM else None
    curriculum = Curriculum(tasks, share=run.settings.share if generator else 0, seed=run.settings.seed)
    record = run.out / "metrics.jsonl"
    return Practice(run.spec, curriculum, generator, run.settings, record, buffer=buffer, on_note=run.on_note)


def _generator(run: Run, recorded: Sequence[Trajectory]) -> TaskGenerator | None:
    from dreamgym.experience.select import load_llm

    worlds = RecordedWorlds(recorded)
    llm = load_llm(run.model)
    if llm is not None:
        return LanguageVariation(run.spec, llm, worlds)
    return StartVariation(run.spec, worlds) if run.spec.deterministic else None


def _probe(run: Run, practice: Practice) -> Probe:
    async def probe(policy: Policy, codec: Codec, step: int) -> None:
        real = real_of(run.spec)
        player = TokenPlayer(policy, codec, run.spec, lambda version, group: real.create())
        result = await evaluate(player, run.probe_tasks, seed=step)
        practice.note_probe(step, "real", result)

    return probe


async def _warm_start(spec: EnvironmentSpec, dsn: str | None, out: Path, seed: int) -> None:
    from dreamgym_integrations.trainers.sft import clone
    from dreamgym_integrations.trainers.tiny import create_tiny_policy

    async with opened_store(dsn) as store:
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


def _show(line: JsonObject) -> None:
    if "real_success" in line or int(str(line["step"])) % 5 == 0:
        say(json.dumps(line))
