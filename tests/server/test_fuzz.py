"""The campaign of benchmarks/fuzz.py: malformed requests, expensive bodies and crowds make no server fail or hang."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"


def endured(**counts: int) -> None:
    options = [f"--{name}={count}" for name, count in counts.items()]
    done = subprocess.run([sys.executable, str(FUZZ), "--json", *options], stdout=subprocess.PIPE, check=True)
    for row in json.loads(done.stdout):
        assert row["requests"] > 0
        assert {name: row[name] for name in ("failed", "hung", "tracebacks")} == {
            "failed": 0,
            "hung": 0,
            "tracebacks": 0,
        }, row
        assert row["log_kilobytes"] < 1000, row
        # a busy machine may delay a probe between connecting and asking
        assert row["health_refused"] <= 2, row


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("requests", "sessions"), [(20, 4), (6000, 500)])
def test_a_server_endures_a_campaign(requests: int, sessions: int) -> None:
    endured(requests=requests, sessions=sessions, seed=1)
