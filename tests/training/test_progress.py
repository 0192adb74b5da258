"""Progress reports of a long training run."""

from types import SimpleNamespace

import pytest
from dreamgym_integrations.trainers.common.progress import UpdatesDone


@pytest.mark.parametrize(("seconds", "expected"), [(11.0, [1, 2, 3, 25]), (0.01, [25])])
def test_progress_is_reported_every_25_updates_and_whenever_the_last_report_is_old(
    seconds: float, expected: list[int]
) -> None:
    now, told = 0.0, list[tuple[int, int]]()
    progress = UpdatesDone(lambda done, total: told.append((done, total)), clock=lambda: now)
    for step in (1, 2, 3, 25):
        now += seconds
        progress.on_step_end(None, SimpleNamespace(global_step=step, max_steps=30), None)
    assert told == [(step, 30) for step in expected]
