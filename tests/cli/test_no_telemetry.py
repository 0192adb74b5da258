"""No command looks up a foreign host name or leaves a device id: packages that report their use are told not to."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Command

from dreamgym.environment import read_jsonl
from dreamgym.types import Trajectory

SOURCE = Path(__file__).with_name("lookups.c")
COIN = str(Path(__file__).parents[2] / "examples" / "coin")
HERE = {"localhost", "127.0.0.1", "::1", "0.0.0.0"}
SFT = ("--policy", "POLICY", "--algorithm", "sft", "--steps", "1", "--probe", "2")
VERBS = [
    ("seed", COIN, f"{COIN}/trajectories.jsonl"),
    pytest.param(("fidelity", COIN, "--model", "nearest", "--limit", "5", "--out", "OUT"), marks=pytest.mark.long),
    pytest.param(("check", COIN, "--against", "dream", "--model", "nearest"), marks=pytest.mark.long),
    ("play", "coin", "--agent", "expert", "--model", "nearest"),
    pytest.param(("train", "coin", *SFT, "--out", "OUT"), marks=pytest.mark.long),
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


def test_a_lookup_is_logged(preloaded: Path, tmp_path: Path) -> None:
    code = "import socket; socket.getaddrinfo('localhost', 80)"
    subprocess.run([sys.executable, "-c", code], env=environment(preloaded, tmp_path), check=True)
    assert (tmp_path / "lookups").read_text().split() == ["localhost"]


@pytest.mark.usefixtures("dsn")
@pytest.mark.parametrize("verb", VERBS, ids=["seed", "fidelity", "check", "play", "train"])
def test_a_command_looks_up_no_foreign_host_name(
    verb: tuple[str, ...], preloaded: Path, dreamgym: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DREAMGYM_ENCODER")  # the default one loads onnxruntime, which would report its use
    policy = tmp_path / "policy"
    words = [{"OUT": str(tmp_path / "out"), "POLICY": str(policy)}.get(word, word) for word in verb]
    if verb[0] == "train":
        from dreamgym_integrations.trainers.policy.tiny import create_tiny_policy

        create_tiny_policy(read_jsonl(Path(COIN, "trajectories.jsonl"), Trajectory), policy, seed=0)
    if verb[0] in {"play", "train"}:
        assert dreamgym("seed", "coin", f"{COIN}/trajectories.jsonl")[0] == 0
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
