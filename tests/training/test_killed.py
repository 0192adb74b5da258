"""Runs whose trainer, server or database is killed in the middle: what they lose, report and leave behind.

All of these are real processes, which are really killed. A run is killed when it reports that an update was played:
before the weights that it learns from that update are saved.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from uuid import uuid4

import anyio
import psycopg
import pytest
from lamp_home import fill, furnish, path_with
from lamp_runs import same, weights

from dreamgym import Source, Trajectory
from dreamgym.cli.app import main
from dreamgym.embedding import load_encoder
from dreamgym.replay.embedded import EmbeddedServer, status
from dreamgym.replay.embedded.programs import find_programs
from dreamgym.replay.postgres import databases, open_store
from dreamgym.training.record import read_record
from dreamgym.types import JsonObject

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

SETTINGS = ("--steps", "4", "--groups", "2", "--group-size", "4", "--probe", "4", "--probe-every", "3", "--seed", "3")
DREAM = ("--model", "nearest")

MakeDatabase = Callable[[], str]


class Trainer:
    """`dreamgym train` as a user starts it."""

    def __init__(self, home: Path, policy: Path, *options: str, **variables: str) -> None:
        command = [sys.executable, "-m", "dreamgym", "train", str(home / "lamp"), "--policy", str(policy), *SETTINGS]
        environ = {**os.environ, "PYTHONPATH": path_with(home), "OMP_NUM_THREADS": "1", **variables}
        self.process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True, env=environ)
        self.said: list[str] = []

    def until(self, words: str) -> None:
        """Read its stderr up to a line that contains `words`."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if words in line:
                return
        raise AssertionError(f"it ended and never said {words!r}: {''.join(self.said)}")

    def end(self) -> tuple[int, str]:
        """Wait for its end; return its exit code and its whole stderr."""
        _, rest = self.process.communicate(timeout=300)
        return self.process.returncode, "".join(self.said) + rest

    @property
    def server(self) -> int:
        """Process id of its server."""
        of_threads = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        children = [pid for of_one in of_threads for pid in of_one.read_text().split()]
        (server,) = [int(pid) for pid in children if b"dreamgym.cli.serve" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        return server


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that contains the environment folder and its plugin."""
    made = tmp_path_factory.mktemp("home")
    furnish(made)
    return made


@pytest.fixture(scope="module")
def make_database(embedded_server: EmbeddedServer, lamp_recordings: list[Trajectory]) -> Iterator[MakeDatabase]:
    """A function that creates a database with recordings and nothing else."""
    names: list[str] = []

    def make() -> str:
        names.append(f"killed_{uuid4().hex}")
        made = databases.create(embedded_server.dsn, names[-1])
        fill(made, lamp_recordings[:80])
        return made

    yield make
    for name in names:
        databases.drop(embedded_server.dsn, name)


@pytest.fixture
def other_server(lamp_recordings: list[Trajectory]) -> Iterator[EmbeddedServer]:
    """A PostgreSQL that may be killed, with recordings in its database."""
    folder = Path(tempfile.mkdtemp(prefix="dreamgym-killed-"))
    folder.chmod(0o711)
    server = EmbeddedServer.start(folder / "postgres")
    fill(server.dsn, lamp_recordings[:80])
    yield server
    server.release()
    assert not status(folder / "postgres").running
    shutil.rmtree(folder)


def kept(dsn: str) -> tuple[list[Trajectory], JsonObject]:
    """The episodes that a run added to a database, and counts of what else it left there."""

    async def read() -> list[Trajectory]:
        store = await open_store(dsn, load_encoder(None))
        found = await store.buffer.trajectories("lamp", sources=frozenset(Source))
        await store.close()
        return [trajectory for trajectory in found if trajectory.policy_version is not None]

    with psycopg.connect(dsn) as connection:
        counts: JsonObject = {}
        for name, query in {
            "attempts": "SELECT sum(attempts)::int FROM task_outcomes",
            "runs": "SELECT count(DISTINCT run) FROM task_outcomes",
            "open": "SELECT count(*) FROM episodes WHERE stop_reason IS NULL",
            "episodes": "SELECT count(*) FROM episodes",
        }.items():
            row = connection.execute(query).fetchone()
            assert row is not None
            counts[name] = row[0]
    return anyio.run(read), counts


def without_times(out: Path) -> list[JsonObject]:
    """The record without its durations."""
    return [
        {name: value for name, value in line.items() if name not in {"rollout_s", "update_s", "waited_s"}}
        for line in read_record(out / "metrics.jsonl")
    ]


def per_update(trajectories: Sequence[Trajectory]) -> Counter[tuple[int | None, str]]:
    return Counter((trajectory.policy_version, trajectory.source.value) for trajectory in trajectories)


@pytest.fixture(scope="module")
def straight(
    home: Path, make_database: MakeDatabase, lamp_policy: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """Folder and DSN of a run without an interruption. It needs no process of its own."""
    dsn, out = make_database(), tmp_path_factory.mktemp("straight") / "run"
    options = (*SETTINGS, *DREAM, "--out", str(out))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(home)
        patch.setenv("PYTHONPATH", path_with(home))
        patch.setenv("DREAMGYM_DSN", dsn)
        patch.setattr(sys, "argv", ["dreamgym", "train", str(home / "lamp"), "--policy", str(lamp_policy), *options])
        with pytest.raises(SystemExit) as end:
            main()
    assert not end.value.code
    return out, dsn


def check_same(out: Path, dsn: str, straight: tuple[Path, str], *, in_process: bool = False) -> None:
    """Check record, policy and store against the run without an interruption; in process, no episode is stored."""
    assert without_times(out) == without_times(straight[0])
    assert same(weights(out / "policy"), weights(straight[0] / "policy"))
    (mine, counts), (theirs, expected) = kept(dsn), kept(straight[1])
    assert per_update(mine) == per_update(theirs)
    assert counts == (expected | {"episodes": 0} if in_process else expected)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_trainer_that_is_killed_in_an_update_goes_on_as_if_it_had_not_been(
    number: signal.Signals,
    home: Path,
    make_database: MakeDatabase,
    lamp_policy: Path,
    tmp_path: Path,
    straight: tuple[Path, str],
) -> None:
    dsn = make_database()
    options = (*DREAM, "--out", str(tmp_path / "run"))
    trainer = Trainer(home, lamp_policy, *options, DREAMGYM_DSN=dsn)
    trainer.until("update 3 of 4")
    with watched(trainer.server):
        trainer.process.send_signal(number)
        code, said = trainer.end()
    assert code == (130 if number is signal.SIGTERM else -number)
    assert number is signal.SIGKILL or "continue with --resume" in said
    code, said = Trainer(home, lamp_policy, *options, "--resume", DREAMGYM_DSN=dsn).end()
    assert code == 0, said
    check_same(tmp_path / "run", dsn, straight)


def test_a_trainer_that_plays_in_process_and_is_killed_goes_on_as_if_it_had_not_been(
    home: Path, make_database: MakeDatabase, lamp_policy: Path, tmp_path: Path, straight: tuple[Path, str]
) -> None:
    dsn = make_database()
    options = (*DREAM, "--in-process", "true", "--out", str(tmp_path / "run"))
    trainer = Trainer(home, lamp_policy, *options, DREAMGYM_DSN=dsn)
    trainer.until("update 3 of 4")
    trainer.process.kill()
    trainer.end()
    code, said = Trainer(home, lamp_policy, *options, "--resume", DREAMGYM_DSN=dsn).end()
    assert code == 0, said
    check_same(tmp_path / "run", dsn, straight, in_process=True)


def test_a_run_whose_server_is_killed_in_an_update_ends_as_if_it_had_not_been(
    home: Path, make_database: MakeDatabase, lamp_policy: Path, tmp_path: Path, straight: tuple[Path, str]
) -> None:
    dsn = make_database()
    trainer = Trainer(home, lamp_policy, *DREAM, "--out", str(tmp_path / "run"), DREAMGYM_DSN=dsn)
    trainer.until("update 3 of 4")
    os.kill(trainer.server, signal.SIGKILL)
    code, said = trainer.end()
    assert code == 0, said
    assert "the server ended with exit code -9 in the middle of an update, which is played again" in said
    check_same(tmp_path / "run", dsn, straight)


def test_a_server_that_is_killed_again_and_again_ends_the_run_and_costs_one_update(
    home: Path, make_database: MakeDatabase, lamp_policy: Path, tmp_path: Path, straight: tuple[Path, str]
) -> None:
    trainer = Trainer(home, lamp_policy, *DREAM, "--out", str(tmp_path), DREAMGYM_DSN=make_database())
    trainer.until("update 3 of 4")
    for _ in range(3):
        os.kill(trainer.server, signal.SIGKILL)
        trainer.until("in the middle of an update, which is played again")
    code, said = trainer.end()
    assert code == 1
    assert "went away 3 times in update 3. What was learned until then is saved: continue with --resume" in said
    kept_of_it = without_times(tmp_path)
    assert kept_of_it == without_times(straight[0])[: len(kept_of_it)]
    assert [line["step"] for line in kept_of_it if "inside_success" in line] == [0, 1, 2]


def test_the_embedded_database_is_started_again_if_it_is_killed_in_an_update(
    home: Path, other_server: EmbeddedServer, lamp_policy: Path, tmp_path: Path, straight: tuple[Path, str]
) -> None:
    folder = str(other_server.folder.parent)
    trainer = Trainer(home, lamp_policy, *DREAM, "--out", str(tmp_path / "run"), DREAMGYM_HOME=folder)
    trainer.until("update 3 of 4")
    postmaster = status(other_server.folder).pid
    assert postmaster is not None
    os.kill(postmaster, signal.SIGKILL)
    code, said = trainer.end()
    assert code == 0, said
    check_same(tmp_path / "run", other_server.dsn, straight)


@pytest.mark.parametrize("where", [(), pytest.param(("--in-process", "true"), marks=pytest.mark.long)])
def test_a_run_goes_on_if_a_database_of_the_users_own_is_restarted_in_an_update(
    home: Path,
    other_server: EmbeddedServer,
    lamp_policy: Path,
    tmp_path: Path,
    straight: tuple[Path, str],
    where: tuple[str, ...],
) -> None:
    options = (*DREAM, *where, "--out", str(tmp_path / "run"))
    trainer = Trainer(home, lamp_policy, *options, DREAMGYM_DSN=other_server.dsn)
    trainer.until("update 3 of 4")
    programs = find_programs(other_server.folder)
    programs.run("pg_ctl", "-D", str(other_server.folder / "data"), "-m", "immediate", "-w", "stop")
    other_server.ensure_running()
    code, said = trainer.end()
    assert code == 0, said
    check_same(tmp_path / "run", other_server.dsn, straight, in_process=bool(where))


@pytest.mark.parametrize("where", [(), ("--in-process", "true")])
def test_real_steps_of_an_update_that_was_lost_stay_counted(
    home: Path, make_database: MakeDatabase, lamp_policy: Path, tmp_path: Path, where: tuple[str, ...]
) -> None:
    dsn = make_database()
    options = ("--against", "real", "--real-steps", "100", *where, "--out", str(tmp_path))
    trainer = Trainer(home, lamp_policy, *options, DREAMGYM_DSN=dsn)
    trainer.until("update 1 of ")
    with nullcontext() if where else watched(trainer.server):
        trainer.process.kill()
        trainer.end()
    code, said = Trainer(home, lamp_policy, *options, "--resume", DREAMGYM_DSN=dsn).end()
    assert code == 0, said
    record = [line for line in read_record(tmp_path / "metrics.jsonl") if "environment_steps" in line]
    (lost,) = [line for line in record if "lost" in line]
    updates = [line for line in record if "lost" not in line]
    assert [line["step"] for line in updates] == list(range(len(updates)))
    assert lost["environment_steps"] == updates[0]["environment_steps"], "the same update, played twice"
    assert sum(int(str(line["environment_steps"])) for line in record) <= 100
    trajectories, counts = kept(dsn)
    episodes = {int(str(line["step"])): 4 * int(str(line["groups"])) for line in updates}
    assert per_update(trajectories) == {(update, "real"): number for update, number in episodes.items()}
    assert counts["attempts"] == sum(episodes.values())
    assert (tmp_path / "policy" / "config.json").is_file()


@contextmanager
def watched(pid: int) -> Iterator[None]:
    """Check that a process that is not our child ends within 60 s of the end of the block."""
    watch = os.pidfd_open(pid)
    try:
        yield
        assert select.select([watch], [], [], 60)[0], "it outlived its trainer"
    finally:
        os.close(watch)
