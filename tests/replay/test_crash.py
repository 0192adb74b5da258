"""PostgreSQL is really killed: stored data survives, and the store connects again."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from dreamgym.embedding import TrigramEncoder
from dreamgym.errors import StoreError
from dreamgym.replay.embedded import EmbeddedServer, status
from dreamgym.replay.embedded.programs import find_programs
from dreamgym.replay.episode_store import Episode
from dreamgym.replay.postgres import Store, open_store
from dreamgym.testing.replay import sample_transition
from dreamgym.types import StepResult, StopReason, Task

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

STEP = sample_transition("kitchen", "north", "hall")


@pytest.fixture
async def embedded(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    """An open store on an embedded server that may be killed."""
    home = Path(tempfile.mkdtemp(prefix="dreamgym-crash-"))
    home.chmod(0o711)
    monkeypatch.setenv("DREAMGYM_HOME", str(home))
    monkeypatch.setattr("dreamgym.replay.postgres.database.RETURN_LIMIT_S", 60)
    opened = await open_store(None, TrigramEncoder())
    yield opened
    await opened.close()
    assert not status().running
    shutil.rmtree(home)


def crash() -> None:
    """Stop all processes of PostgreSQL without another write. A killed postmaster's children live on for a moment."""
    programs, found = find_programs(status().folder), status()
    stopped = programs.run("pg_ctl", "-D", str(found.folder / "data"), "-m", "immediate", "-w", "stop")
    assert stopped.returncode == 0, stopped.stderr


def kill_backend(dsn: str) -> None:
    """Kill one client's backend. PostgreSQL then ends all connections, and recovers."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        ).fetchone()
    assert row is not None
    os.kill(row[0], signal.SIGKILL)


def episode(name: str) -> Episode:
    task = Task(id="go", env="house", instruction="Find the coin.")
    initial = StepResult(observation="kitchen")
    return Episode(id=name, env="house", task=task, seed=7, max_steps=9, initial=initial, expires_at=datetime.now(UTC))


@pytest.mark.parametrize(
    ("killed", "last"),
    [
        ("all of it", "a step"),
        pytest.param("all of it", "an end", marks=pytest.mark.long),
        pytest.param("a backend", "a step", marks=pytest.mark.long),
    ],
)
async def test_the_last_stored_change_survives_and_the_next_call_reconnects(
    embedded: Store, killed: str, last: str
) -> None:
    await embedded.episodes.create(episode("first"))
    if last == "a step":
        await embedded.episodes.append("first", STEP, version=0)
    else:
        await embedded.episodes.finish("first", StopReason.FINISHED)
    if killed == "all of it":
        crash()
    else:
        kill_backend(embedded.dsn)
    found = await embedded.episodes.load("first")
    assert (found.version, found.stop_reason) == ((1, None) if last == "a step" else (0, StopReason.FINISHED))
    await embedded.episodes.create(episode("second"))
    await embedded.episodes.check()


async def test_a_database_that_stays_down_is_reported_soon_and_used_again_when_it_is_back(
    embedded: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dreamgym.replay.postgres.database.RETURN_LIMIT_S", 0.1)
    other = EmbeddedServer.start()
    store = await open_store(embedded.dsn, TrigramEncoder())  # opened by its address, so it may not start a server
    await store.episodes.create(episode("first"))
    crash()
    for call in (store.episodes.load, store.episodes.load, store.episodes.delete):
        with pytest.raises(StoreError, match="cannot be reached"):
            await call("first")
    with pytest.raises(StoreError, match="does not answer"):
        await store.episodes.check()
    other.ensure_running()
    monkeypatch.setattr("dreamgym.replay.postgres.database.RETURN_LIMIT_S", 60)
    assert (await store.episodes.load("first")).id == "first"
    await store.close()
    other.release()
