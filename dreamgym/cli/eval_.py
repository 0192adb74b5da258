"""`dreamgym eval`: measure how often a policy succeeds, with an interval."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.options import Budget, Cluster, EnvName, ModelName, Seed
from dreamgym.runs.opening import Against
from dreamgym.runs.spending import spending


def evaluate(
    env: EnvName,
    policy: Annotated[Path, typer.Option(help="A policy's checkpoint folder.")],
    against: Annotated[Against, typer.Option(help="Play in the dream, or in the real environment.")],
    agent: Annotated[
        str | None, typer.Option(help="An agent with the policy behind it. Default: the policy acts by itself.")
    ] = None,
    split: Annotated[str, typer.Option(help="Split of the tasks: train, dev or test.")] = "test",
    episodes: Annotated[
        int, typer.Option(min=1, help="Number of tasks, taken from the end of the split; each is played once.")
    ] = 500,
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, with the outcome of each task.")
    ] = False,
    model: ModelName = None,
    budget: Budget = None,
    seed: Seed = 0,
    cluster: Cluster = None,
) -> None:
    """Play tasks with a trained policy and count successes. Exit code 1 if no episode counts.

    Example: dreamgym eval coin --policy runs/coin/policy --against real --split test --episodes 500 --json
    """
    from dreamgym.runs import evaluate as runs

    with spending(budget):
        result = asyncio.run(
            runs.evaluate(
                env,
                policy,
                against,
                agent=agent,
                split=split,
                episodes=episodes,
                model=model,
                seed=seed,
                cluster=cluster,
            )
        )
    if json:
        typer.echo(result.model_dump_json(indent=2))
    else:
        typer.echo(f"success {result.success} over {result.success.n} episodes of {env} ({against}, {split})")
        typer.echo(f"refused actions {result.refused_share:.1%}, steps per episode {result.mean_steps:.1f}")
        if result.failed:
            lost = f"{result.failed} episodes failed because of the environment and are not counted"
            typer.echo(f"{lost}: {result.fault}")
        if result.unjudged:
            typer.echo(
                f"{result.unjudged} episodes are not counted, since their reward is unknown: give the tasks a check of "
                "their own (metadata.success)"
            )
    if not result.success.n:
        raise typer.Exit(1)
