"""The two errors on known cases, and the paper's bound on small worlds that can be solved exactly."""

import numpy as np
import pytest
from cases import case
from numpy.typing import NDArray

from dreamgym.evaluation.bound import bound, terms
from dreamgym.evaluation.report.text import bound_notes, plain
from dreamgym.types import StepResult

Matrix = NDArray[np.float64]
WON = StepResult(observation="won", reward=1.0, terminated=True)


def test_the_errors_are_means_over_the_recorded_steps() -> None:
    calls = [
        case("a", "b", "b"),
        case("a", "b", "c"),
        case("a", "b", "b", recorded=WON, got=StepResult(observation="won", terminated=True)),
        case("a", "b", None, recorded=WON),
    ]
    found = bound(calls, gamma=0.9)
    assert (found.eps_reward.mean, found.eps_transition.mean) == (0.5, 0.5)
    assert found.eps_reward.low <= 0.5 <= found.eps_reward.high
    assert found.at_mean.model_error == pytest.approx(0.5 / 0.1 + 2 * 0.9 * 0.5 / 0.01)
    assert found.at_upper.model_error > found.at_mean.model_error
    assert found.largest_return == pytest.approx(10)
    assert found.vacuous


def test_the_verdict_of_a_check_on_the_state_counts_as_the_reward() -> None:
    calls = [
        case("a", "b", "b", accomplished=True, claimed=True),
        case("a", "b", "b", accomplished=True, claimed=False),
        case("a", "b", "b", accomplished=False, claimed=True),
        case("a", "b", None, accomplished=False),
    ]
    assert bound(calls, gamma=0.9).eps_reward.mean == 0.5


def test_errors_of_rewards_larger_than_1_are_in_the_unit_of_the_reward() -> None:
    ten = StepResult(observation="won", reward=10.0)
    calls = [case("a", "b", "b", recorded=ten), case("a", "b", "b", recorded=ten, got=StepResult(observation="won"))]
    found = bound(calls, gamma=0.9, max_reward=10.0)
    assert found.eps_reward.mean == 5.0
    assert found.largest_return == pytest.approx(100.0)


def test_the_report_calls_a_vacuous_bound_vacuous_and_says_that_any_other_guarantees_nothing() -> None:
    wrong = bound([case("a", "b", "c")], gamma=0.9, divergence=0.001)
    words = " ".join(map(plain, bound_notes(wrong)))
    assert "vacuous: the terms taken off, 363.6, are no less than the largest possible return, 10." in words
    assert "eps_P below 0.028" in words
    right = " ".join(map(plain, bound_notes(bound([case("a", "b", "b")] * 50, gamma=0.9))))
    assert "not vacuous" in right
    assert "guarantees nothing" in right
    assert "averages" in right


def test_the_bound_is_informative_if_and_only_if_the_error_is_below_the_limit() -> None:
    for gamma in (0.5, 0.9, 0.95, 0.99):
        limit = bound([], gamma=gamma).informative_below
        for error, informative in ((0.99 * limit, True), (1.01 * limit, False)):
            assert (terms(0.0, error, gamma=gamma).lost < 1 / (1 - gamma)) is informative


def value(transition: Matrix, reward: Matrix, policy: Matrix, gamma: float) -> Matrix:
    """Exact value V of each state under a policy."""
    moves = np.einsum("sa,sat->st", policy, transition)
    gains = (policy * reward).sum(axis=1)
    found: Matrix = np.linalg.solve(np.eye(len(moves)) - gamma * moves, gains)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_lemma_and_theorem_hold_on_random_worlds_that_are_solved_exactly(seed: int) -> None:
    draw = np.random.default_rng(seed)
    n, m, gamma = int(draw.integers(2, 6)), int(draw.integers(2, 4)), float(draw.choice([0.5, 0.8, 0.95]))
    real_p, real_r = draw.dirichlet(np.ones(n), size=(n, m)), draw.random((n, m))
    mix = float(draw.choice([0.0, 0.001, 0.05, 0.5]))
    dream_p = (1 - mix) * real_p + mix * draw.dirichlet(np.ones(n), size=(n, m))
    dream_r = np.clip(real_r + mix * draw.normal(size=(n, m)), 0, 1)
    start = draw.dirichlet(np.ones(n))
    old = draw.dirichlet(np.ones(m), size=n)
    new = 0.9 * old + 0.1 * draw.dirichlet(np.ones(m), size=n)
    eps_r = float(np.abs(real_r - dream_r).max())
    eps_p = float(0.5 * np.abs(real_p - dream_p).sum(axis=2).max())
    divergence = float((new * np.log(new / old)).sum(axis=1).max())
    found = terms(eps_r, eps_p, gamma=gamma, divergence=divergence)
    returns = {
        (world, name): float(start @ value(p, r, policy, gamma))
        for world, p, r in (("real", real_p, real_r), ("dream", dream_p, dream_r))
        for name, policy in (("old", old), ("new", new))
    }
    for name in ("old", "new"):
        assert abs(returns["real", name] - returns["dream", name]) <= found.model_error + 1e-9
    v = value(dream_p, dream_r, old, gamma)
    advantage = dream_r + gamma * dream_p @ v - v[:, None]
    moves = np.einsum("sa,sat->st", old, dream_p)
    visits = (1 - gamma) * np.linalg.solve((np.eye(n) - gamma * moves).T, start)
    gain = float(visits @ (new * advantage).sum(axis=1)) / (1 - gamma)
    assert returns["real", "new"] - returns["real", "old"] >= gain - found.lost - 1e-9


def test_the_lemma_is_not_so_loose_that_a_tenth_of_it_would_hold() -> None:
    """One of two states pays forever: a small chance of leaving it costs more than a tenth of what the lemma allows."""
    gamma, slip = 0.95, 0.02
    real_p = np.array([[[1.0, 0.0]], [[0.0, 1.0]]])
    dream_p = np.array([[[1 - slip, slip]], [[0.0, 1.0]]])
    reward, policy = np.array([[1.0], [0.0]]), np.ones((2, 1))
    gap = value(real_p, reward, policy, gamma)[0] - value(dream_p, reward, policy, gamma)[0]
    allowed = terms(0.0, slip, gamma=gamma).model_error
    assert 0.1 * allowed < gap <= allowed
