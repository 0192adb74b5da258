"""Properties of advantages that hold for all numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.training.advantages import (
    generalised_advantages,
    group_advantages,
    trusted,
    weighted,
)

numbers = st.floats(-100, 100)
rewards = st.lists(st.none() | numbers, min_size=2, max_size=12)
confidences = st.none() | st.floats(0, 1)
steps = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=12)


@given(rewards)
def test_the_advantages_of_a_group_sum_to_zero_and_are_zero_without_a_reward(
    rewards_G: list[float | None],
) -> None:
    advantages_G = group_advantages(rewards_G)
    assert math.fsum(advantages_G) == pytest.approx(0, abs=1e-6)
    assert all(advantage == 0 for advantage, reward in zip(advantages_G, rewards_G, strict=True) if reward is None)


@given(rewards)
def test_more_reward_never_means_less_advantage(rewards_G: list[float | None]) -> None:
    ranked = sorted(
        (reward, advantage)
        for reward, advantage in zip(rewards_G, group_advantages(rewards_G), strict=True)
        if reward is not None
    )
    assert [advantage for _, advantage in ranked] == sorted(advantage for _, advantage in ranked)


@given(steps)
def test_without_decay_an_advantage_is_the_reward_to_come_minus_the_value(
    steps_T: list[tuple[float, float]],
) -> None:
    rewards_T, values_T = map(list, zip(*steps_T, strict=True))
    advantages_T = generalised_advantages(rewards_T, values_T, discount=1, decay=1)
    for t, advantage in enumerate(advantages_T):
        assert advantage == pytest.approx(math.fsum(rewards_T[t:]) - values_T[t], abs=1e-6)


@given(steps, st.floats(0, 1))
def test_with_full_decay_an_advantage_is_the_one_step_error_of_the_value(
    steps_T: list[tuple[float, float]], discount: float
) -> None:
    rewards_T, values_T = map(list, zip(*steps_T, strict=True))
    advantages_T = generalised_advantages(rewards_T, values_T, discount=discount, decay=0)
    for t, advantage in enumerate(advantages_T):
        following = values_T[t + 1] if t + 1 < len(values_T) else 0.0
        assert advantage == pytest.approx(rewards_T[t] + discount * following - values_T[t], abs=1e-6)


@given(steps, st.floats(0, 1), st.floats(0, 1))
def test_with_exact_values_every_advantage_is_zero(
    steps_T: list[tuple[float, float]], discount: float, decay: float
) -> None:
    rewards_T = [reward for reward, _ in steps_T]
    values_T = [0.0] * (len(rewards_T) + 1)
    for t in range(len(rewards_T) - 1, -1, -1):
        values_T[t] = rewards_T[t] + discount * values_T[t + 1]
    advantages_T = generalised_advantages(rewards_T, values_T[:-1], discount=discount, decay=decay)
    assert advantages_T == pytest.approx([0.0] * len(rewards_T), abs=1e-6)


@given(st.lists(st.tuples(st.none() | numbers, confidences), max_size=12), st.floats(0, 1))
def test_a_reward_is_kept_unchanged_or_dropped_for_low_confidence(
    pairs_G: list[tuple[float | None, float | None]], least: float
) -> None:
    rewards_G, confidences_G = [reward for reward, _ in pairs_G], [confidence for _, confidence in pairs_G]
    for reward, confidence, kept in zip(
        rewards_G, confidences_G, trusted(rewards_G, confidences_G, least=least), strict=True
    ):
        assert kept == (reward if confidence is None or confidence >= least else None)
    assert trusted(rewards_G, confidences_G, least=0.0) == rewards_G, "off by default"


@given(st.lists(st.tuples(numbers, confidences), max_size=12))
def test_confidence_never_enlarges_an_advantage_or_flips_its_sign(pairs_G: list[tuple[float, float | None]]) -> None:
    advantages_G, confidences_G = [advantage for advantage, _ in pairs_G], [confidence for _, confidence in pairs_G]
    for advantage, confidence, result in zip(
        advantages_G, confidences_G, weighted(advantages_G, confidences_G), strict=True
    ):
        assert abs(result) <= abs(advantage)
        assert result * advantage >= 0
        assert confidence not in (None, 1.0) or result == advantage
