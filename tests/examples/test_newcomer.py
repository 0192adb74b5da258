"""A newcomer's script runs as it stands: own server, own environment, own agent."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "benchmarks" / "newcomer"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.long  # each of its stages has a test of its own in `make test`
def test_a_newcomer_simulates_a_server_plays_an_environment_and_trains_an_agent(dsn: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "newcomer.py"), str(Path(sys.executable).parent)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "DREAMGYM_DSN": dsn, "DREAMGYM_ENCODER": "trigram"},
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "start  the sign shows red" in done.stdout
    assert "over 3 episodes of" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(" s  in all")


def test_an_environment_of_ones_own_takes_sixty_lines() -> None:
    assert len((HERE / "doors.py").read_text().splitlines()) <= 60
