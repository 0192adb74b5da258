"""`dreamgym db`: look at the embedded PostgreSQL, stop it, or print its address for other programs."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from dreamgym.runs import prune as runs

app = typer.Typer(help="The embedded PostgreSQL, used unless DREAMGYM_DSN names another.", no_args_is_help=True)

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
    """Stop the embedded PostgreSQL, even if it is in use. Whoever needs it next starts it again."""
    from dreamgym.replay import embedded

    typer.echo("stopped" if embedded.stop() else "it was not running")


@app.command()
def prune(
    days: Annotated[int, typer.Option(min=1, help="Delete episodes, predictions and watermarks older than this.")] = 30,
) -> None:
    """Delete what is no longer needed: dreams of tasks always solved, old episodes, predictions and watermarks.

    Real trajectories stay, and so does everything that a running episode may see. An episode is deleted if it ended
    more than --days ago and its trajectory is in the replay buffer, where it stays; its URLs then answer 404. A run
    that is resumed after a longer pause cannot undo what it played after its last checkpoint. A deleted prediction is
    asked of the model again when it is needed.

    Example: dreamgym db prune --days 30
    """
    for name, count in asyncio.run(runs.prune(days)).model_dump().items():
        typer.echo(f"{count:>12,} {name} deleted")


@app.command()
def url() -> None:
    """Print the address of the embedded PostgreSQL, for psql or other programs. Fails if it does not run."""
    from dreamgym.replay import embedded

    found = embedded.status()
    if not found.running:
        typer.echo("the embedded PostgreSQL is not running: it starts with the next command that needs it", err=True)
        raise typer.Exit(1)
    typer.echo(found.dsn)
