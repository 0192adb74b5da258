"""The campaign of benchmarks/kills.py: kills and a full disk lose nothing that was answered."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = Path(__file__).parents[2] / "benchmarks" / "kills.py"
NONE = {"server": 0, "replicas": 0, "postmaster": 0, "backend": 0, "disk": 0}


def survived(**kills: int) -> None:
    """Run the campaign. Clients were answered, and no answered step or end is lost or missing in the buffer."""
    options = [f"--{name}={times}" for name, times in {**NONE, **kills}.items()]
    command = [sys.executable, str(KILLS), "--clients", "8", "--seed", "1", "--json", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    rows = json.loads(done.stdout)
    assert sum(row["kills"] for row in rows) == sum(kills.values()) or "disk" in kills, "no tmpfs can be mounted"
    for row in rows:
        assert row["acknowledged"] > 0 < row["ends"]
        nothing = {name: row[name] for name in ("lost", "ends_lost", "missing", "cut_off", "not_back")}
        assert not any(nothing.values()), row


@pytest.mark.slow
def test_a_server_that_is_killed_under_load_loses_nothing() -> None:
    survived(server=1)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("killed", ["server", "replicas", "postmaster", "backend", "disk"])
def test_nothing_that_was_answered_is_lost(killed: str) -> None:
    survived(**{killed: 3})
