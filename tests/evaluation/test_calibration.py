"""Quality of confidences, measured on trajectories that the calibration was not fitted on."""

import random

import pytest
from cases import case
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.dream.confidence import FEATURES, auroc
from dreamgym.evaluation.calibration import calibrated, fitted
from dreamgym.evaluation.calls import Compared
from dreamgym.types import StepResult


def predictions(n: int, *, telling: bool, seed: int = 0) -> list[Compared]:
    """Predictions that are right in 60 of 100 cases; if `telling`, the first feature nearly always shows which."""
    draw = random.Random(seed)
    calls = []
    for i in range(n):
        right = draw.random() < 0.6
        signal = (0.9 if right else 0.1) if telling and draw.random() < 0.95 else draw.random()
        features = (signal, *[0.0] * (len(FEATURES) - 1))
        calls.append(case("a", "b", "b" if right else "c", trajectory=f"t{i % 40}", step=i, features=features))
    return calls


def test_an_informative_feature_separates_right_from_wrong_and_beats_the_base_rate() -> None:
    found = calibrated(predictions(600, telling=True), model="m", env="e", seed=0)
    assert found is not None
    assert found.auroc is not None
    assert found.auroc > 0.9
    assert found.brier.high < found.brier_of_base_rate
    assert found.ece < 0.1
    assert found.fitted_on + found.measured_on == 600
    assert sum(one.right.n for one in found.bins) == found.measured_on


def test_an_uninformative_feature_gives_no_more_than_the_base_rate() -> None:
    found = calibrated(predictions(600, telling=False), model="m", env="e", seed=0)
    assert found is not None
    assert found.brier.mean == pytest.approx(found.brier_of_base_rate, abs=0.02)
    assert found.auroc is not None
    assert abs(found.auroc - 0.5) < 0.1


def test_no_trajectory_is_both_fitted_on_and_measured_on() -> None:
    calls = predictions(400, telling=True)
    long = [call for call in calls if call.trajectory == "t0"]
    short = [call for call in calls if call.trajectory == "t1"][:3]
    for seed in range(5):
        found = calibrated([*long, *short], model="m", env="e", seed=seed)
        assert found is not None
        assert {found.fitted_on, found.measured_on} == {10, 3}


def test_the_interval_of_right_predictions_counts_trajectories_because_their_steps_go_together() -> None:
    features = (0.5, *[0.0] * (len(FEATURES) - 1))
    calls = [
        case("a", "b", "b" if t % 4 < 2 else "c", trajectory=f"t{t}", step=step, features=features)
        for t in range(16)
        for step in range(50)
    ]
    found = calibrated(calls, model="m", env="e", seed=0)
    assert found is not None
    (one,) = found.bins
    for rate in (found.right, one.right):
        assert rate.n == 400
        assert rate.high - rate.low > 0.5, "8 trajectories are all right or all wrong"


def test_answers_without_a_model_are_not_used_for_calibration() -> None:
    calls = [case("a", "b", "b", trajectory=name) for name in "abc"]
    assert calibrated(calls, model="m", env="e", seed=0) is None
    assert fitted(calls, model="m", env="e") is None
    one = [case("a", "b", "b", features=(0.0,) * len(FEATURES))]
    assert calibrated(one, model="m", env="e", seed=0) is None
    calibration = fitted(one, model="m", env="e")
    assert calibration is not None
    assert (calibration.n, calibration.model, calibration.env) == (1, "m", "e")


@pytest.mark.parametrize(
    ("given", "right", "area"),
    [
        ([0.9, 0.1], [True, False], 1.0),
        ([0.1, 0.9], [True, False], 0.0),
        ([0.5, 0.5], [True, False], 0.5),
        ([0.9, 0.5, 0.1, 0.7], [True, True, False, False], 0.75),
        ([0.9, 0.5], [True, True], None),
    ],
)
def test_the_auroc_is_the_share_of_pairs_in_which_the_right_one_scores_higher(
    given: list[float], right: list[bool], area: float | None
) -> None:
    assert auroc(given, right) == area


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1))
def test_the_auroc_of_reversed_scores_is_one_minus_the_auroc(pairs: list[tuple[float, bool]]) -> None:
    scores, right = [p for p, _ in pairs], [y for _, y in pairs]
    area = auroc(scores, right)
    if area is not None:
        assert auroc([-p for p in scores], right) == pytest.approx(1 - area)


def test_a_prediction_is_right_if_answer_state_reward_and_end_are_right() -> None:
    assert case("a", "b", "b").is_right
    assert not case("a", "b", "c").is_right
    assert not case("a", "b", None).is_right
    for other in (
        StepResult(observation="no"),
        StepResult(observation="ok", is_error=True),
        StepResult(observation="ok", terminated=True),
        StepResult(observation="ok", reward=1.0),
    ):
        assert not case("a", "b", "b", got=other).is_right
