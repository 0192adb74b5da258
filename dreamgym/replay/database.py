"""Connections to PostgreSQL: one pool, checked, migrated, and mended when the server drops it.

What PostgreSQL says of a failure becomes a StoreError with the command that mends it, and never the password.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from importlib import resources
from typing import Any

import psycopg
from pgvector.psycopg import register_vector_async
from psycopg import AsyncConnection, conninfo, errors
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from dreamgym.errors import StoreError

Row = tuple[Any, ...]
Connection = AsyncConnection[Row]
Parameters = Mapping[str, object]

OLDEST_SERVER = 150_000
OLDEST_PGVECTOR = (0, 8, 0)
MIGRATION_LOCK = 728_900
WAIT_FOR_CONNECTION_S = 30.0


class Database:
    """A pool on a database whose schema is ours."""

    def __init__(self, dsn: str, pool: AsyncConnectionPool[Connection]) -> None:
        self._dsn = dsn
        self._pool = pool

    @classmethod
    async def open(cls, dsn: str) -> Database:
        """Connect, check the server, bring the schema up to date. Raises StoreError."""
        with _translated(dsn):
            async with await AsyncConnection.connect(dsn, autocommit=True, connect_timeout=10) as connection:
                await _prepare(connection, _described(dsn))
        pool = AsyncConnectionPool(
            dsn,
            connection_class=AsyncConnection[Row],
            min_size=1,
            max_size=min(4 * (os.cpu_count() or 1), 32),
            open=False,
            timeout=WAIT_FOR_CONNECTION_S,
            configure=register_vector_async,
            kwargs={"autocommit": True},
        )
        with _translated(dsn):
            await pool.open(wait=True, timeout=WAIT_FOR_CONNECTION_S)
        return cls(dsn, pool)

    async def fetch(self, query: str, parameters: Parameters) -> list[Row]:
        """Run one statement that may safely run twice: after a lost connection it is tried once more."""
        rows, _ = await self.attempt(query, parameters)
        return rows

    async def attempt(self, query: str, parameters: Parameters) -> tuple[list[Row], bool]:
        """The same, and whether it was tried again: the first try may have been done and its answer lost."""
        with _translated(self._dsn):
            try:
                return await self._fetch(query, parameters), False
            except PoolTimeout:  # it was waited for already
                raise
            except psycopg.OperationalError:
                await self._pool.check()
                return await self._fetch(query, parameters), True

    async def _fetch(self, query: str, parameters: Parameters) -> list[Row]:
        async with self._pool.connection() as connection:
            cursor = await connection.execute(query, parameters, prepare=True, binary=True)
            return await cursor.fetchall() if cursor.description else []

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """One transaction on a connection that was just seen alive."""
        with _translated(self._dsn):
            connection = await self._alive()
            try:
                async with connection.transaction():
                    yield connection
            finally:
                await self._pool.putconn(connection)

    async def _alive(self) -> Connection:
        for _ in range(self._pool.max_size):
            connection = await self._pool.getconn()
            try:
                await AsyncConnectionPool.check_connection(connection)
            except psycopg.OperationalError:
                await self._pool.putconn(connection)
            else:
                return connection
        return await self._pool.getconn()

    async def started_at(self) -> str:
        """When the server started: another one after a restart, whose last half second may be lost.

        Asked over a connection of its own, so that one that is away is seen at once. Raises StoreError.
        """
        with _translated(self._dsn):
            async with await AsyncConnection.connect(self._dsn, autocommit=True, connect_timeout=10) as connection:
                row = await (await connection.execute("SELECT pg_postmaster_start_time()::text")).fetchone()
        assert row is not None
        return str(row[0])

    async def close(self) -> None:
        """Close all connections; calling it twice is fine."""
        await self._pool.close()


async def _prepare(connection: Connection, where: str) -> None:
    if connection.info.server_version < OLDEST_SERVER:
        version = connection.info.server_version // 10_000
        raise StoreError(f"{where} is PostgreSQL {version}, needed is 15 or newer: upgrade it, or leave out --dsn")
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", [MIGRATION_LOCK])
        await _ensure_pgvector(connection, where)
        await _migrate(connection, where)


async def _ensure_pgvector(connection: Connection, where: str) -> None:
    installed = "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
    row = await (await connection.execute(installed)).fetchone()
    if row is None:
        try:
            await connection.execute("CREATE EXTENSION vector")
        except (errors.UndefinedFile, errors.FeatureNotSupported) as error:
            raise StoreError(
                f"{where} lacks pgvector: install it on the server (on Debian: apt install postgresql-NN-pgvector), "
                "or leave out --dsn"
            ) from error
        except errors.InsufficientPrivilege as error:
            database = connection.info.dbname
            raise StoreError(
                f"{where} has pgvector, but this user may not enable it: an administrator must run "
                f"psql -d {database} -c 'CREATE EXTENSION vector'"
            ) from error
        row = await (await connection.execute(installed)).fetchone()
    version = str(row[0]) if row else ""
    if tuple(int(part) for part in version.split(".")[:3]) < OLDEST_PGVECTOR:
        raise StoreError(
            f"{where} has pgvector {version}, needed is 0.8.0 or newer: upgrade it on the server, then run "
            f"psql -d {connection.info.dbname} -c 'ALTER EXTENSION vector UPDATE'"
        )


async def _migrate(connection: Connection, where: str) -> None:
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS schema_migrations (version int PRIMARY KEY, name text NOT NULL, "
        "checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
    )
    rows = await (await connection.execute("SELECT version, checksum FROM schema_migrations")).fetchall()
    applied = {int(version): str(checksum) for version, checksum in rows}
    known = _migrations()
    if unknown := applied.keys() - {version for version, _, _ in known}:
        raise StoreError(
            f"{where} was written by a newer dreamgym (migration {max(unknown)}): pip install --upgrade dreamgym"
        )
    for version, name, text in known:
        checksum = hashlib.sha256(text.encode()).hexdigest()
        if applied.get(version, checksum) != checksum:
            raise StoreError(f"{where} was made by another edition of migration {name}: use a new database")
        if version not in applied:
            await connection.execute(text)
            await connection.execute(
                "INSERT INTO schema_migrations (version, name, checksum) VALUES (%s, %s, %s)", [version, name, checksum]
            )


def _migrations() -> list[tuple[int, str, str]]:
    """Version, name and text of each migration, in order."""
    folder = resources.files("dreamgym.replay").joinpath("migrations")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return [(int(file.name.partition("_")[0]), file.name, file.read_text(encoding="utf-8")) for file in files]


@contextmanager
def _translated(dsn: str) -> Iterator[None]:
    """PostgreSQL's failures as ours."""
    try:
        yield
    except errors.InsufficientPrivilege as error:
        user = conninfo.conninfo_to_dict(dsn).get("user", "USER")
        raise StoreError(
            f"{_described(dsn)}: {_first_line(error, dsn)}; an administrator must run "
            f"psql -c 'GRANT CREATE ON SCHEMA public TO {user}' in this database"
        ) from None
    except psycopg.OperationalError as error:
        raise StoreError(
            f"{_described(dsn)} cannot be reached ({_first_line(error, dsn)}): start it, correct --dsn, "
            "or leave out --dsn to use the embedded one"
        ) from None
    except psycopg.ProgrammingError as error:
        if error.sqlstate is not None:
            raise
        raise StoreError(
            "--dsn is no PostgreSQL address: write postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
        ) from None


def _described(dsn: str) -> str:
    """The database without its password."""
    parts = conninfo.conninfo_to_dict(dsn)
    return f"the database {parts.get('dbname', '')!r} on {parts.get('host', 'this machine')}"


def _first_line(error: Exception, dsn: str) -> str:
    text = (str(error).splitlines() or [""])[0]
    password = conninfo.conninfo_to_dict(dsn).get("password")
    return text.replace(str(password), "***") if password else text
