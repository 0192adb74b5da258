"""Serves environments from this process, after storing what is new in their folders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dreamgym.dream.confidence import Calibration
from dreamgym.dream.model import Part
from dreamgym.environment import EnvironmentSpec, load_spec, real_of
from dreamgym.errors import EnvironmentUnavailable, InvalidInput, in_one_line
from dreamgym.evaluation.setting import Setting
from dreamgym.llm import Pingable
from dreamgym.runs.console import say
from dreamgym.runs.opening import dream_setting, open_store
from dreamgym.runs.seed import claim, folder_of, read_folder, store

if TYPE_CHECKING:
    from dreamgym_server.sources import Worlds

    from dreamgym.replay.postgres import Store


PING_S = 5.0
"""Seconds within which a model's endpoint should answer when the server starts."""


@asynccontextmanager
async def serving(
    envs: Sequence[str],
    *,
    model: str | None = None,
    real: bool = False,
    keeps: bool = False,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    hosts: Iterable[str] = (),
    dsn: str | None = None,
    encoder: str | None = None,
    without: Collection[Part] = (),
    calibration: Path | None = None,
    min_confidence: float = 0.0,
    takes_in: bool = True,
) -> AsyncIterator[tuple[str, ...]]:
    """Serve environments over MCP, and yield the MCP URL of each.

    Args:
        envs: names and folders of environments.
        model: the experience model of the dreams, as in `--model`: `local without history`.
        real: serve the real environments.
        keeps: store real episodes as recordings, from which dreams are made.
        host: address to listen on; one that others can reach needs a token.
        port: port to listen on; 0 takes a free one.
        token: the bearer token that every request must carry; None lets everyone in.
        hosts: host names by which the server may be addressed, besides this machine's own.
        dsn: DSN of the store; None: the embedded server.
        encoder: name of the store's encoder; None: the default of `load_encoder`.
        without: further parts of the method to leave out of the dreams.
        calibration: file, written by `dreamgym fidelity`, that gives answers their confidence.
        min_confidence: an episode ends if the confidence of an answer is lower.
        takes_in: first store what is new or changed in the environment folders. Real environments do not need this.

    Raises:
        InvalidInput: an environment, the model, or a file of a folder cannot be used; the store holds another folder's
            environment of the same name; options of dreams are given with `real`; or `keeps` is set without `real`.
        UnknownName: there is no such environment.
        StoreError: the store cannot be reached.
    """
    from dreamgym_server.app import build
    from dreamgym_server.auth import LOOPBACK, check_bind
    from dreamgym_server.running import running
    from dreamgym_server.sources import RealWorlds
    from dreamgym_server.view.answers import Answers
    from dreamgym_server.view.library import Library

    from dreamgym.replay.postgres.listing import StoredEpisodes

    if real and (model or without or calibration or min_confidence):
        raise InvalidInput("--model, --calibration and --min-confidence are for dreams: leave them out with --real")
    if keeps and not real:
        raise InvalidInput("--store is for --real: episodes of a dream are never stored as recordings")
    chosen = dream_setting(model, without)
    check_bind(host, token)
    found = [await read_folder(env) for env in envs] if takes_in and not real else []
    specs = [load_spec(env) for env in envs]  # after the folders were built: recordings may have brought other tools
    worlds: list[Worlds] = [RealWorlds(spec, real_of(spec).create, keeps=keeps) for spec in specs] if real else []
    async with AsyncExitStack() as stack:
        opened = await stack.enter_async_context(open_store(dsn, encoder))
        if not real or keeps:
            await claim([folder for env in envs if (folder := folder_of(env)) is not None], opened)
        for seeds in found:
            if seeds is not None:
                await store(seeds, opened)
        if real and takes_in:  # otherwise another verb started this server and prints this itself
            stored = "are stored as recordings" if keeps else "are not stored as recordings; --store stores them"
            say(f"real episodes {stored}")
        if not real:
            calibrated = Calibration.load(calibration) if calibration else None
            worlds = await _dreams(specs, chosen, opened, stack, calibrated, min_confidence)
        answers = Answers(Library(store=StoredEpisodes(opened.database), buffer=opened.buffer))
        app = build(
            worlds, opened.buffer, opened.episodes, token=token, hosts={*LOOPBACK, host, *hosts}, answers=answers
        )
        url = await stack.enter_async_context(running(app, host=host, port=port))
        if takes_in:  # a person started this server, and not another verb
            say(f"see the episodes at {url}/view/")
        yield tuple(f"{url}/envs/{spec.name}/mcp" for spec in specs)


async def serve_until_stopped(
    server: AbstractAsyncContextManager[tuple[str, ...]], tell: Callable[[str], None], *, tied: bool = False
) -> None:
    """Open a server, report its URLs, and serve until SIGTERM or Ctrl-C.

    Args:
        server: the result of `serving`.
        tell: is called with the URLs, one per line.
        tied: stop at the end of standard input too.
    """
    from dreamgym_server.running import collect_rarely, stop_signal

    stopped = stop_signal(tied=tied)
    async with server as urls:
        collect_rarely()
        tell("\n".join(urls))
        await stopped.wait()


async def _dreams(
    specs: Sequence[EnvironmentSpec],
    chosen: Setting,
    store: Store,
    stack: AsyncExitStack,
    calibration: Calibration | None,
    min_confidence: float,
) -> list[Worlds]:
    """Dreams of all environments with one model, which is closed with the stack."""
    from dreamgym_server.sources import DreamWorlds

    from dreamgym.dream.fitted import check_environment
    from dreamgym.dream.load import load_model

    without = frozenset(chosen.without)
    experience = load_model(chosen.model or None, predictions=None if Part.CACHE in without else store.predictions)
    stack.push_async_callback(experience.close)
    for spec in specs:
        check_environment(experience, spec.name)
    say(f"experience model: {experience.name}")
    if isinstance(experience, Pingable):
        await _tell_if_away(experience)
    for spec in specs:
        if (await store.buffer.counts(spec.name)).transitions == 0:
            say(f"{spec.name}: nothing is recorded yet; record episodes with `dreamgym collect` or `dreamgym record`")
    return [
        DreamWorlds(
            spec, experience, store.buffer, without=without, calibration=calibration, min_confidence=min_confidence
        )
        for spec in specs
    ]


async def _tell_if_away(model: Pingable) -> None:
    """Print a warning if the model's endpoint does not answer now. The server starts anyway, as it may answer later."""
    try:
        async with asyncio.timeout(PING_S):
            await model.ping()
    except (EnvironmentUnavailable, TimeoutError) as error:
        reason = in_one_line(error) or f"no answer within {PING_S:g} s"
        say(f"the model does not answer now; steps that need it are unavailable until it does: {reason}")
