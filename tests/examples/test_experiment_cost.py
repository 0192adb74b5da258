"""When a dream is first: predictions from one measurement for other speeds of the real environment."""

import json
import math
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.environment import from_place
from dreamgym.runs.experiment.plan import Arm
from dreamgym.runs.experiment.running import Result

PLACE = f"{Path(__file__).parents[2] / 'examples' / 'experiments' / 'cost.py'}"
Point = from_place("class", f"{PLACE}:Point")
ahead_between, clock, courses, first_at, success_at = (
    getattr(sys.modules[Point.__module__], name)
    for name in ("ahead_between", "clock", "courses", "first_at", "success_at")
)


def straight(compute: float, steps: int, recorded: int = 0) -> tuple[object, object]:
    """A run whose success rises linearly from 0 to 1."""
    return Point(0.0, recorded, 0.0), Point(compute, recorded + steps, 1.0)


def test_a_level_is_reached_on_the_mean_of_the_seeds() -> None:
    clocks = [clock(straight(10, 0), 1, 4), clock(straight(30, 0), 1, 4)]
    assert success_at(clocks, 10) == pytest.approx((1 + 1 / 3) / 2)
    assert first_at(clocks, 2 / 3) == pytest.approx(10)
    assert first_at(clocks, 1.0) == pytest.approx(30)
    assert first_at([[(0.0, 0.2), (5.0, 0.3)]], 0.4) is None


@given(st.floats(10, 1000), st.floats(1, 9), st.integers(100, 5000), st.integers(1, 90), st.integers(1, 8))
def test_the_break_even_point_is_where_both_clocks_show_the_same(
    dream_s: float, real_s: float, real_steps: int, recorded: int, sessions: int
) -> None:
    found = ahead_between([straight(dream_s, 0, recorded)], [straight(real_s, real_steps)], 1.0, sessions)
    seconds = sessions * (dream_s - real_s) / (real_steps - recorded)
    assert found == (pytest.approx(seconds, rel=1e-6), math.inf)


def test_recordings_may_cost_more_than_practice_in_reality() -> None:
    real = [straight(20, 100)]
    assert ahead_between([straight(10, 0, 200)], real, 1.0, 4) == (0.0, pytest.approx(0.4))
    assert ahead_between([straight(30, 0, 200)], real, 1.0, 4) is None
    assert ahead_between([straight(10, 0, 50)], real, 1.0, 4) == (0.0, math.inf)


def test_a_dream_is_first_at_a_level_that_reality_never_reaches() -> None:
    low = [(Point(0.0, 0, 0.0), Point(10.0, 100, 0.5))]
    assert ahead_between([straight(10, 0, 50)], low, 0.8, 4) == (0.0, math.inf)
    assert ahead_between(low, [straight(10, 100)], 0.8, 4) is None
    assert ahead_between(low, low, 0.8, 4) is None


def seed_with_two_recordings(run: Path) -> tuple[Path, list[int]]:
    """The folder of a run's seed, and the lengths of its recordings."""
    recorded = Path(__file__).parents[2] / "examples" / "coin" / "trajectories.jsonl"
    two = recorded.read_text().splitlines()[:2]
    seed = run / "seed-0"
    seed.mkdir()
    (seed / "recorded.jsonl").write_text("\n".join(two))
    return seed, [len(json.loads(line)["transitions"]) for line in two]


def result(arm: Arm, *, seconds: float, real_steps: int) -> Result:
    return Result(
        arm=arm.name,
        seed=0,
        made_by=arm,
        commit="abc",
        outcomes="1",
        tiers={},
        unjudged=0,
        refused_share=0,
        recorded_steps=0,
        real_steps=real_steps,
        dream_steps=0,
        seconds=seconds,
        dead_share=0,
        curve=(),
    )


def test_a_run_folder_gives_compute_and_real_steps_of_every_probe(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(
        'title = "T"\nenv = "coin"\nseeds = [0]\n'
        '[[recorded]]\nbehaviour = "noisy"\ntasks = 1\nepisodes = 1\nwarm = true\n'
        '[[recorded]]\nbehaviour = "mixed"\ntasks = 1\nepisodes = 1\n[[arm]]\nname = "Then real"\ntrain = {}\n'
    )
    seed, lengths = seed_with_two_recordings(tmp_path)
    arm = seed / "then_real"
    (arm / "real").mkdir(parents=True)
    dream = [
        {"step": 0, "real_success": 0.1},
        {"step": 0, "where": "dream", "environment_steps": 70, "rollout_s": 2.0},
        {"step": 1, "where": "real", "environment_steps": 5},
        {"step": 1, "real_success": 0.3},
    ]
    real = [{"step": 0, "where": "real", "environment_steps": 60, "rollout_s": 1.0}, {"step": 1, "real_success": 0.5}]
    (arm / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in dream))
    (arm / "real" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in real))
    made = result(Arm(name="Then real", train={}), seconds=11.0, real_steps=65)
    (arm / "result.json").write_text(made.model_dump_json())
    expected = ((0.0, 0, 0.1), (6.0, 5, 0.3), (11.0, 65, 0.5))  # 8 s beside the rollouts: 4 for each update
    (free,) = courses(tmp_path, "Then real", [seed], charged=False)
    (paid,) = courses(tmp_path, "Then real", [seed], charged=True)
    assert free == tuple(Point(*point) for point in expected)
    assert [point.steps for point in paid] == [sum(lengths) + point.steps for point in free]


def test_an_arm_that_comes_after_another_begins_with_its_seconds_real_steps_and_recordings(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(
        'title = "T"\nenv = "coin"\nseeds = [0]\n[[recorded]]\nbehaviour = "noisy"\ntasks = 1\nepisodes = 2\n'
        '[[arm]]\nname = "SFT"\ntrain = { algorithm = "sft", policy = "tiny" }\n'
    )
    seed, lengths = seed_with_two_recordings(tmp_path)
    real = [{"step": 0, "real_success": 0.2}, {"step": 0, "where": "real", "environment_steps": 60, "rollout_s": 1.0}]
    arms = {
        "sft": result(Arm(name="SFT", train={"algorithm": "sft"}), seconds=100.0, real_steps=7),
        "sft_real": result(Arm(name="SFT, real", train={}, after="SFT"), seconds=103.0, real_steps=67),
    }
    for name, made in arms.items():
        (seed / name).mkdir()
        (seed / name / "result.json").write_text(made.model_dump_json())
    record = [*real, {"step": 1, "real_success": 0.5}]
    (seed / "sft_real" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in record))
    (free,) = courses(tmp_path, "SFT, real", [seed], charged=False)
    (paid,) = courses(tmp_path, "SFT, real", [seed], charged=True)
    assert free == (Point(100.0, 7, 0.2), Point(103.0, 67, 0.5))
    assert [point.steps for point in paid] == [sum(lengths) + 7, sum(lengths) + 67], "SFT imitated all recordings"
