"""Intervals are right where they can be checked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.evaluation import clustered, clustered_difference, paired_difference, wilson


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


@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from("abcde")), max_size=40))
def test_a_clustered_interval_holds_its_mean_and_is_no_narrower_than_wilsons(pairs: list[tuple[float, str]]) -> None:
    values, names = [value for value, _ in pairs], [name for _, name in pairs]
    rate, plain = clustered(values, names), wilson(sum(values), len(values))
    assert rate.mean == plain.mean
    assert 0 <= rate.low <= plain.low <= plain.high <= rate.high <= 1


def test_values_that_go_together_in_clusters_widen_the_interval() -> None:
    values = [1.0] * 50 + [0.0] * 50
    together = clustered(values, [str(i // 10) for i in range(100)])
    alone = clustered(values, [str(i) for i in range(100)])
    assert together.high - together.low > 2 * (alone.high - alone.low)
    assert alone == clustered(values, [str(i) for i in range(100)])


def test_a_difference_that_never_varies_still_has_an_interval_and_none_has_the_widest() -> None:
    same = clustered_difference([0.0] * 30, [str(i // 3) for i in range(30)])
    assert same.low < 0 == same.mean < same.high
    assert same.high == wilson(0, 10).high
    gained = clustered_difference([1.0, 0.0] * 30, [str(i // 2) for i in range(60)])
    assert (gained.mean, gained.n) == (0.5, 60)
    nothing = clustered_difference([], [])
    assert (nothing.low, nothing.high, nothing.n) == (-1.0, 1.0, 0)
