"""`dreamgym-serve`: environments, simulated or real, as an MCP server.

SIGTERM and Ctrl-C end it in order, so that running steps are stored and the embedded PostgreSQL is released.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from dreamgym.cli.boundary import run
from dreamgym.cli.options import AllowedHosts, CalibrationFile, Dsn, Host, MinConfidence, ModelName, TokenFile, Without
from dreamgym.dream.model import Part
from dreamgym.embedding import load_encoder
from dreamgym.environment import EnvironmentSpec, load_spec, real_of
from dreamgym.errors import InvalidInput

if TYPE_CHECKING:
    from dreamgym_server.worlds import Worlds

    from dreamgym.replay.postgres import Store

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def serve(
    env: Annotated[list[str], typer.Option(help="An environment's name or folder; may be given several times.")],
    model: ModelName = None,
    real: Annotated[bool, typer.Option("--real", help="Serve the real environments, not dreams of them.")] = False,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    dsn: Dsn = None,
    encoder: Annotated[str | None, typer.Option(help="minilm or trigram, or one of your own.")] = None,
    token_file: TokenFile = None,
    allowed_host: AllowedHosts = None,
    without: Without = None,
    calibration: CalibrationFile = None,
    min_confidence: MinConfidence = 0.0,
    tied: Annotated[bool, typer.Option("--tied", hidden=True, help="End when standard input ends.")] = False,
) -> None:
    """Serve environments over MCP.

    Example: dreamgym-serve --env coin --model nearest
    """
    if real and (model or without or calibration or min_confidence):
        raise InvalidInput("--model, --without, --calibration and --min-confidence are for dreams: not with --real")
    from dreamgym_server.auth import LOOPBACK, check_bind, read_token
    from dreamgym_server.build import build
    from dreamgym_server.running import collect_rarely, running
    from dreamgym_server.worlds import RealWorlds

    token = read_token(token_file)
    check_bind(host, token)
    specs = [load_spec(name) for name in env]
    makers = [real_of(spec).create for spec in specs] if real else []

    async def until_stopped() -> None:
        from dreamgym.replay.postgres import open_store

        stopped = _stop_signal(tied=tied)
        async with AsyncExitStack() as stack:
            store = await open_store(dsn, load_encoder(encoder))
            stack.push_async_callback(store.close)
            worlds: list[Worlds] = [RealWorlds(spec, create) for spec, create in zip(specs, makers, strict=real)]
            if not real:
                options = Options(frozenset(without or ()), calibration, min_confidence)
                worlds = await _dreams(specs, model, store, stack, options)
            served = build(
                worlds,
                store.buffer,
                store.episodes,
                token=token,
                hosts={*LOOPBACK, host, *(allowed_host or ())},
            )
            collect_rarely()
            url = await stack.enter_async_context(running(served, host=host, port=port))
            typer.echo("\n".join(f"{url}/envs/{spec.name}/mcp" for spec in specs))
            await stopped.wait()

    asyncio.run(until_stopped())


def _stop_signal(*, tied: bool) -> asyncio.Event:
    """Set by SIGTERM and Ctrl-C; where it is `tied`, also when nobody holds the other end of standard input."""
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)

    def read() -> None:
        if not os.read(sys.stdin.fileno(), 1024):
            loop.remove_reader(sys.stdin.fileno())
            stopped.set()

    if tied:
        loop.add_reader(sys.stdin.fileno(), read)
    return stopped


class Options(NamedTuple):
    """How to dream."""

    without: frozenset[Part]
    calibration: Path | None
    min_confidence: float


async def _dreams(
    specs: list[EnvironmentSpec], model: str | None, store: Store, stack: AsyncExitStack, options: Options
) -> list[Worlds]:
    from dreamgym_server.worlds import DreamWorlds

    from dreamgym.dream.confidence import Calibration
    from dreamgym.dream.fitted import check_environment
    from dreamgym.dream.load import load_model

    calibration = Calibration.load(options.calibration) if options.calibration else None
    experience = load_model(model, predictions=None if Part.CACHE in options.without else store.predictions)
    for spec in specs:
        check_environment(experience, spec.name)
    stack.push_async_callback(experience.close)
    typer.echo(f"experience model: {experience.name}", err=True)
    for spec in specs:
        if (await store.buffer.counts(spec.name)).transitions == 0:
            typer.echo(f"{spec.name}: nothing is recorded yet; dreamgym collect or dreamgym seed mends that", err=True)
    return [
        DreamWorlds(
            spec,
            experience,
            store.buffer,
            without=options.without,
            calibration=calibration,
            min_confidence=options.min_confidence,
        )
        for spec in specs
    ]


def main() -> None:
    """Entry point of `dreamgym-serve`."""
    run(app)


if __name__ == "__main__":
    main()
