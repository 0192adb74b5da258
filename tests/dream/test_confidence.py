"""Confidence is a probability that is fitted on held-out predictions; the same predictions give the same fit."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queries import DESK, query, transition

from dreamgym.dream.confidence import FEATURES, Calibration, calibrate, check_calibration, features
from dreamgym.dream.model import Prediction, Query
from dreamgym.errors import InvalidInput
from dreamgym.types import Provenance, Tier, ToolCall

BOOK = ToolCall(name="book", arguments={"name": "Ada"})
OTHER = ToolCall(name="book", arguments={"name": "Bob"})
CANCEL = ToolCall(name="cancel", arguments={"name": "Ada"})


def answer(observation: str, *, refused: bool = False, **probabilities: float) -> Prediction:
    return Prediction(
        observation=observation,
        next_state="s",
        is_error=refused,
        probabilities=probabilities,
        provenance=Provenance(tier=Tier.MODEL),
    )


def named(of: Query, prediction: Prediction) -> dict[str, float]:
    return dict(zip(FEATURES, features(of, prediction), strict=True))


def test_without_recordings_and_probabilities_all_features_are_0() -> None:
    assert features(query(DESK, "s", BOOK), answer("booked")) == (0.0,) * len(FEATURES)


def test_the_features_of_an_answer_come_from_its_recordings_and_probabilities() -> None:
    recorded = (
        transition("t", BOOK, "booked Ada"),
        transition("u", OTHER, "booked Bob"),
        transition("u", CANCEL, "cancelled"),
    )
    known = named(query(DESK, "s", BOOK, *recorded), answer("booked Ada", error=0.1, terminated=0.6, tokens=0.8))
    assert known == {
        "nearest": pytest.approx(1 / 1.5),
        "has_nearest": 1,
        "exact": 0,
        "same_call": pytest.approx(1),
        "has_same_call": 1,
        "same_tool": pytest.approx(1),
        "flags": 0.6,
        "has_flags": 1,
        "tokens": 0.8,
        "has_tokens": 1,
    }
    assert named(query(DESK, "t", BOOK, *recorded), answer("booked Ada"))["exact"] == 1
    other = named(query(DESK, "s", BOOK, *recorded), answer("booked Ada", refused=True))
    assert (other["same_call"], other["same_tool"]) == (0, 0), "refused, although the recordings answered"
    assert named(query(DESK, "s", BOOK, recorded[2]), answer("cancelled"))["has_nearest"] == 0, "another tool's"


ROWS = st.lists(
    st.tuples(
        st.lists(st.floats(0, 1), min_size=len(FEATURES), max_size=len(FEATURES)).map(tuple),
        st.booleans(),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(rows=ROWS)
def test_any_predictions_can_be_fitted_and_the_same_ones_give_the_same_calibration(
    rows: list[tuple[tuple[float, ...], bool]],
) -> None:
    fitted = calibrate(rows, model="m", env="e")
    assert fitted == calibrate(rows, model="m", env="e")
    assert fitted == Calibration.model_validate_json(fitted.model_dump_json())
    given_N = [fitted.confidence(numbers) for numbers, _ in rows]
    assert all(0 < probability < 1 for probability in given_N)
    assert fitted.n == len(rows)
    # The derivative with respect to the bias is 0: the expected number of right answers is the observed one, with
    # the two added answers in both.
    middle = [sum(numbers[i] for numbers, _ in rows) / len(rows) for i in range(len(FEATURES))]
    expected = sum(given_N) + 2 * fitted.confidence(middle)
    assert expected == pytest.approx(sum(is_right for _, is_right in rows) + 1, abs=1e-5)


@settings(max_examples=30, deadline=None)
@given(feature=st.integers(0, len(FEATURES) - 1), n=st.integers(12, 60))
def test_a_feature_that_tells_right_from_wrong_separates_them(feature: int, n: int) -> None:
    rows = [(tuple(float(i == feature and k % 2) for i in range(len(FEATURES))), bool(k % 2)) for k in range(n)]
    fitted = calibrate(rows, model="m", env="e")
    assert fitted.weights[feature] > 0
    assert fitted.confidence(rows[1][0]) > 0.6 > 0.4 > fitted.confidence(rows[0][0])
    assert fitted.auroc == 1
    assert fitted.brier < 0.25


@given(right=st.booleans(), n=st.integers(1, 30))
def test_answers_with_the_same_outcome_do_not_give_certainty(right: bool, n: int) -> None:
    fitted = calibrate([((0.0,) * len(FEATURES), right)] * n, model="m", env="e")
    laplace = (n * right + 1) / (n + 2)
    assert fitted.confidence((0.0,) * len(FEATURES)) == pytest.approx(laplace, abs=1e-6)
    assert fitted.auroc is None


def test_the_quality_is_measured_on_predictions_that_the_fit_has_not_seen() -> None:
    noise = [(tuple(math.sin(7 * k + i) ** 2 for i in range(len(FEATURES))), k % 3 == 0) for k in range(30)]
    fitted = calibrate(noise, model="m", env="e")
    seen = sum((fitted.confidence(numbers) - is_right) ** 2 for numbers, is_right in noise) / len(noise)
    assert fitted.brier > seen


def test_an_empty_list_and_rows_of_another_length_are_refused() -> None:
    with pytest.raises(InvalidInput, match="no held-out predictions of 'm' in 'e'"):
        calibrate([], model="m", env="e")
    with pytest.raises(InvalidInput, match=f"expected {len(FEATURES)} features a row"):
        calibrate([((1.0,), True)], model="m", env="e")


def test_a_calibration_is_read_as_it_was_written_and_another_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "calibration.json"
    fitted = calibrate([((0.5,) * len(FEATURES), True)], model="m", env="e")
    fitted.save(file)
    assert Calibration.load(file) == fitted
    assert [path.name for path in tmp_path.iterdir()] == ["calibration.json"]
    file.write_text('{"model": "m"}')
    with pytest.raises(InvalidInput, match=r"calibration.json: not a calibration: env: Field required"):
        Calibration.load(file)
    file.write_text(json.dumps({**fitted.model_dump(), "weights": [math.nan] * len(FEATURES)}))
    with pytest.raises(InvalidInput, match=r"calibration.json: not a calibration: weights.0: Input should be a finite"):
        Calibration.load(file)
    with pytest.raises(InvalidInput, match=r"nothing.json: cannot be read"):
        Calibration.load(tmp_path / "nothing.json")


def test_a_limit_needs_a_calibration_of_this_model_and_environment() -> None:
    fitted = calibrate([((0.5,) * len(FEATURES), True)], model="m", env="e")
    check_calibration(None, 0.0, model="m", env="e")
    check_calibration(fitted, 0.5, model="m", env="e")
    with pytest.raises(InvalidInput, match=r"`dreamgym fidelity e --model M --out DIR` writes DIR/calibration.json"):
        check_calibration(None, 0.5, model="m", env="e")
    for model, env in (("n", "e"), ("m", "f")):
        with pytest.raises(
            InvalidInput, match=f"the calibration belongs to model 'm' in 'e', but was given for '{model}' in '{env}'"
        ):
            check_calibration(fitted, 0.0, model=model, env=env)
    with pytest.raises(InvalidInput, match="must be a probability"):
        check_calibration(fitted, 1.5, model="m", env="e")
