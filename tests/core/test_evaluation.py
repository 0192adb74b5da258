"""Intervals agree with published values, calculations by hand and simulations."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.evaluation.rates import clustered, clustered_difference, paired_difference, wilson


def test_the_wilson_interval_agrees_with_a_published_value() -> None:
    # Newcombe (1998), table I: 15 of 148, score method: 0.0624 to 0.1605
    rate = wilson(15, 148)
    assert (rate.low, rate.high) == pytest.approx((0.0624, 0.1605), abs=5e-5)


@given(st.integers(0, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_an_interval_holds_its_mean_and_stays_within_zero_and_one(counts: tuple[int, int]) -> None:
    rate = wilson(*counts)
    assert 0 <= rate.low <= rate.mean <= rate.high <= 1


@pytest.mark.parametrize("seeds", [1, 3])
def test_equal_differences_have_the_interval_of_an_event_that_occurs_in_no_task(seeds: int) -> None:
    lost, won = [[0.0] * 54] * seeds, [[1.0] * 54] * seeds
    rate = paired_difference(lost, lost)
    assert (rate.low, rate.mean, rate.high, rate.n) == (-wilson(0, 54).high, 0, wilson(0, 54).high, 54)
    rate = paired_difference(lost, won)
    assert (rate.low, rate.mean, rate.high) == (1 - wilson(0, 54).high, 1, 1)


def test_seeds_that_win_equally_often_on_different_tasks_have_the_interval_of_independent_outcomes() -> None:
    rate = paired_difference([[0.0] * 10] * 2, [[1.0] * 5 + [0.0] * 5, [0.0] * 5 + [1.0] * 5])
    # 20 outcomes with mean 1/2 have the variance 5/19; 2.093 is Student's t with 19 degrees of freedom
    assert (rate.mean, rate.high - rate.mean) == pytest.approx((0.5, 2.093 * math.sqrt(5 / 19 / 20)), abs=1e-4)


@given(st.integers(1, 3), st.integers(2, 6), st.data())
def test_no_interval_of_a_difference_is_a_single_point(seeds: int, tasks: int, data: st.DataObject) -> None:
    outcomes = st.lists(
        st.lists(st.sampled_from([0.0, 1.0]), min_size=tasks, max_size=tasks), min_size=seeds, max_size=seeds
    )
    rate = paired_difference(data.draw(outcomes), data.draw(outcomes))
    assert rate.low < rate.high
    assert rate.low <= rate.mean <= rate.high


def test_the_interval_agrees_with_calculations_by_hand() -> None:
    # The means of the seeds are 1/3 and 2/3. Mean squares: seeds 1/6, tasks 1/2, rest 1/6.
    # The interval over the seeds alone is the wider one.
    rate = paired_difference([[0.0] * 3] * 2, [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    assert (rate.mean, rate.high - rate.mean) == pytest.approx((0.5, 12.7062 * math.sqrt(1 / 6 / 6)), rel=1e-5)
    # The seeds are alike. Mean squares: seeds 0, tasks 1/2, rest 0; 3 degrees of freedom.
    rate = paired_difference([[0.0] * 4] * 2, [[1.0, 0.0, 0.0, 0.0]] * 2)
    assert rate.mean == 0.25
    assert rate.high - rate.mean == pytest.approx(3.18245 * math.sqrt(1 / 2 / 8), rel=1e-5)


def test_the_quantile_of_student_s_t_is_exact_between_whole_degrees_of_freedom() -> None:
    # Mean squares: seeds 0.04, tasks 0.16, rest 0; 0.2**2 / (0.04**2 + 0.16**2) = 25/17 degrees of freedom.
    rate = paired_difference([[0.0] * 2] * 2, [[0.2, 0.6], [0.4, 0.8]])
    assert rate.high - rate.mean == pytest.approx(6.18811 * math.sqrt(0.2 / 4), rel=1e-5)


def test_disagreeing_seeds_widen_the_interval() -> None:
    before = [[0.0] * 100] * 3
    agreeing = paired_difference(before, [[1.0] * 30 + [0.0] * 70] * 3)
    disagreeing = paired_difference(before, [[1.0] * 90 + [0.0] * 10, [0.0] * 100, [0.0] * 100])
    assert disagreeing.high - disagreeing.low > agreeing.high - agreeing.low


def test_unequal_gains_of_tasks_widen_the_interval_although_the_seeds_agree() -> None:
    before = [[0.0] * 100] * 5
    rate = paired_difference(before, [[1.0] * 30 + [0.0] * 70] * 5)
    assert rate.high - rate.mean > 0.08, "other tasks would have given another mean"


def test_the_interval_of_one_seed_is_that_of_its_tasks() -> None:
    rate = paired_difference([[0.0] * 100], [[1.0] * 50 + [0.0] * 50])
    assert (rate.mean, rate.n) == (0.5, 100)
    assert 0.39 < rate.low < 0.42


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("scatter", [0.0, 0.06, 0.2])
def test_the_interval_covers_the_truth_for_few_seeds_however_they_scatter(seeds: int, scatter: float) -> None:
    draw = np.random.default_rng(seeds)
    covered, rounds, tasks = 0, 300, 100
    for _ in range(rounds):
        chances_N = draw.uniform(0, 0.5, tasks)  # their mean is 1/4
        gains_S = draw.normal(0.2, scatter, seeds)
        chances_SN = np.clip(chances_N[None, :] + gains_S[:, None], 0, 1)
        after_SN = draw.random((seeds, tasks)) < chances_SN
        before_SN = draw.random((seeds, tasks)) < chances_N
        rate = paired_difference(before_SN.astype(float).tolist(), after_SN.astype(float).tolist())
        truth = float(np.mean(np.clip(draw.uniform(0, 0.5, 40_000) + draw.normal(0.2, scatter, 40_000), 0, 1))) - 0.25
        covered += rate.low <= truth <= rate.high
    assert covered / rounds > 0.925, "if intervals cover 95 %, fewer of 300 have a chance of 1 in 20"


@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from("abcde")), max_size=40))
def test_a_clustered_interval_holds_its_mean_and_is_no_narrower_than_wilsons(pairs: list[tuple[float, str]]) -> None:
    values, names = [value for value, _ in pairs], [name for _, name in pairs]
    rate, plain = clustered(values, names), wilson(sum(values), len(values))
    assert rate.mean == plain.mean
    assert 0 <= rate.low <= plain.low <= plain.high <= rate.high <= 1


@pytest.mark.parametrize("clusters", [2, 3, 6, 12])
def test_the_interval_of_clustered_values_covers_the_truth_for_few_clusters(clusters: int) -> None:
    draw, rounds = np.random.default_rng(clusters), 300
    names = [str(i // 5) for i in range(5 * clusters)]
    differing = sharing = 0
    for _ in range(rounds):
        centres = np.repeat(draw.normal(0.5, 0.1, clusters), 5)
        values = np.clip(draw.normal(centres, 0.05), 0, 1).tolist()
        rate, plain = clustered_difference(values, names), clustered(values, names)
        differing += rate.low <= 0.5 <= rate.high
        sharing += plain.low <= 0.5 <= plain.high
    assert differing / rounds > 0.88
    assert sharing / rounds > 0.925, "it is no narrower than Wilson's"


@pytest.mark.parametrize("together", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("clusters", [3, 6, 12, 24])
def test_the_interval_of_a_share_near_one_covers_it_however_much_the_steps_of_a_trajectory_go_together(
    clusters: int, together: float
) -> None:
    draw, rounds, steps = np.random.default_rng(clusters), 300, 10
    names = [str(i // steps) for i in range(steps * clusters)]
    for share in (0.9, 0.97):
        covered = 0
        for _ in range(rounds):
            own = np.repeat(draw.random(clusters) < share, steps)  # the trajectory's own outcome, or each step its own
            values = np.where(draw.random(len(names)) < together, own, draw.random(len(names)) < share)
            rate = clustered(values.astype(float).tolist(), names)
            covered += rate.low <= share <= rate.high
        assert covered / rounds > 0.9


def test_values_that_are_all_equal_count_once_per_cluster() -> None:
    rate, seven = clustered([1.0] * 70, [str(i // 10) for i in range(70)]), wilson(7, 7)
    assert (rate.low, rate.mean, rate.high, rate.n) == (seven.low, 1.0, 1.0, 70)


def test_clusters_of_different_sizes_count_as_fewer_equal_ones() -> None:
    names = ["long"] * 100 + [str(i // 2) for i in range(60)]
    rate, equal = clustered([1.0] * 160, names), wilson(2, 2)
    assert equal.low < rate.low < wilson(3, 3).low, "160^2 / (100^2 + 30 * 2^2) = 2.5"


@pytest.mark.parametrize("sizes", [[200] + [5] * 5, [100] + [2] * 30, [100, 50, 20, 10, 5, 5, 5, 5]])
def test_the_interval_covers_the_truth_if_one_trajectory_is_much_longer_than_the_others(sizes: list[int]) -> None:
    draw, rounds, share = np.random.default_rng(len(sizes)), 300, 0.5
    names = [str(i) for i, size in enumerate(sizes) for _ in range(size)]
    for alike in (0.1, 0.5):
        covered = 0
        for _ in range(rounds):
            own = draw.beta(share * (1 - alike) / alike, (1 - share) * (1 - alike) / alike, len(sizes))
            values = draw.random(len(names)) < np.repeat(own, sizes)
            rate = clustered(values.astype(float).tolist(), names)
            covered += rate.low <= share <= rate.high
        assert covered / rounds > 0.92


def test_the_values_of_a_single_cluster_have_the_interval_of_one_value() -> None:
    for values in ([1.0] * 40, [1.0] * 20 + [0.0] * 20):
        rate, one = clustered(values, ["only"] * 40), wilson(sum(values) / 40, 1)
        assert (rate.low, rate.mean, rate.high, rate.n) == (one.low, one.mean, one.high, 40)


def test_the_seed_of_an_interval_may_be_negative() -> None:
    values, names = [float(i % 3 == 0) for i in range(100)], [str(i // 2) for i in range(100)]
    assert clustered_difference(values, names, seed=-1).mean == clustered_difference(values, names).mean


def test_values_that_go_together_in_clusters_widen_the_interval() -> None:
    values = [1.0] * 50 + [0.0] * 50
    together = clustered(values, [str(i // 10) for i in range(100)])
    alone = clustered(values, [str(i) for i in range(100)])
    assert together.high - together.low > 2 * (alone.high - alone.low)


def test_draws_that_are_made_in_parts_give_the_same_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    values, names = [float(i % 3 == 0) for i in range(100)], [str(i // 2) for i in range(100)]
    whole = clustered_difference(values, names)
    monkeypatch.setattr("dreamgym.evaluation.rates.DRAWN", 50 * 7)
    assert clustered_difference(values, names) == whole


def test_a_constant_difference_still_has_an_interval_and_no_data_gives_the_widest() -> None:
    same = clustered_difference([0.0] * 30, [str(i // 3) for i in range(30)])
    assert same.low < 0 == same.mean < same.high
    assert same.high == wilson(0, 10).high
    # their mean is not the same number in every draw, because floats are rounded
    rounded = clustered_difference([0.1] * 3, ["a", "b", "b"])
    assert (rounded.low, rounded.high) == pytest.approx((0.1 - wilson(0, 2).high, 0.1 + wilson(0, 2).high))
    gained = clustered_difference([1.0, 0.0] * 30, [str(i // 2) for i in range(60)])
    assert (gained.mean, gained.n) == (0.5, 60)
    nothing = clustered_difference([], [])
    assert (nothing.low, nothing.high, nothing.n) == (-1.0, 1.0, 0)
