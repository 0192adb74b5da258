"""No verb looks up a foreign name or leaves an id of the device: packages that report their use are told not to."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("lookups.c")
COIN = str(Path(__file__).parents[2] / "examples" / "coin")
HERE = {"localhost", "127.0.0.1", "::1", "0.0.0.0"}
SFT = ("--policy", "tiny", "--algorithm", "sft", "--steps", "1", "--probe", "2")
VERBS = [
    ("seed", COIN, f"{COIN}/trajectories.jsonl", "--dsn", "DSN"),
    ("fidelity", COIN, "--model", "nearest", "--limit", "5", "--out", "OUT"),
    ("check", COIN, "--against", "dream", "--model", "nearest"),
    ("play", "coin", "--agent", "expert", "--model", "nearest", "--dsn", "DSN"),
    ("train", "coin", *SFT, "--out", "OUT", "--dsn", "DSN"),
]


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is needed to see what a process looks up")
    library = tmp_path_factory.mktemp("lookups") / "lookups.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library


def environment(preloaded: Path, tmp_path: Path) -> dict[str, str]:
    chosen = {name: value for name, value in os.environ.items() if not name.endswith(("TELEMETRY", "OFFLINE", "CI"))}
    names = {"HOME": "home", "XDG_CACHE_HOME": "cache", "LOOKUPS": "lookups"}
    places = {name: str(tmp_path / place) for name, place in names.items()}
    return {**chosen, **places, "LD_PRELOAD": str(preloaded), "DREAMGYM_HOME": str(tmp_path / "dreamgym")}


def test_a_look_up_is_seen(preloaded: Path, tmp_path: Path) -> None:
    code = "import socket; socket.getaddrinfo('localhost', 80)"
    subprocess.run([sys.executable, "-c", code], env=environment(preloaded, tmp_path), check=True)
    assert (tmp_path / "lookups").read_text().split() == ["localhost"]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_a_verb_looks_up_no_foreign_name(verb: tuple[str, ...], preloaded: Path, dsn: str, tmp_path: Path) -> None:
    words = [{"DSN": dsn, "OUT": str(tmp_path / "out")}.get(word, word) for word in verb]
    if verb[0] in {"play", "train"}:
        few = tmp_path / "short.jsonl"  # which a tiny policy is soon made from
        lines = Path(COIN, "trajectories.jsonl").read_text().splitlines()
        few.write_text("\n".join(line for line in lines if len(json.loads(line)["transitions"]) <= 4))
        recorded = [sys.executable, "-m", "dreamgym", "seed", "coin", str(few), "--dsn", dsn]
        subprocess.run(recorded, check=True, capture_output=True)
    done = subprocess.run(
        [sys.executable, "-m", "dreamgym", *words],
        env=environment(preloaded, tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names = (tmp_path / "lookups").read_text().split() if (tmp_path / "lookups").exists() else []
    assert set(names) <= HERE
    assert not list(tmp_path.glob("**/deviceid"))
