"""The two columns of benchmarks/studies/two_doors.py."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def two_doors(*options: str) -> subprocess.CompletedProcess[str]:
    recorded = ROOT / "examples/coin/trajectories.jsonl"
    command = [
        sys.executable,
        str(ROOT / "benchmarks/studies/two_doors.py"),
        "coin",
        "--recorded",
        str(recorded),
        *options,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_an_agents_episode_in_reality_stands_beside_the_one_in_the_dream() -> None:
    done = two_doors("--model", "nearest")
    assert done.returncode == 0, done.stderr
    columns = [line.split("|") for line in done.stdout.splitlines() if "|" in line]
    real, dream = ([row[column].strip() for row in columns] for column in (0, 1))
    assert (real[0], dream[0]) == ("REAL", "DREAM")
    calls = [line for line in real if line.startswith("> act(")]
    assert calls[-1] == "> act(take coin)"
    assert [line for line in dream if line.startswith("> act(")][: len(calls)] == calls
    assert real[-1] == "[terminated, reward 1]"
    assert any(line.endswith("[real]") for line in real)
    assert not any(line.endswith("[real]") for line in dream)
    assert any(line.endswith("[model]") for line in dream), "nobody recorded this world; the real episode is not shown"


def test_a_limit_that_no_expert_keeps_is_named() -> None:
    done = two_doors("--model", "nearest", "--steps", "0")
    assert done.returncode == 1
    assert "wins no task of 'dev' within 0 steps: raise --steps" in done.stderr
