"""`dreamgym serve`, and `dreamgym-serve`: environments, simulated or real, as an MCP server.

SIGTERM and Ctrl-C end it in order, so that running steps are stored and the embedded PostgreSQL is released.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from dreamgym.cli.boundary import run
from dreamgym.cli.options import AllowedHosts, CalibrationFile, Dsn, Host, MinConfidence, ModelName, TokenFile, Without
from dreamgym.errors import InvalidInput

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def serve(
    envs: Annotated[
        list[str] | None, typer.Argument(metavar="ENV...", help="Environment folders, or names of environments.")
    ] = None,
    env: Annotated[list[str] | None, typer.Option("--env", help="Another way to give ENV.")] = None,
    model: ModelName = None,
    real: Annotated[bool, typer.Option("--real", help="Serve the real environments, not dreams of them.")] = False,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    dsn: Dsn = None,
    encoder: Annotated[
        str | None,
        typer.Option(help="Text encoder: minilm, trigram, or a registered one. Default: minilm if installed."),
    ] = None,
    token_file: TokenFile = None,
    allowed_host: AllowedHosts = None,
    without: Without = None,
    calibration: CalibrationFile = None,
    min_confidence: MinConfidence = 0.0,
    tied: Annotated[bool, typer.Option("--tied", hidden=True, help="End when standard input ends.")] = False,
) -> None:
    """Serve environments over MCP. New and changed trajectories and tasks of environment folders are stored first.

    Example: dreamgym serve crm/ --model nearest
    """
    from dreamgym_server.auth import read_token
    from dreamgym_server.running import collect_rarely, stop_signal

    from dreamgym.runs.serve import serving

    named = [*(envs or ()), *(env or ())]
    if not named:
        raise InvalidInput("expected an environment to serve: a folder, such as crm/, or a name")

    async def until_stopped() -> None:
        stopped = stop_signal(tied=tied)
        async with serving(
            named,
            model=model,
            real=real,
            host=host,
            port=port,
            token=read_token(token_file),
            hosts=allowed_host or (),
            dsn=dsn,
            encoder=encoder,
            without=without or (),
            calibration=calibration,
            min_confidence=min_confidence,
            takes_in=not tied,  # a verb that starts a server has chosen what is in the store
        ) as urls:
            collect_rarely()
            typer.echo("\n".join(urls))
            await stopped.wait()

    asyncio.run(until_stopped())


def main() -> None:
    """Entry point of `dreamgym-serve`."""
    run(app)


if __name__ == "__main__":
    main()
