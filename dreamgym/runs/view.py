"""The web page that shows a store and a run folder: served on this machine, or written as files without a server."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING

from dreamgym.embedding import load_encoder
from dreamgym.errors import DreamGymError, InvalidInput, StoreError
from dreamgym.runs.console import say
from dreamgym.runs.opening import DSN_VARIABLE

if TYPE_CHECKING:
    from dreamgym_server.view.library import Library

    from dreamgym.replay.postgres.buffer import PostgresBuffer
    from dreamgym.replay.postgres.database import Database


async def view_until_stopped(
    folder: Path | None, tell: Callable[[str, str], None], *, port: int, write: str | None
) -> None:
    """Serve the page on this machine until SIGTERM or Ctrl-C.

    Args:
        folder: run folder that is shown beside the store; None: the store alone.
        tell: is called with the page's address, which contains its token, and one that works only once. The second is
            for the command line of a browser, which every user of the machine can read.
        port: port to listen on; 0 takes a free one.
        write: URL of a server with the same store. At this server, the page forks episodes and plays on by hand. The
            token comes from DREAMGYM_TOKEN or the URL. None: the page only reads.

    Raises:
        InvalidInput: there is no such folder, the URL cannot be one, or the port is taken.
        StoreError: the store cannot be reached, and there is no folder to show.
    """
    from dreamgym_server.app import build_view
    from dreamgym_server.auth import read_token
    from dreamgym_server.running import running, stop_signal
    from dreamgym_server.view.answers import Answers
    from dreamgym_server.view.hand import Hand

    stopped = stop_signal()
    hand = None if write is None else Hand(write, read_token(None))
    token, code = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    async with _library(folder) as library:
        answers = Answers(library, hand)
        async with running(build_view(answers, token, code), port=port) as url:
            tell(f"{url}/view/#token={token}", f"{url}/view/open/{code}")
            await stopped.wait()


async def export_view(folder: Path | None, out: Path) -> int:
    """Write the page as files that need no server; return the number of episodes in it.

    Args:
        folder: run folder, which alone is exported; None: the whole store.
        out: folder for the files; an earlier export in it is replaced.

    Raises:
        InvalidInput: there is no such run folder, or `out` contains something other than an export.
        StoreError: the store cannot be reached.
    """
    from dreamgym_server.view.answers import Answers
    from dreamgym_server.view.export import export
    from dreamgym_server.view.folders import RunFolder
    from dreamgym_server.view.library import Library

    if folder is not None:
        _check_folder(folder)
        return await export(Answers(Library(folder=RunFolder(folder))), out, say)
    async with _library(None) as library:
        return await export(Answers(library), out, say)


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        found = "expected a run folder, got a file" if folder.exists() else "there is no such run folder"
        raise InvalidInput(f"{folder}: {found}")


@asynccontextmanager
async def _library(folder: Path | None) -> AsyncIterator[Library]:
    """The store and the folder, for reading. A folder is shown even if the store cannot be reached."""
    from dreamgym_server.view.folders import RunFolder
    from dreamgym_server.view.library import Library

    from dreamgym.replay.postgres.listing import StoredEpisodes
    from dreamgym.replay.postgres.store import open_database

    if folder is not None:
        _check_folder(folder)
    shown = None if folder is None else RunFolder(folder)
    async with AsyncExitStack() as stack:
        try:
            database = await stack.enter_async_context(open_database(environ.get(DSN_VARIABLE) or None))
        except DreamGymError as error:
            if shown is None:
                raise
            library = Library(folder=shown, absent=f"the store is not shown: {error}")
        else:
            buffer = await _buffer(database)
            if buffer is not None:
                stack.push_async_callback(buffer.close)
            library = Library(store=StoredEpisodes(database), folder=shown, buffer=buffer)
        yield library


async def _buffer(database: Database) -> PostgresBuffer | None:
    """The replay buffer, for its search; None if this process does not have the encoder that filled it.

    An empty store has no encoder yet, and looking at it does not give it one.
    """
    from dreamgym.replay.postgres.buffer import PostgresBuffer

    try:
        encoder = load_encoder()
        rows = await database.fetch("SELECT id, fingerprint FROM encoders WHERE ready", {})
    except (InvalidInput, StoreError):
        return None
    if not rows or rows[0][1] != encoder.fingerprint:
        return None
    return PostgresBuffer(database, encoder, int(rows[0][0]))
