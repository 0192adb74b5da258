"""One PostgreSQL database with its replay buffer, episodes and predictions, and the one way to open it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from dreamgym.embedding import Encoder
from dreamgym.errors import StoreError
from dreamgym.replay.embedded import EmbeddedServer
from dreamgym.replay.episode_store import SteadyClock
from dreamgym.replay.postgres.buffer import PostgresBuffer
from dreamgym.replay.postgres.database import MIGRATION_LOCK, Database
from dreamgym.replay.postgres.episodes import PostgresEpisodeStore
from dreamgym.replay.postgres.predictions import PostgresPredictions

RECOVERY_LIMIT_S = 300.0
PAUSE_S = 1.0
"""Pause between two attempts to reach a database that is away."""


@dataclass(frozen=True)
class Store:
    """Everything that one database holds: the replay buffer, the episodes and the predictions."""

    buffer: PostgresBuffer
    episodes: PostgresEpisodeStore
    predictions: PostgresPredictions
    dsn: str
    database: Database
    server: EmbeddedServer | None

    async def recover(self, limit_s: float = RECOVERY_LIMIT_S) -> None:
        """Wait until the database answers. The embedded server is started again if it does not run.

        Raises:
            StoreError: the database does not come back within `limit_s` seconds.
        """
        if self.server is not None:
            await asyncio.to_thread(self.server.ensure_running)
        deadline = asyncio.get_running_loop().time() + limit_s
        while True:
            try:
                await self.database.started_at()
            except StoreError:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(PAUSE_S)
            else:
                return

    async def close(self) -> None:
        """Close the connections, and release the embedded server if this store uses it. Calling it twice is fine."""
        await self.buffer.close()
        await self.database.close()
        if self.server is not None:
            await asyncio.to_thread(self.server.release)


@asynccontextmanager
async def open_database(dsn: str | None) -> AsyncIterator[Database]:
    """Open the database of a store, for work that needs no encoder; without an address, that of the embedded server.

    Raises:
        StoreError: the store cannot be used; the message says what to do.
        MissingPackage: the embedded server is not installed.
    """
    server = await asyncio.to_thread(EmbeddedServer.start) if dsn is None else None
    try:
        database = await Database.open(dsn or "" if server is None else server.dsn)
        try:
            yield database
        finally:
            await database.close()
    finally:
        if server is not None:
            await asyncio.to_thread(server.release)


async def open_store(dsn: str | None, encoder: Encoder) -> Store:
    """Open the store at a PostgreSQL address; without an address, the store of the embedded server.

    Raises:
        StoreError: the store cannot be used; the message says what to do.
        MissingPackage: the embedded server is not installed.
    """
    server = await asyncio.to_thread(EmbeddedServer.start) if dsn is None else None
    address = dsn if server is None else server.dsn
    try:
        database = await Database.open(address or "", revive=None if server is None else server.ensure_running)
        try:
            encoder_id = await _register(database, encoder)
            clock = SteadyClock(await database.time())
        except BaseException:
            await database.close()
            raise
    except BaseException:
        if server is not None:
            await asyncio.to_thread(server.release)
        raise
    buffer = PostgresBuffer(database, encoder, encoder_id)
    episodes = PostgresEpisodeStore(database, clock)
    return Store(buffer, episodes, PostgresPredictions(database), address or "", database, server)


async def _register(database: Database, encoder: Encoder) -> int:
    """The number of this encoder in the store. A store takes one encoder only; raises StoreError for another."""
    async with database.transaction() as connection:
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", [MIGRATION_LOCK])
        row = await (await connection.execute("SELECT id, name, fingerprint FROM encoders WHERE ready")).fetchone()
        if row is None:
            inserted = await connection.execute(
                "INSERT INTO encoders (name, fingerprint, dim) VALUES (%s, %s, %s) RETURNING id, name, fingerprint",
                [encoder.name, encoder.fingerprint, encoder.dim],
            )
            row = await inserted.fetchone()
            assert row is not None
            await connection.execute("SELECT ensure_encoder_table(%s::smallint, %s)", [row[0], 2 * encoder.dim])
    number, name, fingerprint = row
    if fingerprint != encoder.fingerprint:
        raise StoreError(
            f"this store contains vectors of the encoder {name!r} (fingerprint {fingerprint}), which do not mix with "
            f"those of the requested encoder {encoder.name!r} ({encoder.fingerprint}): set DREAMGYM_ENCODER={name}, or "
            "use another database and fill it with `dreamgym seed`"
        )
    return int(number)
