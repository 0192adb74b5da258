"""Connections to PostgreSQL: one pool, which brings the schema up to date and is rebuilt after the server was away.

PostgreSQL's errors become StoreErrors that contain the command to run and never the password.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from importlib import resources
from typing import Any

import psycopg
from pgvector.psycopg import register_vector_async
from psycopg import AsyncConnection, conninfo, errors
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from dreamgym.errors import InvalidInput, StoreError

logger = logging.getLogger(__name__)
logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())  # lost connections are reported here, in our words

Row = tuple[Any, ...]
Connection = AsyncConnection[Row]
Parameters = Mapping[str, object]

OLDEST_SERVER = 150_000
OLDEST_PGVECTOR = (0, 8, 0)
MIGRATION_LOCK = 728_900
WRITE_LOCK = 728_903
"""Advisory lock of the writers of an environment; it is taken together with the environment's number."""
OPEN_LIMIT_S = 30.0
"""How long opening a pool waits for its first connection."""
WAIT_FOR_CONNECTION_S = 800.0
"""How long a call waits for a connection while the database answers and all connections are in use. Nearly as long as a
step may take (`Limits.step_s`): if thousands of episodes run on a busy machine, their calls wait in line and do not
fail."""
RETURN_LIMIT_S = 5.0
"""How long a call waits for a database that is away. An embedded one is back by then."""
LOOK_S = 0.25
"""Pause between two attempts to reach a database that is away."""
ANSWER_LIMIT_S = 5.0
"""A database that does not answer a new connection within this time counts as away."""
CHECK_LIMIT_S = 2.0

_MISREAD = re.compile(r"postgres(?:ql)?://[^@/?]*(?:@[^@?]*@|/[^?]*@)")
"""An address in which PostgreSQL takes a part of the password for the host or the database, and then tells it."""


class Database:
    """A pool of connections to a database with DreamGym's schema.

    If the server is away, each call waits up to RETURN_LIMIT_S for it and then fails. Once the server answers, the pool
    is rebuilt. The address may be that of a pooler such as PgBouncer, which gives each transaction another connection.
    So no state of a connection is used after a transaction, and behind a pooler no statement is prepared.
    """

    def __init__(
        self, dsn: str, pool: AsyncConnectionPool[Connection], revive: Callable[[], None] | None, *, pooled: bool
    ) -> None:
        self._dsn = dsn
        self._pool = pool
        self._pooled = pooled
        self._revive = revive
        self._answered_at = -math.inf
        self._looking: asyncio.Task[None] | None = None
        """The task that waits for a lost server; None while the server answers."""

    @classmethod
    async def open(cls, dsn: str, *, revive: Callable[[], None] | None = None) -> Database:
        """Connect, check the server, bring the schema up to date.

        Args:
            dsn: address of the database.
            revive: starts the server again if it does not run; blocking, raises StoreError.

        Raises:
            StoreError: the database cannot be used.
        """
        if _MISREAD.match(dsn):
            raise StoreError(
                "DREAMGYM_DSN: expected one @, before the host, got another one or a / before it: in a user or a "
                "password, write %40 for @ and %2F for /"
            )
        with _translated(dsn):
            async with await AsyncConnection.connect(dsn, autocommit=True, connect_timeout=10) as connection:
                await _prepare(connection, _described(dsn))
                pooled = await _is_pooled(connection)
            return cls(dsn, await _pool(dsn, pooled=pooled), revive, pooled=pooled)

    async def fetch(self, query: str, parameters: Parameters) -> list[Row]:
        """Run one statement that may safely run twice: after a lost connection it is tried once more."""
        rows, _ = await self.attempt(query, parameters)
        return rows

    async def attempt(self, query: str, parameters: Parameters) -> tuple[list[Row], bool]:
        """Run one statement as `fetch` does; return its rows, and True if it was tried twice.

        After a lost connection it is unknown whether the first try took effect.
        """
        with _translated(self._dsn):
            try:
                return await self._fetch(query, parameters), False
            except psycopg.OperationalError as error:
                if isinstance(error, PoolTimeout) or not _lost(error):
                    raise
                self._look()
                return await self._fetch(query, parameters), True

    async def _fetch(self, query: str, parameters: Parameters) -> list[Row]:
        await self._back()
        async with self._pool.connection() as connection:
            cursor = await connection.execute(query, parameters, prepare=not self._pooled, binary=True)
            self._answered_at = time.monotonic()
            # `description` would make an object for each column, which is a tenth of the cost of a short statement
            return await cursor.fetchall() if cursor.pgresult is not None and cursor.pgresult.nfields else []

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """One transaction on a connection that has just answered."""
        with _translated(self._dsn):
            pool, connection = await self._alive()
            try:
                async with connection.transaction():
                    yield connection
            finally:
                await pool.putconn(connection)

    async def _alive(self) -> tuple[AsyncConnectionPool[Connection], Connection]:
        for _ in range(3):
            await self._back()
            pool = self._pool
            try:
                connection = await pool.getconn()
            except PoolClosed:  # the server was found to be away while this call waited
                continue
            try:
                await AsyncConnectionPool.check_connection(connection)
            except psycopg.OperationalError:
                await pool.putconn(connection)
                self._look()
            except BaseException:  # a cancelled call must give its connection back too
                await pool.putconn(connection)
                raise
            else:
                return pool, connection
        raise psycopg.OperationalError("it keeps dropping its connections")

    async def _back(self) -> None:
        """Wait for a server that is away. Raises StoreError after RETURN_LIMIT_S."""
        if self._looking is not None:
            done, _ = await asyncio.wait([self._looking], timeout=RETURN_LIMIT_S)
            if not done:
                raise StoreError(_unreachable(self._dsn, f"away for more than {RETURN_LIMIT_S:g} s"))

    def _look(self) -> None:
        """After a lost connection, check the server in the background and rebuild the pool if it is needed."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._find())

    async def _find(self) -> None:
        try:
            if await self._answers():
                await self._pool.check()
                return
            logger.warning("%s went away; waiting for it", _described(self._dsn))
            await self._pool.close(timeout=1)  # no call should wait for its connections any longer
            await self._reopen()
            logger.warning("%s is back", _described(self._dsn))
        finally:
            self._looking = None

    async def _reopen(self) -> None:
        """Wait for the server, start it if it is the embedded one, and make a new pool."""
        while True:
            try:
                if self._revive is not None and not await self._answers():
                    await asyncio.to_thread(self._revive)
                if await self._answers():
                    self._pool = await _pool(self._dsn, pooled=self._pooled)
                    return
            except Exception as error:  # noqa: BLE001  # a fork without memory, for example, may succeed later
                logger.warning("%s does not come back yet: %s", _described(self._dsn), _first_line(error, self._dsn))
            await asyncio.sleep(LOOK_S)

    async def _answers(self) -> bool:
        try:
            async with (
                asyncio.timeout(ANSWER_LIMIT_S),
                await AsyncConnection.connect(self._dsn, autocommit=True) as connection,
            ):
                await connection.execute("SELECT 1")
        except (psycopg.OperationalError, TimeoutError):
            return False
        return True

    async def check(self) -> None:
        """Raises StoreError if the database does not answer at once, or takes no writes.

        If calls wait for a connection, it is enough that the database has just answered one of the calls before them.
        """
        is_busy = self._looking is None and self._pool.get_stats()["requests_waiting"] > 0
        if is_busy and time.monotonic() - self._answered_at < CHECK_LIMIT_S:
            return
        try:
            async with asyncio.timeout(0 if self._looking is not None else CHECK_LIMIT_S):
                ((is_read_only,),) = await self.fetch("SELECT current_setting('transaction_read_only')::bool", {})
        except TimeoutError:
            raise StoreError(f"{_described(self._dsn)} does not answer") from None
        if is_read_only:
            raise StoreError(f"{_described(self._dsn)} does not accept writes")

    async def time(self) -> datetime:
        """The database server's time."""
        moment: datetime = (await self.fetch("SELECT clock_timestamp()", {}))[0][0]
        return moment

    async def started_at(self) -> str:
        """When the server started, as text. It changes with a restart.

        Uses a connection of its own, so that a server that is away fails at once. Raises StoreError.
        """
        with _translated(self._dsn):
            async with await AsyncConnection.connect(self._dsn, autocommit=True, connect_timeout=10) as connection:
                row = await (await connection.execute("SELECT pg_postmaster_start_time()::text")).fetchone()
        assert row is not None
        return str(row[0])

    async def close(self) -> None:
        """Close all connections; calling it twice is fine."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self._pool.close()


async def _is_pooled(connection: Connection) -> bool:
    """True if a pooler answers at this address: its backend pid is not that of the process that runs the statements."""
    row = await (await connection.execute("SELECT pg_backend_pid()")).fetchone()
    return row is None or row[0] != connection.info.backend_pid


async def _pool(dsn: str, *, pooled: bool) -> AsyncConnectionPool[Connection]:
    pool = AsyncConnectionPool(
        dsn,
        connection_class=AsyncConnection[Row],
        min_size=1,
        max_size=min(4 * (os.cpu_count() or 1), 32),
        open=False,
        timeout=WAIT_FOR_CONNECTION_S,
        configure=register_vector_async,
        kwargs={"autocommit": True, **({"prepare_threshold": None} if pooled else {})},
    )
    try:
        await pool.open(wait=True, timeout=OPEN_LIMIT_S)
    except BaseException:
        await pool.close()
        raise
    return pool


def _lost(error: psycopg.OperationalError) -> bool:
    """True if the connection is gone. The server's other errors (no space, too long) would only occur again."""
    is_cut_off = isinstance(error, errors.QueryCanceled)  # the statement, not the connection
    return error.sqlstate is None or (error.sqlstate[:2] in {"08", "57"} and not is_cut_off)


async def _prepare(connection: Connection, where: str) -> None:
    if connection.info.server_version < OLDEST_SERVER:
        version = connection.info.server_version // 10_000
        raise StoreError(f"{where} has PostgreSQL {version}, but needs 15 or newer: upgrade it, or unset DREAMGYM_DSN")
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
                "or unset DREAMGYM_DSN"
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
            f"{where} has pgvector {version}, but needs 0.8.0 or newer: upgrade it on the server, then run "
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
            raise StoreError(f"{where} was created with a different version of migration {name}: use a new database")
        if version not in applied:
            await connection.execute(text)
            await connection.execute(
                "INSERT INTO schema_migrations (version, name, checksum) VALUES (%s, %s, %s)", [version, name, checksum]
            )


def _migrations() -> list[tuple[int, str, str]]:
    """Version, name and text of each migration, in order."""
    folder = resources.files("dreamgym.replay.postgres").joinpath("migrations")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return [(int(file.name.partition("_")[0]), file.name, file.read_text(encoding="utf-8")) for file in files]


@contextmanager
def _translated(dsn: str) -> Iterator[None]:
    """Translate psycopg's errors to StoreError and InvalidInput."""
    try:
        yield
    except errors.InsufficientPrivilege as error:
        user, reason = conninfo.conninfo_to_dict(dsn).get("user", "USER"), _first_line(error, dsn)
        mend = f"an administrator must run psql -c 'GRANT CREATE ON SCHEMA public TO {user}' in this database"
        if not re.search(r"\bschema\b", reason, re.IGNORECASE):  # it is about a table of another role
            mend = (
                "connect as the role that owns the tables (psql -c '\\dt' shows it), or an administrator must run "
                f"psql -c 'GRANT OWNER TO {user}' with the name of that role"
            )
        raise StoreError(f"{_described(dsn)}: {reason}; {mend}") from None
    except (errors.ProgramLimitExceeded, psycopg.DataError) as error:
        raise InvalidInput(f"{_described(dsn)} cannot store this: {_first_line(error, dsn)}") from None
    except errors.DiskFull as error:
        raise StoreError(
            f"{_described(dsn)} has no space left ({_first_line(error, dsn)}): free some on its disk, then do this "
            "again; nothing was changed"
        ) from None
    except errors.ReadOnlySqlTransaction:
        raise StoreError(
            f"{_described(dsn)} does not accept writes; it may be a standby: put the address of the primary into "
            "DREAMGYM_DSN, or all hosts and ?target_session_attrs=read-write"
        ) from None
    except errors.QueryCanceled as error:
        user = conninfo.conninfo_to_dict(dsn).get("user", "USER")
        raise StoreError(
            f"{_described(dsn)} cut off a statement ({_first_line(error, dsn)}): raise its limit, for example with "
            f"psql -c 'ALTER ROLE {user} SET statement_timeout = 0', then do this again; nothing was changed"
        ) from None
    except PoolTimeout as error:
        mend = "play fewer episodes at once, or run it on a faster machine"
        raise StoreError(f"{_described(dsn)} is too busy ({error}): {mend}") from None
    except psycopg.OperationalError as error:
        if not _lost(error):
            raise StoreError(f"{_described(dsn)} cannot do this now: {_first_line(error, dsn)}") from None
        raise StoreError(_unreachable(dsn, _first_line(error, dsn))) from None
    except psycopg.ProgrammingError as error:
        if error.sqlstate is not None:
            raise
        raise StoreError(
            "DREAMGYM_DSN is not a PostgreSQL address: write postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
        ) from None


def _unreachable(dsn: str, why: str) -> str:
    mends = "do this again: the embedded database starts by itself; start any other one, or correct its address"
    if os.environ.get("DREAMGYM_DSN"):
        mends = "start it, correct DREAMGYM_DSN, or unset it to use the embedded one"
    if "too many" in why or "connection slots" in why:
        mends = "close connections of other programs, or raise its limit, such as max_connections, then do this again"
    return f"{_described(dsn)} cannot be reached ({why}): {mends}"


def _described(dsn: str) -> str:
    """The database's name and host, without the password."""
    parts = conninfo.conninfo_to_dict(dsn)
    return f"the database {parts.get('dbname', '')!r} on {parts.get('host', 'this machine')}"


def _first_line(error: Exception, dsn: str) -> str:
    text = (str(error).splitlines() or [""])[0]
    password = conninfo.conninfo_to_dict(dsn).get("password")
    return text.replace(str(password), "***") if password else text
