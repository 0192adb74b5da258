"""`dreamgym serve`, and `dreamgym-serve`: environments, simulated or real, as an MCP server.

SIGTERM and Ctrl-C end it in order, so that running steps are stored and the embedded PostgreSQL is released.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.boundary import run
from dreamgym.cli.options import AllowedHosts, Budget, Host, ModelName, TokenFile

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def serve(
    envs: Annotated[list[str], typer.Argument(metavar="ENV...", help="Environment folders, or names of environments.")],
    model: ModelName = None,
    budget: Budget = None,
    real: Annotated[bool, typer.Option("--real", help="Serve the real environments, not dreams of them.")] = False,
    store: Annotated[bool, typer.Option("--store", help="With --real: store the episodes as recordings.")] = False,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    token_file: TokenFile = None,
    allowed_host: AllowedHosts = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Calibration of the model's confidence, written by `dreamgym fidelity`.")
    ] = None,
    min_confidence: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="End an episode if an answer has a lower confidence; needs --calibration."),
    ] = 0.0,
) -> None:
    """Serve environments over MCP. New and changed trajectories and tasks of environment folders are stored first.

    Example: dreamgym serve crm/ --model nearest
    """
    from dreamgym_server.auth import read_token

    from dreamgym.runs.serve import serve_until_stopped, serving
    from dreamgym.runs.server_process import TIED_VARIABLE
    from dreamgym.runs.spending import spending
    from dreamgym.runs.tracing import exported_spans

    tied = bool(os.environ.pop(TIED_VARIABLE, ""))  # child processes must not inherit it
    server = serving(
        envs,
        model=model,
        real=real,
        keeps=store,
        host=host,
        port=port,
        token=read_token(token_file),
        hosts=allowed_host or (),
        calibration=calibration,
        min_confidence=min_confidence,
        takes_in=not tied,  # a verb that starts a server has already chosen what is in the store
    )
    with spending(budget), exported_spans():
        asyncio.run(serve_until_stopped(server, typer.echo, tied=tied))


def main() -> None:
    """Entry point of `dreamgym-serve`."""
    run(app, "serve")


if __name__ == "__main__":
    main()
