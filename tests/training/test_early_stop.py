"""The rule that stops a run whose success in reality falls: its false alarms, and the falls that it detects."""

import random

from hypothesis import given
from hypothesis import strategies as st

from dreamgym.training.early_stop import RealProbes, chance_of_fall


def probe(chances: list[float], draw: random.Random) -> list[float]:
    return [float(draw.random() < chance) for chance in chances]


def alarms(rates: list[float], runs: int) -> float:
    """Share of runs that are stopped if the probes succeed at `rates`, on 200 tasks of differing difficulty."""
    draw, stopped = random.Random(0), 0
    for _ in range(runs):
        difficulty = [draw.uniform(-0.3, 0.3) for _ in range(200)]
        probes = RealProbes(planned=len(rates))
        stopped += any(
            probes.add(25 * number, probe([min(1, max(0, rate + d)) for d in difficulty], draw)) is not None
            for number, rate in enumerate(rates)
        )
    return stopped / runs


def test_a_policy_that_stays_as_good_is_stopped_in_at_most_one_run_of_twenty() -> None:
    assert alarms([0.4] * 5, runs=400) <= 0.05


def test_a_policy_that_gets_better_is_hardly_ever_stopped() -> None:
    assert alarms([0.2, 0.3, 0.4, 0.45, 0.5], runs=400) <= 0.01


def test_a_policy_that_loses_half_of_its_success_is_stopped() -> None:
    assert alarms([0.2, 0.35, 0.45, 0.3, 0.2], runs=100) >= 0.95


def test_the_checkpoint_to_keep_is_that_of_the_highest_probe() -> None:
    probes, draw = RealProbes(planned=3), random.Random(0)
    for update, rate in ((0, 0.1), (25, 0.9), (50, 0.5)):
        probes.add(update, probe([rate] * 100, draw))
    assert probes.best == 25


def test_a_probe_of_which_nothing_is_known_is_not_the_best() -> None:
    probes = RealProbes(planned=2)
    probes.add(0, [0.0, 0.0])
    probes.add(25, [None, None])
    assert probes.best == 0


def test_a_probe_of_which_little_is_known_is_not_the_best() -> None:
    probes = RealProbes(planned=3)
    probes.add(0, [1.0] * 120 + [0.0] * 80)
    probes.add(25, [1.0] * 160 + [0.0] * 40)
    probes.add(50, [1.0] * 2 + [None] * 198)
    assert probes.best == 25


def test_a_probe_is_compared_with_an_earlier_one_on_the_tasks_that_both_know() -> None:
    probes = RealProbes(planned=2)
    probes.add(0, [1.0, 1.0, 0.0, 0.0, 0.0])
    probes.add(25, [0.0, 1.0, None, None, 0.0])
    assert probes.best == 0, "its mean is lower only because the tasks that failed are hard"


def test_tasks_that_nothing_decides_in_any_probe_do_not_count() -> None:
    probes = RealProbes(planned=3)
    probes.add(0, [0.0] * 4 + [None] * 4)
    probes.add(25, [1.0, 1.0, 1.0, 0.0] + [None] * 4)
    probes.add(50, [1.0] * 4 + [None] * 4)
    assert probes.best == 50


def test_the_first_probe_with_known_outcomes_is_better_than_one_that_failed() -> None:
    probes = RealProbes(planned=3)
    probes.add(0, [None] * 4)
    probes.add(25, [0.0, 0.0, 0.0, None])
    probes.add(50, [None] * 4)
    assert probes.best == 25


@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, None]), st.sampled_from([0.0, 1.0, None])), max_size=60))
def test_the_chance_of_a_fall_is_one_only_if_nothing_was_lost(pairs: list[tuple[float | None, float | None]]) -> None:
    before, after = [a for a, _ in pairs], [b for _, b in pairs]
    lost = any(a == 1.0 and b == 0.0 for a, b in pairs)
    chance = chance_of_fall(before, after)
    assert 0 < chance <= 1
    assert (chance == 1) == (not lost)
