"""`dreamgym db remove` deletes everything that stays on the machine, if it is confirmed and nobody uses it."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from uuid import uuid4

import pytest
from command_line import Command

from dreamgym.errors import StoreError
from dreamgym.redaction import load_key
from dreamgym.replay.embedded import EmbeddedServer, programs, server, status
from dreamgym.runs import remove

USER = "from dreamgym.replay.embedded import EmbeddedServer as E; import sys; print(E.start().dsn); sys.stdout.flush()"


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A DREAMGYM_HOME that the system user can reach, with a key and a model in it."""
    made = Path(tempfile.mkdtemp(prefix="dreamgym-remove-"))
    made.chmod(0o711)
    monkeypatch.setenv("DREAMGYM_HOME", str(made))
    load_key()
    (made / "models").mkdir()
    (made / "models" / "one.gguf").write_bytes(b"weights")
    (made / "notes.txt").write_text("mine")
    yield made
    assert not status().running
    shutil.rmtree(made)


def test_it_is_refused_while_the_database_is_used_and_deletes_everything_that_it_lists_afterwards(
    dreamgym: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    EmbeddedServer.start().release()
    used = EmbeddedServer.start(home / "postgres-table")  # as an experiment in a folder `table` has it
    code, out, err = dreamgym("db", "remove", "--yes")
    assert (code, out) == (1, "")
    assert f"the database in {home / 'postgres-table'} is used by other processes: stop servers and runs first" in err
    assert status(home / "postgres-table").running
    kept = {"postgres", "postgres-table", "models", "redaction.key", "notes.txt"}
    assert {file.name for file in home.iterdir()} == kept
    used.release()
    monkeypatch.setattr("sys.stdin", StringIO(""))
    code, out, err = dreamgym("db", "remove")
    assert (code, out.strip()) == (1, ""), "nobody said yes"
    assert [line.rpartition(": ")[2].split(" (")[0] for line in err.splitlines()[:4]] == [
        str(home / name) for name in ("postgres", "postgres-table", "redaction.key", "models")
    ]
    assert (home / "postgres" / "data").exists()
    assert dreamgym("db", "remove", "--yes")[0] == 0
    assert [file.name for file in home.iterdir()] == ["notes.txt"], "files of others stay"
    assert dreamgym("db", "remove", "--yes")[:2] == (0, "there is nothing to remove\n")
    again = EmbeddedServer.start()
    again.release()
    assert dreamgym("db", "remove", "--yes")[0] == 0, "what was removed can be made and removed again"


def test_a_server_that_the_last_user_left_running_is_stopped_first(dreamgym: Command, home: Path) -> None:
    code = f"{USER}; sys.stdin.readline()"
    user = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert user.stdout is not None
    assert user.stdout.readline()
    user.send_signal(signal.SIGKILL)
    user.communicate()
    assert status().running
    assert dreamgym("db", "remove", "--yes")[0] == 0
    assert not status().running
    assert not (home / "postgres").exists()


def test_without_dreamgym_home_it_finds_the_caches_of_alfworld_and_of_the_redaction(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DREAMGYM_HOME", raising=False)
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    made = [tmp_path / "XDG_CACHE_HOME" / name for name in ("dreamgym/alfworld", "kingfisher")]
    for folder in made:
        folder.mkdir(parents=True)
        (folder / "file").write_text("kept")
    found = [one for one in remove.leftovers() if one.path is not None and one.path.is_relative_to(tmp_path)]
    assert [one.path for one in found] == made
    remove.remove(found)
    assert not any(folder.exists() for folder in made)
    monkeypatch.setenv("DREAMGYM_HOME", str(tmp_path / "other"))
    for folder in made:
        folder.mkdir(parents=True)
    assert remove.leftovers() == [], "with a home of its own, the caches of others stay"


def test_a_file_that_the_database_deletes_meanwhile_has_no_size(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "one.gguf").write_bytes(b"weights")
    monkeypatch.setenv("DREAMGYM_HOME", str(tmp_path))
    walk = os.walk
    monkeypatch.setattr(
        "dreamgym.runs.remove.os.walk",
        lambda top: ((place, folders, [*names, "deleted"]) for place, folders, names in walk(top)),
    )
    assert [(one.what, one.size) for one in remove.leftovers()] == [("models", 7)]


@pytest.mark.long
def test_without_dreamgym_home_it_deletes_what_is_in_the_users_folders(
    dreamgym: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(tempfile.mkdtemp(prefix="dreamgym-remove-"))
    place.chmod(0o711)
    monkeypatch.delenv("DREAMGYM_HOME", raising=False)
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(place / name))
    monkeypatch.setattr(server, "SYSTEM_FOLDER", place / "var" / "dreamgym" / "postgres")
    name = f"dreamgym-{uuid4().hex[:8]}"
    monkeypatch.setattr(programs, "SERVICE_USER", name)
    monkeypatch.setattr(remove, "SERVICE_USER", name)
    EmbeddedServer.start().release()
    load_key()
    noted = place / "XDG_CACHE_HOME" / "Microsoft" / "DeveloperTools" / ".onnxruntime"
    noted.mkdir(parents=True)
    (noted / "deviceid").write_text("me")
    (place / "HOME").mkdir(exist_ok=True)
    (place / "HOME" / "crm").write_text("mine")
    assert programs.has_user() is (os.geteuid() == 0)
    code, _, err = dreamgym("db", "remove", "--yes")
    assert code == 0, err
    assert (f"system user {name}" in err) is (os.geteuid() == 0)
    assert not programs.has_user()
    assert [path.name for path in place.rglob("*") if path.is_file()] == ["crm"]
    assert not [path for path in place.rglob("*") if path.name == "dreamgym"], "empty folders of ours go too"
    shutil.rmtree(place)


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has a system user")
def test_the_system_user_stays_while_it_runs_another_database(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = EmbeddedServer.start()
    with pytest.raises(StoreError, match="was not deleted: it runs the database of another DREAMGYM_HOME"):
        programs.remove_user()
    used.release()
    assert programs.has_user()
