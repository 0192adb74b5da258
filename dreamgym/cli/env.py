"""`dreamgym env`: list the environments, describe one, and test if it works on this machine."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A registered name, a folder with an env.toml, or module:function.")
]

app = typer.Typer(
    no_args_is_help=True, help="List and describe the real environments, and test if they work on this machine."
)


@app.command("list")
def list_() -> None:
    """List the environments, and what is missing for those that cannot be played here.

    Example: dreamgym env list
    """
    from dreamgym.runs import environments

    rows = environments.list_all()
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        state = "ready" if row.is_playable else "needs"
        typer.echo(f"{row.name:<{width}}  {state}  {row.missing or row.description}")


@app.command()
def show(name: Name) -> None:
    """Describe an environment: tools, tasks, behaviours, limits.

    Example: dreamgym env show coin
    """
    from dreamgym.runs import environments

    typer.echo(environments.described(environments.show(name)))


@app.command()
def doctor(name: Name) -> None:
    """Test an environment: its packages, tasks and contract, and the time of a step in three random episodes.

    The episodes have tasks of split dev, or of another split if dev has none. The exit code is 1 if something does not
    work.

    Example: dreamgym env doctor coin
    """
    from dreamgym.runs import environments

    found = asyncio.run(environments.diagnose(name))
    typer.echo(environments.reported(found))
    if not found.is_well:
        raise typer.Exit(1)
