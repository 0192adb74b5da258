"""`dreamgym env`: list the environments, describe one, and test if it works on this machine."""

from __future__ import annotations

import asyncio
import json as json_
from typing import Annotated

import typer

from dreamgym.cli.options import Seed
from dreamgym.runs import environments
from dreamgym.runs.environments import described, diagnose, list_all, reported

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A registered name, a folder with an env.toml, or module:function.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]

app = typer.Typer(
    no_args_is_help=True, help="List and describe the real environments, and test if they work on this machine."
)


@app.command("list")
def list_(json: AsJson = False) -> None:
    """List the environments, and what is missing for those that cannot be played here.

    Example: dreamgym env list
    """
    rows = list_all()
    if json:
        typer.echo(json_.dumps([row.model_dump() for row in rows], indent=2))
        return
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        state = "ready" if row.is_playable else "needs"
        typer.echo(f"{row.name:<{width}}  {state}  {row.missing or row.description}")


@app.command()
def show(name: Name, json: AsJson = False) -> None:
    """Describe an environment: tools, tasks, behaviours, limits.

    Example: dreamgym env show coin
    """
    shown = environments.show(name)
    typer.echo(shown.model_dump_json(indent=2) if json else described(shown))


@app.command()
def doctor(
    name: Name,
    split: Annotated[str, typer.Option(help="Split of the tasks: train, dev or test.")] = "dev",
    episodes: Annotated[
        int, typer.Option(min=1, help="Number of episodes that are played at random to measure the time of a step.")
    ] = 3,
    json: AsJson = False,
    seed: Seed = 0,
) -> None:
    """Test an environment: its packages, its tasks, a few random episodes, the contract, and the time of a step.

    The exit code is 1 if something does not work.

    Example: dreamgym env doctor coin
    """
    found = asyncio.run(diagnose(name, split, episodes, seed))
    typer.echo(found.model_dump_json(indent=2) if json else reported(found))
    if not found.is_well:
        raise typer.Exit(1)
