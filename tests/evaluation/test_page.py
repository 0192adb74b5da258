"""The report as tables and as a page: every number is there, and recorded text is never executed."""

import html
import re
import sys
from html.parser import HTMLParser

import pytest
from cases import case, refusal, world

from dreamgym.dream.confidence import FEATURES
from dreamgym.evaluation.attack_texts import Attack
from dreamgym.evaluation.attacks import Attacked, Attacks
from dreamgym.evaluation.bound import bound
from dreamgym.evaluation.calibration import calibrated
from dreamgym.evaluation.calls import Compared
from dreamgym.evaluation.closed_loop import ClosedLoop, PlayAlong, PlayerResult, Replay, TaskOutcome
from dreamgym.evaluation.cost import Prices, cost
from dreamgym.evaluation.criteria import criteria
from dreamgym.evaluation.differences import paired
from dreamgym.evaluation.rates import wilson
from dreamgym.evaluation.report import SHOWN, FidelityReport, SettingReport, worst
from dreamgym.evaluation.report.page import page
from dreamgym.evaluation.report.plots import TIERS
from dreamgym.evaluation.report.tables import rate
from dreamgym.evaluation.report.text import Number, as_text, sections
from dreamgym.evaluation.setting import Setting
from dreamgym.evaluation.steps import step_fidelity
from dreamgym.types import StepResult, Tier, ToolCall

BEFORE, AFTER = world(a=1), world(a=2)
EVIL = "<script>alert('reward')</script>"


def predictions(right: int) -> list[Compared]:
    features = (0.5, *[0.0] * (len(FEATURES) - 1))
    calls = [
        case(BEFORE, AFTER, AFTER if i < right else BEFORE, trajectory=f"t{i}", features=features) for i in range(20)
    ]
    no = case(
        BEFORE, BEFORE, BEFORE, recorded=refusal(EVIL), got=StepResult(observation="fine"), trajectory="t3", step=2
    )
    return [*calls, no]


def measured(
    name: str, right: int, *, loop: ClosedLoop | None = None, attacked: Attacks | None = None
) -> SettingReport:
    calls = predictions(right)
    return SettingReport(
        setting=Setting(model=name),
        model=name,
        complete=True,
        steps=step_fidelity(calls, explicit=True),
        calibration=calibrated(calls, model=name, env="desk", seed=0),
        final_answers=None,
        criteria=criteria(calls, explicit=True),
        bound=bound(calls, gamma=0.95),
        cost=cost(calls, Prices(real_seconds=2.0, real_parallel=3), known_transitions=7),
        closed_loop=loop,
        attacks=attacked,
        worst=worst(calls, explicit=True),
    )


def report(*of: SettingReport) -> FidelityReport:
    both = paired(predictions(15), predictions(5), explicit=True) if len(of) > 1 else ()
    return FidelityReport(
        env="desk", seed=3, known_transitions=7, held_out=("t0",), contradicted=2, measured=of, differences=both
    )


def loop() -> ClosedLoop:
    replay = Replay(
        calls=10,
        valid=wilson(9, 10),
        same=wilson(8, 10),
        accepted_wrongly=wilson(1, 4),
        refused_wrongly=wilson(0, 6),
        dream_success=wilson(3, 5),
        success=wilson(2, 5),
        kept=2 / 3,
    )
    player = PlayerResult(
        player="shuffled",
        bad=True,
        dream=wilson(3, 5),
        real=wilson(2, 5),
        difference=None,
        dream_unanswered=0,
        real_unanswered=0,
        tiers={"recorded": 3, "model": 1},
        replay=replay,
        outcomes=(TaskOutcome(task="t", seed=0, dream=True, real=False, replayed=False),),
    )
    along = PlayAlong(
        players=("shuffled",),
        difference=wilson(1, 5),
        accepted_wrongly=wilson(1, 4),
        refused_wrongly=wilson(0, 6),
    )
    return ClosedLoop(
        seed=0,
        tasks=5,
        unknown_to_players=0,
        undecided=0,
        players=(player,),
        replay=replay,
        correlation=None,
        play_along=along,
    )


def attacked() -> Attacks:
    kind = Attacked(kind=next(iter(Attack)), episodes=9, rewarded=wilson(1, 9), taken_away=4, unanswered=0)
    return Attacks(seed=0, tasks=9, done_at_the_start=0, kinds=(kind,), rewarded=wilson(1, 9), earned=())


class Text(HTMLParser):
    """The words of a page, and its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.elements: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in {"src", "href"}]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read(text: str) -> Text:
    parsed = Text()
    parsed.feed(text)
    return parsed


def test_the_page_has_every_cell_of_the_tables_and_the_plots() -> None:
    one = report(measured("a", 15, loop=loop(), attacked=attacked()), measured("b", 5))
    found = read(page(one))
    words = " ".join(found.words)
    for line in as_text(one).splitlines():
        for cell in re.split(r" {2,}", line.strip()):
            plain = cell.removeprefix("== ")
            assert plain in words or plain[:1].upper() + plain[1:] in words, cell
    assert found.elements.count("svg") == 4


def test_the_number_of_judged_steps_belongs_to_a_row_of_its_table() -> None:
    one = measured("a", 15)
    assert one.criteria is not None
    judged = one.model_copy(update={"criteria": one.criteria.model_copy(update={"judge": "m", "judged": 3})})
    (section,) = [section for section in sections(judged) if section.rows and section.rows[0][0] == "criterion"]
    (number,) = [part for note in section.notes for part in note if isinstance(part, Number)]
    assert number.row in {row[0] for row in section.rows}
    assert number.column in section.rows[0]


def test_the_plot_of_the_tiers_knows_every_tier_of_a_dream() -> None:
    assert set(TIERS) == {tier.value for tier in Tier} - {Tier.REAL.value}


def test_the_page_needs_no_other_file_and_runs_nothing() -> None:
    found = read(page(report(measured("a", 15))))
    assert "script" not in found.elements
    assert [place for place in found.loaded if not place.startswith("#")] == []
    assert EVIL in " ".join(found.words)


def test_the_same_report_is_the_same_page() -> None:
    one = report(measured("a", 15))
    assert page(one) == page(FidelityReport.model_validate_json(one.model_dump_json()))


def test_without_matplotlib_the_page_says_how_to_get_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    one = measured("a", 15)
    found = page(report(one))
    assert html.escape("pip install -c constraints.txt '.[report]'") in found
    assert "<svg" not in found
    assert rate(one.steps.state["1"].exact) in found


def test_the_tables_show_the_measured_data_and_the_results() -> None:
    one = measured("a", 15)
    exact, text = one.steps.state["1"].exact, as_text(report(one))
    assert (exact.mean, exact.n) == (15 / 20, 20)
    assert text.startswith(
        "desk: 21 steps of 20 held-out trajectories predicted, each after what was recorded before it; "
        "7 transitions known; seed 3; 95 % intervals. 2 more held-out steps are left out: the same step was also "
        "recorded with another outcome."
    )
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert f"1 20 {rate(exact)}" in " ".join(line for line in lines if line.startswith("1 20"))
    assert f"invalid actions: played along 1 {rate(wilson(1, 1))}" in lines
    assert any(line.startswith("vacuous:") for line in lines)
    assert "reward: recall 0 -" in lines


def test_an_interrupted_measurement_says_so() -> None:
    one = report(measured("a", 15).model_copy(update={"complete": False}))
    assert not one.complete
    assert "Interrupted: the results are partial." in as_text(one)


def test_two_settings_stand_side_by_side() -> None:
    text = as_text(report(measured("a", 15), measured("b", 5)))
    line = next(line for line in text.splitlines() if line.split()[:2] == ["state", "exact"])
    assert [part for part in line.split() if part.endswith(("76.2", "28.6"))] == ["76.2", "28.6"]
    assert "-47.6 [" in line


def test_the_worst_predictions_are_shown_one_of_each_tool_before_a_second() -> None:
    tools = [ToolCall(name=name) for name in ("b", "a", "b", "c")]
    calls = [
        case(
            "s",
            "s",
            "s",
            action=tool,
            step=i + 1,
            recorded=StepResult(observation="x y"),
            got=StepResult(observation=w),
        )
        for i, (tool, w) in enumerate(zip(tools, ("x", "", "", "x y"), strict=True))
    ]
    found = worst(calls, explicit=False)
    assert [(one.action[0], one.step) for one in found] == [("a", 2), ("b", 3), ("b", 1)]
    many = [case("s", "s", None, step=i) for i in range(2 * SHOWN)]
    assert len(worst(many, explicit=False)) == SHOWN
    assert worst(many, explicit=False)[0].got == "no answer: no idea"


def test_changes_are_shown_beside_the_answers() -> None:
    (one,) = worst([case(BEFORE, AFTER, world(a=3))], explicit=True)
    assert (one.recorded_changes, one.got_changes) == (("/things/t/a = 2",), ("/things/t/a = 3",))
    (gone,) = worst([case(BEFORE, world(), BEFORE)], explicit=True)
    assert (gone.recorded_changes, gone.got_changes) == (("/things/t/a gone",), ())
