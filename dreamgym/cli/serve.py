"""`dreamgym-serve`: environments, simulated or real, as an MCP server.

SIGTERM and Ctrl-C end it in order, so that running steps are stored and the embedded PostgreSQL is released.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from dreamgym.cli.boundary import run
from dreamgym.cli.wiring import AllowedHosts, Dsn, Host, ModelName, TokenFile
from dreamgym.embedding import load_encoder
from dreamgym.environment import EnvironmentSpec, load_spec, real_of
from dreamgym.errors import InvalidInput
from dreamgym.experience.model import Part
from dreamgym.replay.buffer import ReplayBuffer

if TYPE_CHECKING:
    from dreamgym_server.worlds import Worlds

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
    hide_reward: Annotated[bool, typer.Option("--hide-reward", help="Keep rewards out of the agents' _meta.")] = False,
    withhold_history: Annotated[
        bool, typer.Option("--withhold-history", help="Retrieve without the episode's history, to show what it costs.")
    ] = False,
) -> None:
    """Serve environments over MCP.

    Example: dreamgym-serve --env coin --model nearest
    """
    if real and (model or withhold_history):
        raise InvalidInput("--model and --withhold-history are for dreams: leave them out with --real")
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

        stopped = _stop_signal()
        async with AsyncExitStack() as stack:
            store = await open_store(dsn, load_encoder(encoder))
            stack.push_async_callback(store.close)
            worlds: list[Worlds] = [RealWorlds(spec, create) for spec, create in zip(specs, makers, strict=real)]
            if not real:
                worlds = await _dreams(specs, model, store.buffer, stack, withhold_history=withhold_history)
            served = build(
                worlds,
                store.buffer,
                store.episodes,
                token=token,
                hosts={*LOOPBACK, host, *(allowed_host or ())},
                hides_reward=hide_reward,
            )
            collect_rarely()
            url = await stack.enter_async_context(running(served, host=host, port=port))
            typer.echo("\n".join(f"{url}/envs/{spec.name}/mcp" for spec in specs))
            await stopped.wait()

    asyncio.run(until_stopped())


def _stop_signal() -> asyncio.Event:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    return stopped


async def _dreams(
    specs: list[EnvironmentSpec],
    model: str | None,
    buffer: ReplayBuffer,
    stack: AsyncExitStack,
    *,
    withhold_history: bool,
) -> list[Worlds]:
    from dreamgym_server.worlds import DreamWorlds

    from dreamgym.experience.select import load_model

    experience = load_model(model)
    stack.push_async_callback(experience.close)
    typer.echo(f"experience model: {experience.name}", err=True)
    for spec in specs:
        if (await buffer.counts(spec.name)).transitions == 0:
            typer.echo(f"{spec.name}: nothing is recorded yet; dreamgym collect or dreamgym seed mends that", err=True)
    without = frozenset({Part.HISTORY}) if withhold_history else frozenset()
    return [DreamWorlds(spec, experience, buffer, without=without) for spec in specs]


def main() -> None:
    """Entry point of `dreamgym-serve`."""
    run(app)


if __name__ == "__main__":
    main()
