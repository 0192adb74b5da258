"""`dreamgym eval`: how often a policy succeeds, with an interval."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.options import Dsn, EnvName, ModelName, Seed, Without
from dreamgym.dream.model import Part
from dreamgym.environment import EnvironmentSpec, load_spec
from dreamgym.runs.opening import Against, open_worlds, real_for, tasks_of
from dreamgym.runs.players import player_in
from dreamgym.training.probe import Evaluation
from dreamgym.training.probe import evaluate as evaluate_policy


def evaluate(
    env: EnvName,
    policy: Annotated[Path, typer.Option(help="A policy's checkpoint folder.")],
    against: Annotated[Against, typer.Option(help="Where the policy plays.")],
    agent: Annotated[
        str | None, typer.Option(help="An agent with the policy behind it. Default: the policy acts by itself.")
    ] = None,
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
        _evaluate(spec, policy, agent, against, split, episodes, model, frozenset(without or ()), dsn, seed)
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
    agent: str | None,
    against: Against,
    split: str,
    episodes: int,
    model: str | None,
    without: frozenset[Part],
    dsn: str | None,
    seed: int,
) -> Evaluation:
    from dreamgym_integrations.trainers.policy.model import load_policy

    policy, codec = load_policy(folder)
    tasks = tasks_of(spec, split, real_for(spec, against))[-episodes:]
    async with (
        open_worlds(spec, against, model=model, without=without, dsn=dsn) as worlds,
        player_in(worlds, policy, codec, agent=agent) as player,
    ):
        return await evaluate_policy(player, tasks, seed=seed)
