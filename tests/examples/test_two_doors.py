"""The two columns of benchmarks/studies/two_doors.py."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = "benchmarks/studies/two_doors.py"

pytestmark = pytest.mark.slow


@pytest.fixture
def two_doors(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs the program in this process, which has imported most of what it imports."""
    program, recorded = (str(ROOT / name) for name in (PROGRAM, "examples/coin/trajectories.jsonl"))

    def run(*options: str) -> None:
        monkeypatch.setattr(sys, "argv", [program, "coin", "--recorded", recorded, *options])
        runpy.run_path(program, run_name="__main__")

    return run


def test_an_agents_episode_in_reality_stands_beside_the_one_in_the_dream(
    two_doors: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    two_doors("--model", "nearest")
    columns = [line.split("|") for line in capsys.readouterr().out.splitlines() if "|" in line]
    real, dream = ([row[column].strip() for row in columns] for column in (0, 1))
    assert (real[0], dream[0]) == ("REAL", "DREAM")
    calls = [line for line in real if line.startswith("> act(")]
    assert calls[-1] == "> act(take coin)"
    assert [line for line in dream if line.startswith("> act(")][: len(calls)] == calls
    assert real[-1] == "[terminated, reward 1]"
    assert any(line.endswith("[real]") for line in real)
    assert not any(line.endswith("[real]") for line in dream)
    assert any(line.endswith("[model]") for line in dream), "nobody recorded this world; the real episode is not shown"


def test_a_limit_within_which_the_expert_never_wins_is_refused(two_doors: Callable[..., None]) -> None:
    with pytest.raises(SystemExit, match="wins no task of 'dev' within 0 steps: raise --steps"):
        two_doors("--model", "nearest", "--steps", "0")
