"""The progress that a person sees of a training run is computed from the lines of its record."""

from dreamgym.runs.train.progress import Progress
from dreamgym.types import JsonObject


def update(step: int, success: float | None) -> JsonObject:
    return {
        "step": step,
        "where": "dream",
        "inside_success": success,
        "refused_share": 0.1,
        "groups": 4,
        "dead_groups": 1,
        "values": [0.0, 0.25, 0.1, 0.12],
        "mean_steps": 8.5,
        "sampled_tokens": 1000,
        "rollout_s": 2.0,
    }


def test_dream_and_reality_stand_side_by_side() -> None:
    progress = Progress(steps=50, where="dream")
    for step in range(20):
        progress.take(update(step, 0.0 if step < 10 else 0.6))
    progress.take({"step": 20, "real_success": 0.3, "real_low": 0.25, "real_high": 0.36})
    progress.take({"step": 20, "kl": 0.0123, "loss": 1.0})
    rows = dict(progress.rows())
    assert rows["success in the dream"] == "60%", "the mean of the last ten updates"
    assert rows["success in reality"] == "30% [25, 36] at update 20"
    assert rows["update"] == "20 of 50"
    assert rows["dead groups"] == "25%"
    assert rows["sampled tokens per second"] == "500"
    assert rows["kl"] == "0.0123"
    assert len(rows["values of tasks, 0 to 0.25"]) == 5


def test_before_the_first_update_nothing_is_shown() -> None:
    assert not list(Progress(steps=5, where="real").rows())


def test_success_that_nobody_knows_is_not_shown_as_zero() -> None:
    progress = Progress(steps=5, where="dream")
    progress.take(update(0, None))
    progress.take({"step": 1, "real_success": None, "real_low": None, "real_high": None})
    rows = dict(progress.rows())
    assert (rows["success in the dream"], rows["success in reality"]) == ("unknown", "unknown at update 1")
    progress.take(update(1, 0.6))
    assert dict(progress.rows())["success in the dream"] == "60%", "the mean of what is known"
