"""`dreamgym demo`, which is the first command that a new user runs."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from command_line import Command

from dreamgym.environment import read_jsonl
from dreamgym.replay.embedded import EmbeddedServer
from dreamgym.runs.demo import demonstrate
from dreamgym.runs.experiment.prepared import database_folder
from dreamgym.types import Source, Trajectory

SMALL = """
title = "a small demonstration"
env = "coin"
seeds = [0]

[[recorded]]
behaviour = "noisy"
tasks = 20
episodes = 20
warm = true

[warm]
steps = 2
batch = 4

[test]
episodes = 8

[[arm]]
name = "warm start"

[[arm]]
name = "dream"
train = { model = "nearest", steps = 2, groups = 2, group_size = 2, probe = 4, probe_every = 1, stop = false }

[[compare]]
arm = "dream"
against = "warm start"
"""


@pytest.fixture
def own_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Databases in a folder of the test's own, which their system user can reach if the tests run as root."""
    folder = Path(tempfile.mkdtemp(prefix="dreamgym-tests-"))
    folder.chmod(0o755)
    monkeypatch.setenv("DREAMGYM_HOME", str(folder))
    yield
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("own_home")
def test_the_demonstration_shows_every_part(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    out = tmp_path / "out"
    text = demonstrate(file, out, "dreamgym demo")
    assert "Made by `dreamgym demo` at commit" in text
    assert "| dream − warm start |" in text
    assert "DREAM" in text, "one episode of an unchanged agent in the dream"
    assert "REAL" in text, "and the same task in the real game"
    assert "answered by" in text
    assert (out / "small.md").read_text() in text
    assert (out / "small.png").stat().st_size > 10_000
    assert (out / "seed-0" / "dream" / "policy" / "config.json").is_file()
    assert f"dreamgym view {out}" in text
    for name in ("side_by_side", "not_recorded"):
        assert [one.source for one in read_jsonl(out / f"{name}.jsonl", Trajectory)] == [Source.SYNTHETIC, Source.REAL]
    assert demonstrate(file, out, "dreamgym demo") == text, "the same command goes on with what is there"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("own_home")
def test_demonstrations_in_folders_of_one_name_share_a_server_but_no_database(tmp_path: Path) -> None:
    file = tmp_path / "untrained.toml"
    file.write_text(SMALL.partition('[[arm]]\nname = "dream"')[0])
    server = EmbeddedServer.start(database_folder(tmp_path / "a" / "out"))
    try:
        for folder in ("a", "b"):
            demonstrate(file, tmp_path / folder / "out", "dreamgym demo")
        with psycopg.connect(server.dsn) as connection:
            rows = connection.execute("SELECT datname FROM pg_database WHERE datname LIKE 'side_by_side%'").fetchall()
        assert len(rows) == 2, "and a server that another process uses is not removed"
    finally:
        server.release()


def test_the_quick_demonstration_is_one_unchanged_agent_at_a_simulated_shop(dreamgym: Command) -> None:
    code, out, err = dreamgym("demo", "--quick")
    assert code == 0, err
    assert "Ada Quist has 368.00 left." in out
    assert out.count("[recorded]") == 2
    assert out.count("[effects]") == 4, "an order that nobody recorded, and what follows from it"
    assert "reward 1" in out


@pytest.mark.parametrize("more", [["alfworld"], ["--full"], ["--out", "X"]])
def test_the_quick_demonstration_refuses_what_it_does_not_do(dreamgym: Command, more: list[str]) -> None:
    code, out, err = dreamgym("demo", "--quick", *more)
    assert (code, out) == (2, "")
    assert "--quick plays one episode at a simulated shop: leave out ENV, --out and --full" in err


@pytest.mark.parametrize(("name", "env"), [("demo", "coin"), ("demo-full", "coin"), ("demo-alfworld", "alfworld")])
def test_the_files_of_the_demonstration_can_be_read(name: str, env: str) -> None:
    from importlib.resources import as_file, files

    from dreamgym.runs.experiment.plan import read_plan

    with as_file(files("dreamgym.runs") / f"{name}.toml") as file:
        assert read_plan(file).env == env


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("chess",), "unknown demonstration 'chess': expected one of alfworld, coin"),
        (("alfworld", "--full"), "--full is for coin; for alfworld use examples/experiments/alfworld.toml"),
    ],
)
def test_a_demonstration_that_does_not_exist_is_refused(
    dreamgym: Command, arguments: tuple[str, ...], told: str
) -> None:
    code, _, err = dreamgym("demo", *arguments)
    assert code == 2
    assert told in err


def test_without_the_games_the_demonstration_says_how_to_install_them(
    dreamgym: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "nothing"))
    code, _, err = dreamgym("demo", "alfworld", "--out", str(tmp_path / "run"))
    assert code == 2
    assert "alfworld-download" in err
