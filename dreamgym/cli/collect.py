"""`dreamgym collect`: play an environment with a behaviour or an agent, and keep the episodes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.options import Budget, Cluster, EnvName, ModelName, Seed
from dreamgym.evaluation.episodes import WORKERS
from dreamgym.runs.opening import POLICY_URL_VARIABLE, Against
from dreamgym.runs.spending import spending


def collect(
    env: EnvName,
    agent: Annotated[str, typer.Option(help="A behaviour of the environment (expert, random, …) or an agent.")],
    episodes: Annotated[int, typer.Option(min=1, help="Number of episodes; tasks are taken in turn.")],
    against: Annotated[Against, typer.Option(help="Play the real environment, or a dream of it.")] = Against.REAL,
    out: Annotated[Path | None, typer.Option(help="Write JSONL here instead of storing in the buffer.")] = None,
    split: Annotated[str, typer.Option(help="Split of the tasks: train, dev or test.")] = "train",
    workers: Annotated[
        int, typer.Option(min=1, help="Number of episodes that are played at once; on a cluster, in each worker.")
    ] = WORKERS,
    model: ModelName = None,
    budget: Budget = None,
    seed: Seed = 0,
    cluster: Cluster = None,
) -> None:
    """Play an environment and keep the episodes. The same command again plays those that are not there yet.

    Each episode is kept as soon as it is over. If an episode fails, that is reported, and the others go on. An agent
    uses the chat completions endpoint in the variable OPENAI_BASE_URL.

    Example: dreamgym collect coin --against real --agent mixed --episodes 4000 --workers 8
    """
    from dreamgym.runs import collect as runs

    with spending(budget):
        asyncio.run(
            runs.collect(
                env,
                agent,
                episodes,
                against=against,
                out=out,
                split=split,
                workers=workers,
                policy_url=os.environ.get(POLICY_URL_VARIABLE) or None,
                model=model,
                seed=seed,
                cluster=cluster,
            )
        )
