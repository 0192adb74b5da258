"""The embedded server under accidents. Every process here is real, and is really killed."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from dreamgym.cli.db import app
from dreamgym.embedding import TrigramEncoder
from dreamgym.errors import StoreError
from dreamgym.replay.embedded import EmbeddedServer, status
from dreamgym.replay.embedded.programs import find_programs
from dreamgym.replay.episode_store import Episode
from dreamgym.replay.postgres import open_store
from dreamgym.types import StepResult, Task

USER = """
import sys
from pathlib import Path
from dreamgym.replay.embedded import EmbeddedServer
server = EmbeddedServer.start(Path(sys.argv[1]))
print(server.dsn, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="dreamgym-embedded-"))
    yield made
    found = status(made)
    assert not found.running, "every test ends with the server stopped"
    shutil.rmtree(made)


def start_user(folder: Path) -> subprocess.Popen[str]:
    """A process that uses the server until its standard input ends."""
    command = [sys.executable, "-c", USER, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def dsn_of(user: subprocess.Popen[str]) -> str:
    assert user.stdout is not None
    return user.stdout.readline().strip()


def end(user: subprocess.Popen[str]) -> None:
    user.communicate("\n", timeout=60)


@pytest.mark.slow
def test_eight_processes_on_an_empty_folder_share_one_server(folder: Path) -> None:
    users = [start_user(folder) for _ in range(8)]
    dsns = {dsn_of(user) for user in users}
    assert len(dsns) == 1
    with psycopg.connect(dsns.pop()) as connection:
        assert connection.execute("SELECT 1").fetchall() == [(1,)]
    for user in users[1:]:
        end(user)
    assert status(folder).running
    end(users[0])
    assert not status(folder).running


def test_the_server_stops_with_its_last_user_though_the_one_who_started_it_was_killed(folder: Path) -> None:
    starter = start_user(folder)
    dsn_of(starter)
    other = start_user(folder)
    dsn_of(other)
    starter.kill()
    starter.communicate()
    assert status(folder).running
    end(other)
    assert not status(folder).running


@pytest.mark.slow
def test_every_acknowledged_row_survives_a_killed_server(folder: Path) -> None:
    server = EmbeddedServer.start(folder)
    acknowledged = 0
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE written (id int PRIMARY KEY)")
        for number in range(500):
            connection.execute("INSERT INTO written VALUES (%s)", [number])
            acknowledged += 1
        pid = status(folder).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(psycopg.OperationalError):
            while acknowledged < 1_000_000:  # until the dying server stops answering
                connection.execute("INSERT INTO written VALUES (%s)", [acknowledged])
                acknowledged += 1
        assert acknowledged < 1_000_000
    again = EmbeddedServer.start(folder)
    with psycopg.connect(again.dsn) as connection:
        rows = {row[0] for row in connection.execute("SELECT id FROM written").fetchall()}
    assert set(range(acknowledged)) <= rows
    server.release()
    again.release()


@pytest.mark.anyio
@pytest.mark.long
async def test_an_episode_that_has_begun_survives_a_killed_server(folder: Path) -> None:
    server = EmbeddedServer.start(folder)
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")  # nothing reaches the disk by itself
        connection.execute("SELECT pg_reload_conf()")
    store = await open_store(server.dsn, TrigramEncoder())
    task = Task(id="go", env="house", instruction="Find the coin.")
    start, expires_at = StepResult(observation="kitchen"), datetime(2030, 1, 1, tzinfo=UTC)
    begun = Episode(id="begun", env="house", task=task, seed=7, max_steps=9, initial=start, expires_at=expires_at)
    await store.episodes.create(begun)
    find_programs(folder).run("pg_ctl", "-D", str(folder / "data"), "-m", "immediate", "-w", "stop")
    server.ensure_running()
    await store.recover()
    assert await store.episodes.load("begun") == begun
    await store.close()
    server.release()


@pytest.mark.long
@pytest.mark.anyio
async def test_the_error_for_a_database_that_does_not_come_back_says_how_to_mend_it(folder: Path) -> None:
    server = EmbeddedServer.start(folder)
    store = await open_store(server.dsn, TrigramEncoder())
    server.release()
    with pytest.raises(StoreError, match=r"cannot be reached .*: do this again: the embedded database starts"):
        await store.recover(limit_s=0)
    await store.close()


@pytest.mark.long
def test_a_pid_file_that_names_another_process_does_not_prevent_the_start(folder: Path) -> None:
    EmbeddedServer.start(folder).release()
    (folder / "data" / "postmaster.pid").write_text(
        f"{os.getpid()}\n{folder / 'data'}\n1\n5432\n{folder / 'run'}\n\n\n"
    )
    server = EmbeddedServer.start(folder)
    assert status(folder).running
    server.release()


@pytest.mark.long
def test_a_half_finished_first_start_is_done_anew(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "PG_VERSION").write_text("18\n")
    server = EmbeddedServer.start(folder)
    assert status(folder).running
    server.release()


def test_data_and_socket_are_closed_to_others(folder: Path) -> None:
    server = EmbeddedServer.start(folder)
    for private in ("data", "run"):
        assert (folder / private).stat().st_mode & 0o077 == 0
    assert (folder / "users.lock").stat().st_mode & 0o077 == 0
    server.release()


def test_two_users_share_the_server_of_a_folder_if_one_of_them_reaches_it_through_a_link(folder: Path) -> None:
    link = folder.with_name(f"{folder.name}-link")
    link.symlink_to(folder)
    first, second = EmbeddedServer.start(folder), EmbeddedServer.start(link)
    assert (first.dsn, status(folder)) == (second.dsn, status(link))
    first.release()
    assert status(link).running
    second.release()
    link.unlink()


def test_the_folder_of_a_database_may_have_commas_in_its_name(folder: Path) -> None:
    named = folder.with_name(f"{folder.name},steps=50")
    server = EmbeddedServer.start(named)
    assert status(named).running
    server.release()
    shutil.rmtree(named)


def test_a_socket_folder_that_is_a_link_is_refused(folder: Path) -> None:
    (folder / "run").symlink_to("/tmp")
    with pytest.raises(StoreError, match="is a link"):
        EmbeddedServer.start(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands over to another user")
def test_a_private_parent_folder_stays_private_and_is_named_in_the_error(folder: Path) -> None:
    private = folder / "private"
    private.mkdir(mode=0o700)
    with pytest.raises(StoreError, match=f"{private} is private"):
        EmbeddedServer.start(private / "postgres")
    assert private.stat().st_mode & 0o777 == 0o700


@pytest.mark.long
def test_the_command_line_shows_the_url_and_stops_the_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DREAMGYM_HOME", str(folder))
    folder.chmod(0o711)
    cli = CliRunner()
    assert "not running" in cli.invoke(app, ["status"]).stdout
    assert cli.invoke(app, ["url"]).exit_code == 1
    server = EmbeddedServer.start()
    assert cli.invoke(app, ["url"]).stdout.strip() == server.dsn
    assert f"running, process {status().pid}, files in" in cli.invoke(app, ["status"]).stdout
    assert cli.invoke(app, ["stop"]).stdout == "stopped\n"
    assert not status().running
    server.release()
