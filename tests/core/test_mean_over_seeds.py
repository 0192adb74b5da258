"""Mean of one number per training seed, with its confidence interval."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.evaluation.rates import mean_over_seeds

NUMBERS = st.lists(st.floats(-1, 1), min_size=2, max_size=30)


@pytest.mark.parametrize(("n", "quantile"), [(2, 12.706), (5, 2.776), (11, 2.228), (12, 2.201), (31, 2.042)])
def test_the_interval_is_that_of_student_s_t(n: int, quantile: float) -> None:
    values = [float(value) for value in range(n)]
    deviation = math.sqrt(n * (n + 1) / 12)  # standard deviation of 0 … n - 1, with the denominator n - 1
    rate = mean_over_seeds(values)
    assert (rate.high - rate.mean) / (deviation / math.sqrt(n)) == pytest.approx(quantile, abs=1e-3)
    assert rate.mean == (n - 1) / 2


@given(NUMBERS, st.floats(-1, 1))
def test_shifting_all_values_shifts_the_interval_by_the_same_amount(values: list[float], by: float) -> None:
    here, there = mean_over_seeds(values), mean_over_seeds([value + by for value in values])
    assert there.mean == pytest.approx(here.mean + by, abs=1e-6)
    assert there.low == pytest.approx(here.low + by, abs=1e-6)
    assert here.low <= here.mean <= here.high


def test_five_seeds_miss_the_truth_in_about_one_of_twenty_intervals() -> None:
    draw = random.Random(0)
    rates = [mean_over_seeds([draw.gauss(0, 1) for _ in range(5)]) for _ in range(4000)]
    missed = sum(not rate.low <= 0 <= rate.high for rate in rates) / len(rates)
    assert 0.04 < missed < 0.06


def test_one_seed_has_an_infinite_interval() -> None:
    assert math.isinf(mean_over_seeds([0.3]).high)
