"""`dreamgym db`: show what the database contains, and delete parts of it or all that stays on the machine."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from dreamgym.runs.console import for_terminal, say

app = typer.Typer(
    help="The database: the embedded PostgreSQL, unless DREAMGYM_DSN names another.", no_args_is_help=True
)

NAMED = "Id of a trajectory, of a recorded run or of a training run."
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
MOST_DAYS = 36_500
"""A century. PostgreSQL has no date that is millions of days ago."""
TABLES = ("environments", "tasks", "trajectories", "transitions", "episodes")


@app.command()
def status() -> None:
    """Show if the embedded PostgreSQL runs, where its files are, and how many rows it holds.

    Example: dreamgym db status
    """
    from dreamgym.replay import embedded

    found = embedded.status()
    rows = embedded.row_counts(found.dsn, TABLES) if found.running else {}
    typer.echo(f"{'running, process ' + str(found.pid) if found.running else 'not running'}, files in {found.folder}")
    for table, count in rows.items():
        typer.echo(f"{count:>12,} {table}")


@app.command()
def stop() -> None:
    """Stop the embedded PostgreSQL, even if it is in use. The next command that needs it starts it again.

    Example: dreamgym db stop
    """
    from dreamgym.replay import embedded

    typer.echo("stopped" if embedded.stop() else "it was not running")


@app.command()
def prune(
    days: Annotated[
        int, typer.Option(min=1, max=MOST_DAYS, help="Delete episodes, predictions and watermarks older than this.")
    ] = 30,
) -> None:
    """Delete what is no longer needed: dreams of tasks always solved, old episodes, predictions and watermarks.

    Real trajectories stay, and so does everything that a running episode may see. An episode is deleted if it ended
    more than --days ago and its trajectory is in the replay buffer. The trajectory stays there; the episode's URLs then
    answer 404. A run that is resumed after a longer pause cannot undo what it played after its last checkpoint. If a
    deleted prediction is needed, the model is asked again.

    Example: dreamgym db prune --days 30
    """
    from dreamgym.runs import prune as runs

    for name, count in asyncio.run(runs.prune(days)).model_dump().items():
        typer.echo(f"{count:>12,} {name} deleted")


@app.command()
def show(
    env: Annotated[str | None, typer.Argument(metavar="ENV", help="Name of an environment, or its folder.")] = None,
    name: Annotated[str | None, typer.Argument(metavar="RUN|TRAJECTORY", help=NAMED)] = None,
) -> None:
    """List what is stored: of each environment, of one, of a run of it, or one trajectory with its steps.

    Example: dreamgym db show crm
    """
    from dreamgym.runs import stored

    typer.echo(for_terminal(asyncio.run(stored.described(None if env is None else stored.env_named(env), name))))


@app.command()
def forget(
    env: Annotated[str, typer.Argument(metavar="ENV", help="Name of an environment, or its folder.")],
    name: Annotated[str | None, typer.Argument(metavar="RUN|TRAJECTORY", help=NAMED)] = None,
    yes: Yes = False,
) -> None:
    """Delete what is stored of an environment, of a run of it, or one trajectory. Folders stay as they are.

    All of it is deleted or nothing, and other environments stay. Episodes that are being played end. A server forgets
    what it has learned when it is restarted. A folder that is served or seeded again is stored again.

    Example: dreamgym db forget crm --yes
    """
    from dreamgym.runs import stored

    env = stored.env_named(env)
    say(asyncio.run(stored.described(env, name)))
    if not yes and not typer.confirm("Delete all of this?", err=True):
        raise typer.Exit(1)
    done = asyncio.run(stored.forget(env, name))
    for counted, count in done.model_dump().items():
        typer.echo(f"{count:>12,} {counted} deleted")


@app.command()
def remove(yes: Yes = False) -> None:
    """Delete all that stays on this machine when the packages are uninstalled, the embedded database first.

    It first lists what this is: the database, the key of the redaction, models, and for root the system user that runs
    PostgreSQL. If DREAMGYM_HOME is set, it deletes only what lies below it. Environment folders and runs/ stay. It
    deletes nothing while other processes use the database.

    Example: dreamgym db remove
    """
    from dreamgym.runs import remove as runs

    found = runs.leftovers()
    if not found:
        typer.echo("there is nothing to remove")
        return
    say(runs.described(found))
    if not yes and not typer.confirm("Delete all of this?", err=True):
        raise typer.Exit(1)
    runs.remove(found)
    typer.echo("removed; `pip uninstall dreamgym` removes the packages")


@app.command()
def url() -> None:
    """Print the address of the embedded PostgreSQL, for psql or other programs. Fails if it does not run.

    Example: psql "$(dreamgym db url)"
    """
    from dreamgym.replay import embedded

    found = embedded.status()
    if not found.running:
        typer.echo("the embedded PostgreSQL is not running: it starts with the next command that needs it", err=True)
        raise typer.Exit(1)
    typer.echo(found.dsn)
