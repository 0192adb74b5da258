"""`dreamgym play`: one episode, printed so that a person can read it."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import typer

from dreamgym.cli.options import EnvName, ModelName
from dreamgym.runs import play as runs
from dreamgym.runs.opening import POLICY_URL_VARIABLE, Against


def play(
    env: EnvName,
    agent: Annotated[str, typer.Option(help="A behaviour of the environment, an agent, or file.py:function.")],
    against: Annotated[Against, typer.Option(help="Play the dream, or the real environment.")] = Against.DREAM,
    task: Annotated[str | None, typer.Option(help="Id of the task. Default: the first training task.")] = None,
    model: ModelName = None,
) -> None:
    """Play one episode through the server and print it. An agent gets the endpoint in the variable OPENAI_BASE_URL.

    Example: dreamgym play coin --agent expert --against real
    """
    policy_url = os.environ.get(POLICY_URL_VARIABLE)
    played = asyncio.run(runs.play(env, agent, against, task=task, policy_url=policy_url, model=model))
    typer.echo(runs.render(*played))
