"""`dreamgym db`: look at the embedded PostgreSQL, stop it, or print its address for other programs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

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
    """Stop it, whoever uses it. It starts again with the next command that needs it."""
    from dreamgym.replay import embedded

    typer.echo("stopped" if embedded.stop() else "it was not running")


@app.command()
def url() -> None:
    """Print its address, for psql or --dsn. Fails when it is not running."""
    from dreamgym.replay import embedded

    found = embedded.status()
    if not found.running:
        typer.echo("the embedded PostgreSQL is not running: it starts with the next command that needs it", err=True)
        raise typer.Exit(1)
    typer.echo(found.dsn)
