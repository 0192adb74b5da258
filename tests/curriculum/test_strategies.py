"""Strategies that choose the next tasks: by value, uniformly, hardest first, within a band."""

import json
import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym import Task
from dreamgym.curriculum.evidence import HALF_LIFE, LAST_GROUPS, PRIOR_ATTEMPTS, Evidence
from dreamgym.curriculum.sampler import Curriculum
from dreamgym.curriculum.strategy import Strategy
from dreamgym.errors import InvalidInput
from dreamgym.types import JsonObject

TASKS = [Task(id=f"t{i}", env="rooms", instruction=f"find coin {i}") for i in range(400)]
MIXED, SOLVED, FAILED = [1.0, 0.0] * 4, [1.0] * 8, [0.0] * 8


def curriculum(n: int, strategy: Strategy) -> Curriculum:
    return Curriculum(TASKS[:n], share=0, seed=5, strategy=strategy)


def share_of_mixed_groups(strategy: Strategy, seed: int) -> float:
    """Share of groups with a mixed outcome in 100 updates of 8 groups of 8.

    The 400 tasks have known difficulties, and the policy gets better all the time.
    """
    draw = random.Random(seed)
    difficulty = {task.id: draw.gauss(0, 4) for task in TASKS}
    chosen = Curriculum(TASKS, share=0, seed=seed, strategy=strategy)
    mixed = 0
    for update in range(100):
        skill = -4 + 5 * update / 100
        for task in chosen.sample(8, update):
            success = 1 / (1 + math.exp(difficulty[task.id] - skill))
            rewards_G = [float(draw.random() < success) for _ in range(8)]
            mixed += 0 < sum(rewards_G) < 8
            chosen.record(task, rewards_G)
    return mixed / 800


@pytest.mark.parametrize("seed", range(3))
def test_choice_by_value_gives_more_mixed_groups_than_uniform_choice_while_success_drifts(seed: int) -> None:
    by_value = share_of_mixed_groups(Strategy.VALUE, seed)
    alike = share_of_mixed_groups(Strategy.UNIFORM, seed)
    assert by_value > alike + 0.08, "measured: about 0.56 by value, 0.41 uniform"


@pytest.mark.parametrize("strategy", Strategy)
def test_every_strategy_draws_the_same_tasks_again_and_after_a_restart(strategy: Strategy) -> None:
    played = curriculum(60, strategy)
    for update in range(12):
        for number, task in enumerate(played.sample(8, update)):
            played.record(task, [FAILED, MIXED, SOLVED][(number + update) % 3])
    assert played.sample(8, 12) == played.sample(8, 12)
    restored = curriculum(60, strategy)
    restored.restore(json.loads(json.dumps(played.state())))
    assert restored.sample(8, 12) == played.sample(8, 12)
    assert restored.state() == played.state()
    assert restored.most_valuable(5) == played.most_valuable(5)


@given(strategy=st.sampled_from(Strategy), pool=st.integers(1, 12), n=st.integers(1, 20))
def test_no_task_comes_twice_while_there_are_enough(strategy: Strategy, pool: int, n: int) -> None:
    drawn = Counter(task.id for task in curriculum(pool, strategy).sample(n, 0))
    assert sum(drawn.values()) == n
    if n <= pool:
        assert set(drawn.values()) == {1}


def test_the_hardest_tasks_come_first_and_untried_ones_count_as_never_solved() -> None:
    hardest = curriculum(4, Strategy.HARDEST)
    hardest.sample(1, 0)
    for task, rewards_G in zip(TASKS, (SOLVED, MIXED, FAILED), strict=False):
        hardest.record(task, rewards_G)
    drawn = [task.id for task in hardest.sample(4, 1)]
    assert (set(drawn[:2]), drawn[2:]) == ({"t2", "t3"}, ["t1", "t0"])


def test_a_band_prefers_tasks_inside_it_and_untried_ones_to_tasks_outside() -> None:
    band = curriculum(5, Strategy.BAND)
    band.sample(1, 0)
    for task, rewards_G in zip(TASKS, (SOLVED, MIXED, FAILED, [1.0, *[0.0] * 6]), strict=False):
        band.record(task, rewards_G)
    drawn = [task.id for task in band.sample(5, 1)]
    assert set(drawn[:2]) == {"t1", "t4"}
    assert drawn[2] == "t3", "the nearest to the bounds"


def test_success_treats_a_task_with_only_an_old_outcome_as_untried() -> None:
    evidence = Evidence()
    evidence.record("solved", SOLVED, 0)
    assert evidence.success("solved", 2 * HALF_LIFE) == 1
    assert evidence.success("solved", 2 * HALF_LIFE + 1) is None
    assert evidence.success("never tried", 0) is None


def test_an_untried_task_has_the_mean_value_and_an_old_value_goes_back_to_it() -> None:
    evidence = Evidence()
    assert set(evidence.values(["a", "b"], 0)) == {1.0}, "without outcomes all tasks have the same value"
    evidence.record("mixed", MIXED, 0)
    evidence.record("solved", SOLVED, 0)
    variance = 8 / 7 / 4
    mean = variance / 2
    expected = [(7 * v + PRIOR_ATTEMPTS * mean) / (7 + PRIOR_ATTEMPTS) for v in (variance, 0.0)]
    assert evidence.values(["mixed", "solved", "new"], 0) == pytest.approx([*expected, mean])
    old = evidence.values(["mixed", "solved", "new"], 20 * HALF_LIFE)
    assert old == pytest.approx([mean] * 3, rel=1e-4)


@given(
    groups=st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=8), min_size=1, max_size=8),
    cut=st.integers(0, 8),
)
def test_rewards_of_one_update_are_one_group_even_if_recorded_in_parts(groups: list[list[float]], cut: int) -> None:
    together, apart = Evidence(), Evidence()
    for update, rewards in enumerate(groups):
        together.record("task", rewards, update)
        for part in (rewards[:cut], rewards[cut:]):
            if part:
                apart.record("task", part, update)
    assert len(apart.groups("task")) == min(LAST_GROUPS, len(groups))
    assert apart.values(["task"], 9) == pytest.approx(together.values(["task"], 9))
    assert apart.success("task", 9) == pytest.approx(together.success("task", 9))


def test_a_curriculum_saved_with_another_strategy_is_refused() -> None:
    with pytest.raises(InvalidInput, match="saved with the strategy 'uniform', but the run uses 'value'"):
        curriculum(3, Strategy.VALUE).restore(curriculum(3, Strategy.UNIFORM).state())


@pytest.mark.parametrize("state", [{}, {"generated": [], "value": {}}, {"groups": {"a": 1}}])
def test_a_state_that_is_not_a_saved_curriculum_is_refused(state: JsonObject) -> None:
    with pytest.raises(InvalidInput, match="not a saved curriculum"):
        curriculum(3, Strategy.VALUE).restore(state)


def test_a_damaged_group_in_a_saved_curriculum_is_refused() -> None:
    chosen = curriculum(3, Strategy.VALUE)
    with pytest.raises(InvalidInput, match="not a saved curriculum"):
        chosen.restore({**chosen.state(), "groups": {"t0": [{"iteration": 1}]}})
