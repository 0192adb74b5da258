"""Comparison of two settings on the same steps."""

import pytest
from cases import case, world

from dreamgym.dream.model import Part
from dreamgym.errors import UnknownName
from dreamgym.evaluation.calls import Compared
from dreamgym.evaluation.differences import Paired, paired
from dreamgym.evaluation.setting import Setting, setting

BEFORE, AFTER = world(a=1), world(a=2)


def predictions(right: int, n: int = 40) -> list[Compared]:
    return [
        case(BEFORE, AFTER, AFTER if i < right else BEFORE, trajectory=f"t{i // 2}", step=i % 2 + 1) for i in range(n)
    ]


def named(pairs: tuple[Paired, ...]) -> dict[str, Paired]:
    return {one.measure: one for one in pairs}


def test_the_difference_is_the_second_setting_minus_the_first_with_a_paired_interval() -> None:
    found = named(paired(predictions(10), predictions(30), explicit=True))["state exact"]
    assert (found.one.mean, found.other.mean, found.difference.mean) == (0.25, 0.75, 0.5)
    assert 0.2 < found.difference.low < 0.5 < found.difference.high < 0.8
    back = named(paired(predictions(30), predictions(10), explicit=True))["state exact"]
    assert back.difference.mean == -0.5


def test_a_setting_compared_with_itself_has_no_difference_and_still_an_interval() -> None:
    for one in paired(predictions(10), predictions(10), explicit=True):
        assert one.difference.mean == 0.0
        assert one.difference.low < 0.0 < one.difference.high


def test_only_steps_that_both_have_predicted_are_compared() -> None:
    found = named(paired(predictions(40), predictions(40)[:6], explicit=True))
    assert found["state exact"].difference.n == 6
    assert found["state exact, fields changed: 1"].difference.n == 6
    assert found["state exact, fields changed: 5+"].difference.n == 0


def test_text_states_have_no_score_of_fields() -> None:
    names = named(paired([case("a", "b", "b")], [case("a", "b", "c")], explicit=False))
    assert "F1 of changes" not in names
    assert names["state exact, changed"].difference.mean == -1.0


def test_a_setting_is_one_string() -> None:
    assert setting("nearest") == Setting(model="nearest")
    one = setting("http://host/v1#a without state,history,checks -k 3")
    assert one.without == (Part.HISTORY, Part.STATE, Part.CHECKS)
    assert str(one) == "http://host/v1#a without history,state,checks -k 3"
    assert setting("local without history, state").without == (Part.HISTORY, Part.STATE)
    assert setting("local -k 0") == Setting(model="local", k=0)
    assert setting(str(one)) == one
    with pytest.raises(UnknownName, match="unknown part 'memory': expected one of cache, checks, effects"):
        setting("local without memory")
