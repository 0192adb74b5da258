"""The shop's tables of the state-change cliff have the right rows, and nothing is measured twice."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "benchmarks" / "studies" / "shop"
SMALL = ["--recorded", "6", "--seeds", "0,1", "--limit", "5", "--sessions", "1", "--known", "0,40"]


@pytest.mark.slow
@pytest.mark.long
def test_the_tables_have_a_row_for_each_setting_and_a_second_start_measures_nothing_again(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE / "cliff.py"), "--out", str(tmp_path), *SMALL]
    first = subprocess.run(command, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    lines = first.stdout.splitlines()
    assert (
        lines[0] == "| state right after the call, by fields changed | 0 | 1 | 2 | 3-4 | 5+ | all | observation exact |"
    )
    assert [line.split(" | ")[0] for line in lines[2:4]] == ["| nearest", "| nearest without state"]
    assert lines[2].endswith("(10) |")
    assert lines[5].endswith("| as in reality | consistent with the dream | calls answered |")
    assert lines[10] == "| state right, by transitions known | 0 | 40 |"
    assert lines[12].startswith("| retrieval only (nearest): state | 0 % [0, 28] (10) |")
    assert lines[7].endswith("(40) |")
    assert (tmp_path / "report.md").read_text() == first.stdout
    assert "sessions: nearest, seed 1" in first.stderr
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.stdout == first.stdout
    assert not again.stderr
