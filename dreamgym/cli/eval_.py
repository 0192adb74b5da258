"""`dreamgym eval`: how often a policy succeeds, with an interval."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.wiring import (
    Against,
    Dsn,
    EnvName,
    ModelName,
    Seed,
    Without,
    environment_maker,
    left_out,
    opened_store,
    remembered,
    tasks_of,
)
from dreamgym.environment import EnvironmentSpec, load_spec, real_of
from dreamgym.evaluation import Evaluation
from dreamgym.evaluation import evaluate as evaluate_policy
from dreamgym.experience.model import Part
from dreamgym.rollout import TokenPlayer


def evaluate(
    env: EnvName,
    policy: Annotated[Path, typer.Option(help="A policy's checkpoint folder.")],
    against: Annotated[Against, typer.Option(help="Where the policy plays.")],
    split: Annotated[str, typer.Option(help="Whose tasks are played.")] = "test",
    episodes: Annotated[
        int, typer.Option(min=1, help="The last so many tasks of the split are played once each.")
    ] = 500,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    model: ModelName = None,
    without: Without = None,
    dsn: Dsn = None,
    seed: Seed = 0,
) -> None:
    """Play tasks with a trained policy and count successes.

    Example: dreamgym eval coin --policy runs/demo/policy --against real --split test --episodes 500 --json
    """
    spec = load_spec(env)
    result = asyncio.run(
        _evaluate(spec, policy, against, split, episodes, model, left_out(without, against), dsn, seed)
    )
    if json:
        typer.echo(result.model_dump_json(exclude={"outcomes"}, indent=2))
        return
    typer.echo(f"success {result.success} over {result.success.n} episodes of {spec.name} ({against}, {split})")
    typer.echo(f"refused actions {result.refused_share:.1%}, steps per episode {result.mean_steps:.1f}")
    if result.failed:
        typer.echo(f"{result.failed} episodes failed with the environment and are not counted")


async def _evaluate(
    spec: EnvironmentSpec,
    folder: Path,
    against: Against,
    split: str,
    episodes: int,
    model: str | None,
    without: frozenset[Part],
    dsn: str | None,
    seed: int,
) -> Evaluation:
    from dreamgym_integrations.trainers.policy import load_policy

    from dreamgym.experience.select import load_model

    policy, codec = load_policy(folder)
    tasks = tasks_of(spec, split)[-episodes:]
    if against is Against.REAL:
        real = real_of(spec)
        return await evaluate_policy(
            TokenPlayer(policy, codec, spec, lambda version, group: real.create()), tasks, seed=seed
        )
    async with opened_store(dsn) as store:
        chosen = remembered(load_model(model, env=spec.name), model, store, without)
        make = environment_maker(spec, against, chosen, store.buffer, without=without)
        return await evaluate_policy(TokenPlayer(policy, codec, spec, lambda version, group: make()), tasks, seed=seed)
