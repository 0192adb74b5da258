"""A PostgreSQL with a standby: the address names both, and the one that accepts writes is used."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo

from dreamgym.embedding import TrigramEncoder
from dreamgym.errors import StoreError
from dreamgym.replay.embedded import EmbeddedServer
from dreamgym.replay.embedded.programs import find_programs
from dreamgym.replay.postgres import open_store
from dreamgym.testing.replay import ENV, sample_retrieval, sample_trajectory, sample_transition

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CATCH_UP_S = 60.0


@pytest.fixture
def primary() -> Iterator[EmbeddedServer]:
    """A server of this test's own."""
    yield from started(Path(tempfile.mkdtemp(prefix="dreamgym-primary-")))


@pytest.fixture
def standby(primary: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """A copy of the primary, which follows it and accepts no writes."""
    folder = Path(tempfile.mkdtemp(prefix="dreamgym-standby-"))
    folder.chmod(0o711)
    programs = find_programs(primary.folder)
    data = folder / "data"
    data.mkdir(mode=0o700)
    os.chown(data, programs.uid, -1)
    copied = programs.run("pg_basebackup", "-R", "-D", str(data), "-h", socket(primary), "-U", "postgres", "-c", "fast")
    assert copied.returncode == 0, copied.stderr
    (folder / "data.ready").touch()
    yield from started(folder)


def started(folder: Path) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer.start(folder)
    yield server
    server.release()
    shutil.rmtree(folder)


def socket(server: EmbeddedServer) -> str:
    return str(conninfo.conninfo_to_dict(server.dsn)["host"])


def caught_up(standby: EmbeddedServer, primary: EmbeddedServer) -> None:
    """Wait until the standby shows all that the primary has stored."""
    with psycopg.connect(primary.dsn) as connection:
        position = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    deadline = time.monotonic() + CATCH_UP_S
    with psycopg.connect(standby.dsn, autocommit=True) as connection:
        while connection.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", position).fetchone() != (True,):
            assert time.monotonic() < deadline, "the standby does not follow"


async def test_the_next_host_is_asked_when_the_primary_is_gone(
    primary: EmbeddedServer, standby: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dreamgym.replay.postgres.database.RETURN_LIMIT_S", 60)
    both = conninfo.make_conninfo(
        primary.dsn, host=f"{socket(standby)},{socket(primary)}", target_session_attrs="read-write"
    )
    store = await open_store(both, TrigramEncoder())
    assert await store.buffer.add([sample_trajectory("one", sample_transition("kitchen", "north", "hall"))]) == 1
    caught_up(standby, primary)
    programs = find_programs(primary.folder)
    stopped = programs.run("pg_ctl", "-D", str(primary.folder / "data"), "-m", "immediate", "-w", "stop")
    assert stopped.returncode == 0, stopped.stderr
    with psycopg.connect(standby.dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_promote()")
    (found,) = await store.buffer.nearest(sample_retrieval("kitchen", "north", k=1))
    assert found.transition.next_state == "hall"
    assert await store.buffer.add([sample_trajectory("two", sample_transition("hall", "south", "kitchen"))]) == 1
    assert (await store.buffer.counts(ENV)).trajectories == 2
    await store.close()


@pytest.mark.long
async def test_the_address_of_a_standby_alone_is_refused_with_an_explanation(
    primary: EmbeddedServer, standby: EmbeddedServer
) -> None:
    await (await open_store(primary.dsn, TrigramEncoder())).close()
    caught_up(standby, primary)
    with pytest.raises(
        StoreError, match=r"does not accept writes; it may be a standby.*target_session_attrs=read-write"
    ):
        await open_store(standby.dsn, TrigramEncoder())
