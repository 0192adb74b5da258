"""Intervals are right where they can be checked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.evaluation import paired_difference, wilson


def test_the_wilson_interval_agrees_with_a_published_value() -> None:
    # Newcombe (1998), table I: 15 of 148, score method: 0.0624 to 0.1605
    rate = wilson(15, 148)
    assert (rate.low, rate.high) == (pytest.approx(0.0624, abs=5e-5), pytest.approx(0.1605, abs=5e-5))


@given(st.integers(0, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_an_interval_holds_its_mean_and_stays_within_zero_and_one(counts: tuple[int, int]) -> None:
    rate = wilson(*counts)
    assert 0 <= rate.low <= rate.mean <= rate.high <= 1


def test_no_difference_gives_an_interval_of_zero() -> None:
    rate = paired_difference([[0.0, 1.0, 1.0]], [[0.0, 1.0, 1.0]])
    assert (rate.low, rate.mean, rate.high) == (0, 0, 0)


def test_the_paired_interval_is_narrower_than_the_task_spread_when_every_task_gains_alike() -> None:
    before = [[0.0] * 50 + [1.0] * 50]
    after = [[1.0] * 50 + [1.0] * 50]
    rate = paired_difference(before, after)
    assert rate.mean == 0.5
    assert 0.39 < rate.low < 0.5 < rate.high < 0.61


def test_disagreeing_seeds_widen_the_interval() -> None:
    before = [[0.0] * 100] * 3
    agreeing = paired_difference(before, [[1.0] * 30 + [0.0] * 70] * 3)
    disagreeing = paired_difference(before, [[1.0] * 90 + [0.0] * 10, [0.0] * 100, [0.0] * 100])
    assert disagreeing.high - disagreeing.low > agreeing.high - agreeing.low
