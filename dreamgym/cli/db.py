"""`dreamgym db`: look at the embedded PostgreSQL, stop it, or print its address for other programs."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer

from dreamgym.cli.options import Dsn
from dreamgym.runs.opening import open_store

app = typer.Typer(
    help="The embedded PostgreSQL that keeps everything unless --dsn names another.", no_args_is_help=True
)

TABLES = ("environments", "tasks", "trajectories", "transitions", "episodes")


@app.command()
def status(as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False) -> None:
    """Show if the embedded PostgreSQL runs, where its files are, and how many rows it holds.

    Example: dreamgym db status
    """
    from dreamgym.replay import embedded

    found = embedded.status()
    rows = embedded.row_counts(found.dsn, TABLES) if found.running else {}
    if as_json:
        report = {"running": found.running, "folder": str(found.folder), "dsn": found.dsn, "pid": found.pid}
        typer.echo(json.dumps({**report, "rows": rows}))
        return
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
    keep: Annotated[
        int, typer.Option(min=1, help="Dreams to keep of a task that is always solved, per stop reason.")
    ] = 4,
    dsn: Dsn = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Delete what is no longer needed: dreams of tasks always solved, old episodes, predictions and watermarks.

    Real trajectories stay, and so does everything that a running episode may see. An episode is deleted with its steps
    if it ended more than --days ago and its trajectory is in the replay buffer, where it stays; its URLs then answer
    404. A training run that is resumed after a longer pause cannot undo what it played after its last checkpoint. A
    deleted prediction is asked of the model again when it is needed.

    Example: dreamgym db prune --days 30
    """
    from datetime import timedelta

    from dreamgym.replay.postgres.prune import Pruned
    from dreamgym.replay.postgres.prune import prune as prune_store

    async def run() -> Pruned:
        async with open_store(dsn) as store:
            return await prune_store(store, older_than=timedelta(days=days), keep=keep)

    pruned = asyncio.run(run()).model_dump()
    if as_json:
        typer.echo(json.dumps(pruned))
        return
    for name, count in pruned.items():
        typer.echo(f"{count:>12,} {name} deleted")


@app.command()
def url() -> None:
    """Print the address of the embedded PostgreSQL, for psql or --dsn. Fails if it does not run."""
    from dreamgym.replay import embedded

    found = embedded.status()
    if not found.running:
        typer.echo("the embedded PostgreSQL is not running: it starts with the next command that needs it", err=True)
        raise typer.Exit(1)
    typer.echo(found.dsn)
