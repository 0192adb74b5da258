"""`dreamgym play`: one episode, printed so that a person can read it."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from dreamgym.cli.options import Dsn, EnvName, ModelName, PolicyUrl, Seed
from dreamgym.runs import play as runs
from dreamgym.runs.opening import Against


def play(
    env: EnvName,
    agent: Annotated[str, typer.Option(help="A behaviour of the environment, an agent, or file.py:function.")],
    against: Annotated[Against, typer.Option(help="Play the dream, or the real environment.")] = Against.DREAM,
    task: Annotated[str | None, typer.Option(help="Id of the task; default: the first of the split.")] = None,
    split: Annotated[str, typer.Option(help="Split of the tasks: train, dev or test.")] = "train",
    policy_url: PolicyUrl = None,
    model: ModelName = None,
    dsn: Dsn = None,
    seed: Seed = 0,
) -> None:
    """Play one episode through the server and print it.

    Example: dreamgym play coin --agent langgraph --against dream --policy-url http://127.0.0.1:8000/v1
    """
    played = asyncio.run(
        runs.play(env, agent, against, task=task, split=split, policy_url=policy_url, model=model, dsn=dsn, seed=seed)
    )
    typer.echo(runs.render(*played))
