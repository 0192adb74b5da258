"""The metrics of a run for other programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dreamgym_integrations.trainers.common.reporting import reporting


def test_a_resumed_run_has_each_of_its_updates_once_in_tensorboard(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    record = tmp_path / "metrics.jsonl"
    for kept, rate in ((0, 0.25), (3, 0.75)):
        lines = record.read_text().splitlines()[:kept] if record.exists() else []
        record.write_text("".join(f"{line}\n" for line in lines))
        with reporting(("tensorboard",), tmp_path, {}) as report:
            for step in range(kept, kept + 4):
                line = {"step": step, "inside_success": rate}
                with record.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                report({**line})
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    drawn = [(event.step, event.value) for event in events.Scalars("inside_success")]
    assert drawn == [(0, 0.25), (1, 0.25), (2, 0.25), (3, 0.75), (4, 0.75), (5, 0.75), (6, 0.75)]
