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
    """Whether it runs, where its files are, and how much it holds.

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
    """Stop it, whoever uses it. It starts again with the next command that needs it, or call of a running server."""
    from dreamgym.replay import embedded

    typer.echo("stopped" if embedded.stop() else "it was not running")


@app.command()
def prune(
    days: Annotated[int, typer.Option(min=1, help="Episodes, predictions and watermarks older than this go.")] = 30,
    keep: Annotated[int, typer.Option(min=1, help="Dreams kept of a task that is always solved, per way to end.")] = 4,
    dsn: Dsn = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Delete what nobody needs any more: dreams of tasks that are always solved, old episodes, predictions, watermarks.

    What was seen in reality stays, and so does what a running episode may see. An episode goes, with its steps, when it
    was over for so long and the replay buffer has its trajectory, which stays; its URLs answer 404 then. A training run
    that is resumed after a longer rest cannot take back what it played after its last checkpoint. A prediction that
    went is asked of the model again when it is needed.

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
    """Print its address, for psql or --dsn. Fails when it is not running."""
    from dreamgym.replay import embedded

    found = embedded.status()
    if not found.running:
        typer.echo("the embedded PostgreSQL is not running: it starts with the next command that needs it", err=True)
        raise typer.Exit(1)
    typer.echo(found.dsn)
