"""The settings of an experiment's arms: what makes two of them the same, and what an arm may not have."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from dreamgym.runs.experiment.plan import Arm


def test_a_setting_that_follows_from_others_differs_from_the_same_value_given() -> None:
    """`train` takes a lower learning rate for a large policy, and the number of updates from `real_steps`."""
    given = Arm(name="a", train={"learning_rate": 0.001, "against": "real", "real_steps": 9, "steps": 100})
    left_out = Arm(name="a", train={"against": "real", "real_steps": 9})
    assert given.settings["train"] != left_out.settings["train"]
    assert Arm(name="a", train={"steps": 100}).settings == Arm(name="a", train={}).settings


def test_an_arm_that_continues_another_names_no_policy() -> None:
    with pytest.raises(ValidationError, match="after is for an arm that trains and names no policy"):
        Arm(name="b", after="a", train={"policy": "pointer"})


def test_a_dream_is_not_fitted_for_an_arm_that_trains_in_reality() -> None:
    with pytest.raises(ValidationError, match="fit change what a dream knows"):
        Arm.model_validate({"name": "b", "fit": {"steps": 1}, "train": {"against": "real"}})
