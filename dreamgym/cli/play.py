"""`dreamgym play`: play one episode and print it as readable text."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import typer

from dreamgym.cli.options import Budget, EnvName, ModelName
from dreamgym.runs.console import for_terminal, say
from dreamgym.runs.opening import POLICY_URL_VARIABLE, Against
from dreamgym.runs.spending import spending


def play(
    env: EnvName,
    agent: Annotated[str, typer.Option(help="A behaviour of the environment, an agent, or file.py:function.")],
    against: Annotated[Against, typer.Option(help="Play the dream, or the real environment.")] = Against.DREAM,
    task: Annotated[str | None, typer.Option(help="Id of the task. Default: the first training task.")] = None,
    model: ModelName = None,
    budget: Budget = None,
    store: Annotated[
        bool, typer.Option("--store", help="With --against real: store the episode as a recording.")
    ] = False,
) -> None:
    """Play one episode through the server and print it.

    A real episode is not stored unless --store is given. An agent uses the chat completions endpoint in the variable
    OPENAI_BASE_URL.

    Example: dreamgym play coin --agent langgraph --against real
    """
    from dreamgym.runs import play as runs

    policy_url = os.environ.get(POLICY_URL_VARIABLE) or None
    with spending(budget) as ledger:
        played = asyncio.run(runs.play(env, agent, against, task=task, policy_url=policy_url, model=model, keeps=store))
        ledger.check()
    typer.echo(for_terminal(runs.render(*played)))
    if against is Against.REAL:
        say("stored as a recording" if store else "not stored; --store stores a real episode as a recording")
