"""`Trajectory.end`: how an episode ended, and its reward if it is known."""

import pytest

from dreamgym import Source, Task, Trajectory
from dreamgym.types import StopReason


@pytest.mark.parametrize(
    ("reason", "verdict", "end"),
    [
        (StopReason.FINISHED, None, "finished, reward unknown"),
        (StopReason.CLOSED, None, "closed, reward unknown"),
        (StopReason.OUT_OF_SUPPORT, None, "out_of_support, reward unknown"),
        (StopReason.ERROR, None, "error, reward unknown"),
        (StopReason.MAX_STEPS, None, "max_steps, reward 0"),
        (StopReason.FINISHED, 0.0, "finished, reward 0"),
        (StopReason.CLOSED, 1.0, "closed, reward 1"),
    ],
)
def test_the_reward_of_an_unjudged_end_is_unknown_except_at_the_step_limit(
    reason: StopReason, verdict: float | None, end: str
) -> None:
    task = Task(id="t", env="e", instruction="")
    played = Trajectory(id="a", task=task, transitions=(), source=Source.REAL, stop_reason=reason, final_reward=verdict)
    assert played.end == end
