"""What every test may use."""

import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from dreamgym.embedding import TrigramEncoder
from dreamgym.replay.embedded import EmbeddedServer
from dreamgym.replay.postgres import Store, open_store


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: a file is one worker's, and the last one lets the others wait."""
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
    yield server
    server.release()
    shutil.rmtree(folder)


@pytest.fixture
def dsn(embedded_server: EmbeddedServer) -> Iterator[str]:
    """The address of a fresh, empty database."""
    name = f"test_{uuid4().hex}"
    with psycopg.connect(embedded_server.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} STRATEGY = FILE_COPY TEMPLATE template0")
    yield embedded_server.dsn.replace("/dreamgym?", f"/{name}?")
    with psycopg.connect(embedded_server.dsn, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[Store]:
    """An open store in a fresh database."""
    opened = await open_store(dsn, TrigramEncoder())
    yield opened
    await opened.close()
