"""The demonstration, which is the first thing that a person runs."""

import json
from pathlib import Path

import pytest
from command_line import Command


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_quick_demonstration_shows_every_part(dreamgym: Command, dsn: str, tmp_path: Path) -> None:
    code, out, err = dreamgym("demo", "--quick", "--dsn", dsn, "--out", str(tmp_path))
    assert code == 0, err
    report = json.loads((tmp_path / "report.json").read_text())
    assert [row["policy"] for row in report["rows"]] == ["random", "warm start", "dream-0", "control-0"]
    assert (tmp_path / "report.png").stat().st_size > 10_000
    assert (tmp_path / "report.md").read_text() in out
