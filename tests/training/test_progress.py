"""What is said of a training that takes long."""

from types import SimpleNamespace

import pytest
from dreamgym_integrations.trainers.common.progress import UpdatesDone


@pytest.mark.parametrize(("seconds", "expected"), [(11.0, [1, 2, 3, 25]), (0.01, [25])])
def test_an_update_is_told_at_every_25th_and_wherever_the_last_one_was_told_long_ago(
    seconds: float, expected: list[int]
) -> None:
    now, told = 0.0, list[tuple[int, int]]()
    progress = UpdatesDone(lambda done, total: told.append((done, total)), clock=lambda: now)
    for step in (1, 2, 3, 25):
        now += seconds
        progress.on_step_end(None, SimpleNamespace(global_step=step, max_steps=30), None)
    assert told == [(step, 30) for step in expected]
