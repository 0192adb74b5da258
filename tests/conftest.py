"""Fixtures and settings for all tests."""

import asyncio
import gc
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
import typer
from hypothesis import HealthCheck, settings
from psycopg import sql

from dreamgym.embedding import TrigramEncoder
from dreamgym.replay.embedded import EmbeddedServer
from dreamgym.replay.postgres import Store, databases, open_store
from dreamgym.replay.postgres.database import Database
from dreamgym.runs.opening import DSN_VARIABLE

# torch, transformers and TRL make a million objects that stay. Searching them for garbage took a quarter of the time in
# which each worker imports the test modules, and much of the time of every later test
gc.disable()

# the hundred real certificate authorities take 25 ms to read, for each of thousands of HTTP clients, and no test leaves
# this machine
os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("no_authority.pem"))

# the default, minilm, takes a second to load in each command and milliseconds for each text; the tests of the
# documentation, of the telemetry and of minilm itself use it
os.environ["DREAMGYM_ENCODER"] = "trigram"

# a command that a test runs in this process would build the parsers of all verbs anew, which takes 60 ms
typer.main.get_command = cache(typer.main.get_command)

# on a busy machine, the time that an example takes means nothing; tests of linear time use growth.py
settings.register_profile("usual", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=40)
settings.register_profile("thorough", settings.get_profile("usual"), max_examples=400)
settings.load_profile("usual")


def pytest_collection_finish() -> None:
    """Turn garbage collection on again, but only for the objects that the tests make."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files with slow tests first: one worker runs a whole file, and the others would wait for a slow last one."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def embedded_server() -> Iterator[EmbeddedServer]:
    """One PostgreSQL for the whole run, in a folder that its system user can reach when the tests run as root."""
    folder = Path(tempfile.mkdtemp(prefix="dreamgym-tests-"))
    server = EmbeddedServer.start(folder)
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        # no test cuts the power, and a killed server loses nothing without these
        for setting in ("fsync", "full_page_writes"):
            connection.execute(sql.SQL("ALTER SYSTEM SET {} = off").format(sql.Identifier(setting)))
        connection.execute("SELECT pg_reload_conf()")
    yield server
    server.release()
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def template(embedded_server: EmbeddedServer) -> str:
    """The name of a database with empty tables. Copying it takes a fifth of the time of creating the tables."""
    name = f"template_{uuid4().hex}"

    async def make() -> None:
        await (await Database.open(databases.create(embedded_server.dsn, name))).close()

    asyncio.run(make())  # anyio refuses to run beside the event loop that the tests of a module may share
    return name


@pytest.fixture(scope="session")
def administrator(embedded_server: EmbeddedServer) -> Iterator[psycopg.Connection]:
    """A connection that stays open: opening one takes longer than creating a database."""
    with psycopg.connect(embedded_server.dsn, autocommit=True) as connection:
        yield connection


@contextmanager
def database(administrator: psycopg.Connection, server: EmbeddedServer, template: str = "template1") -> Iterator[str]:
    """Create a database for the duration of the block; yield its DSN."""
    name = f"test_{uuid4().hex}"
    administrator.execute(
        sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
    )
    yield server.dsn.replace("/dreamgym?", f"/{name}?")
    administrator.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def dsn(
    administrator: psycopg.Connection, embedded_server: EmbeddedServer, template: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The DSN of a fresh database with empty tables; commands that the test runs use it too."""
    with database(administrator, embedded_server, template) as address:
        monkeypatch.setenv(DSN_VARIABLE, address)
        yield address


@pytest.fixture
def empty_dsn(administrator: psycopg.Connection, embedded_server: EmbeddedServer) -> Iterator[str]:
    """The DSN of a fresh database without tables."""
    with database(administrator, embedded_server) as address:
        yield address


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[Store]:
    """An open store in a fresh database."""
    opened = await open_store(dsn, TrigramEncoder())
    yield opened
    await opened.close()
