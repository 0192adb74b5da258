"""The progress that a person sees of a training run is computed from the lines of its record."""

import pytest
from dreamgym_integrations.trainers.common.reporting import numbers

from dreamgym.runs.train.progress import Progress, say_line
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


def test_practice_in_the_real_environment_is_told_from_its_probes() -> None:
    progress = Progress(steps=5, where="real")
    progress.take(update(0, 0.6))
    progress.take({"step": 0, "real_success": 0.3, "real_low": 0.25, "real_high": 0.36})
    rows = dict(progress.rows())
    assert (rows["success in real practice"], rows["success in reality"]) == ("60%", "30% [25, 36] at update 0")


def test_success_that_nobody_knows_is_not_shown_as_zero() -> None:
    progress = Progress(steps=5, where="dream")
    progress.take(update(0, None))
    progress.take({"step": 1, "real_success": None, "real_low": None, "real_high": None})
    rows = dict(progress.rows())
    assert (rows["success in the dream"], rows["success in reality"]) == ("unknown", "unknown at update 1")
    progress.take(update(1, 0.6))
    assert dict(progress.rows())["success in the dream"] == "60%", "the mean of what is known"


def test_without_a_terminal_the_first_and_the_last_update_are_printed_once_beside_the_probes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = Progress(steps=3, where="dream")
    probe: JsonObject = {"step": 1, "real_success": 0.3, "real_low": 0.25, "real_high": 0.36}
    for line in (update(0, 0.5), probe, update(1, 0.5), update(2, 0.8)):
        progress.take(line)
        say_line(progress, line)
    first, probed, last = capsys.readouterr().err.splitlines()
    assert first.startswith("update 1 of 3, success in the dream 50%, ")
    assert probed == "update 1 of 3, success in reality 30% [25, 36] at update 1"
    assert last.startswith("update 3 of 3, means of the last 3 updates, success in the dream 60%, ")


def test_another_program_gets_the_tiers_and_the_mean_value_of_an_update() -> None:
    line = update(0, None) | {"tiers": {"recorded": 30, "model": 4}, "values": [0.25, None, 0.05]}
    drawn = numbers(line)
    assert (drawn["tiers/recorded"], drawn["tiers/model"]) == (30, 4)
    assert drawn["values"] == pytest.approx(0.15)
    assert "inside_success" not in drawn
    assert "values" not in numbers(line | {"values": [None]})
