"""`dreamgym fidelity` on a recorded folder."""

import asyncio
import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from desk import SPEC, DeskModel, call, recorded, recordings, task
from typer.testing import CliRunner, Result

from dreamgym.cli.app import app
from dreamgym.dream.confidence import Calibration
from dreamgym.dream.model import Prediction, Query
from dreamgym.environment import read_jsonl
from dreamgym.errors import EnvironmentUnavailable, InvalidInput, PredictionError, UnknownName
from dreamgym.evaluation.report import FidelityReport
from dreamgym.evaluation.report.behind import FILE, StepBehind, cell
from dreamgym.evaluation.report.text import sections
from dreamgym.runs.fidelity import check, fidelity
from dreamgym.types import Trajectory

UNREACHABLE = "http://127.0.0.1:9/v1#m"
"""A model at a port on which nothing listens."""
TRIGRAM = {"DREAMGYM_ENCODER": "trigram"}
ENV = """name = "desk"
deterministic = true
[limits]
max_steps = 20
[state.orders]
key = "order_id"
fields = { status = "string" }
"""


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """The desk's folder: each task played well, and four of them also with a read of a missing order."""
    home = tmp_path / "desk"
    home.mkdir()
    (home / "env.toml").write_text(ENV)
    (home / "tools.json").write_text(json.dumps(SPEC.tools_list[0]))
    episodes = [named(one, f"e{i}") for i, one in enumerate(asyncio.run(played()))]
    (home / "trajectories.jsonl").write_text("".join(f"{one.model_dump_json()}\n" for one in episodes))
    return str(home)


async def played() -> list[Trajectory]:
    lost = [await recorded(task(n), call("get", "O-99"), call("ship", f"O-{n}")) for n in range(1, 5)]
    return [*await recordings(), *lost]


def named(trajectory: Trajectory, name: str) -> Trajectory:
    return trajectory.model_copy(update={"id": name})


def ran(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["fidelity", *arguments], catch_exceptions=False, env=TRIGRAM)
    assert result.exit_code == code
    return result


def measured(*arguments: str) -> FidelityReport:
    with TemporaryDirectory() as folder:
        out = () if "--out" in arguments else ("--out", folder)
        ran(*arguments, *out)
        return FidelityReport.model_validate_json(Path([*arguments, *out][-1], "report.json").read_text())


def test_a_folder_is_measured_and_the_report_has_the_same_numbers_in_three_forms(folder: str, tmp_path: Path) -> None:
    out = tmp_path / "runs" / "desk"
    printed = ran(folder, "--model", "nearest", "--held-out", "0.5", "--out", str(out)).stdout
    report = FidelityReport.model_validate_json((out / "report.json").read_text())
    (one,) = report.measured
    assert (report.env, one.model, report.complete, len(report.held_out)) == ("desk", "nearest", True, 6)
    assert one.steps.steps + report.contradicted == sum(
        len(t["transitions"]) for t in recorded_in(folder) if t["id"] in report.held_out
    )
    exact = one.steps.state["all"].exact
    shown = f"{100 * exact.mean:.1f} % [{100 * exact.low:.1f}, {100 * exact.high:.1f}]"
    assert shown in printed
    assert shown in (out / "report.html").read_text()
    assert 0 < one.steps.tiers["recorded"].mean < 1
    assert Calibration.load(out / "calibration.json").model == "nearest"


def recorded_in(folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(folder) / "trajectories.jsonl").read_text().splitlines()]


def test_only_the_owner_may_read_the_files_of_a_measurement(folder: str, tmp_path: Path) -> None:
    ran(folder, "--model", "nearest", "--held-out", "0.5", "--closed-loop", "1", "--out", str(tmp_path / "long"))
    short = ["check", folder, "--against", "dream", "--model", "nearest", "--out", str(tmp_path / "short")]
    CliRunner().invoke(app, short, catch_exceptions=False, env=TRIGRAM)
    files = [*(tmp_path / "long").iterdir(), *(tmp_path / "short").iterdir()]
    assert {"played.jsonl", "report.html", "held_out.jsonl", "check.json"} <= {file.name for file in files}
    assert [file.name for file in files if file.suffix != ".json" and file.stat().st_mode & 0o077] == []
    assert (tmp_path / "short" / "check.json").stat().st_mode & 0o077 == 0


def test_the_same_seed_measures_the_same_and_another_holds_out_others(folder: str) -> None:
    one, same, other = (measured(folder, "--model", "nearest", "--seed", seed) for seed in "003")
    timeless = [
        report.model_dump(exclude={"measured": {"__all__": {"steps": {"seconds"}, "cost": {"seconds"}}}})
        for report in (one, same)
    ]
    assert timeless[0] == timeless[1]
    assert set(one.held_out) != set(other.held_out)


def test_kept_predictions_are_not_made_again(folder: str, tmp_path: Path) -> None:
    first = ran(folder, "--model", "nearest", "--limit", "4", "--out", str(tmp_path / "out"))
    assert "predicted before" not in first.stderr
    (kept,) = (tmp_path / "out").glob("steps-*.jsonl")
    lines = kept.read_text().splitlines()
    more = ran(folder, "--model", "nearest", "--out", str(tmp_path / "out"))
    assert f"{len(lines)} of " in more.stderr
    assert kept.read_text().splitlines()[: len(lines)] == lines
    assert measured(folder, "--model", "nearest", "--out", str(tmp_path / "out")).measured[0].steps.steps > 4
    (still,) = (tmp_path / "out").glob("steps-*.jsonl")
    assert len(still.read_text().splitlines()) > len(lines)


def test_a_learning_curve_over_known_transitions_begins_at_0(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DREAMGYM_ENCODER", "trigram")
    answered = []
    for known in (0, 5, 15):
        report = fidelity(folder, ["nearest"], known=known)
        assert report.known_transitions == known
        answered.append(report.measured[0].steps.answered.mean)
    assert answered[0] == 0.0
    assert answered[0] < answered[1] <= answered[2]
    with pytest.raises(InvalidInput, match="known=1000: only"):
        fidelity(folder, ["nearest"], known=1000)


def test_a_setting_with_k_0_knows_no_transitions_and_pays_for_none(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DREAMGYM_ENCODER", "trigram")
    checked = check(folder, "dream", "nearest -k 0")
    assert (checked.known, checked.known_transitions) == ((), 0)
    alone, both = fidelity(folder, ["nearest -k 0"]), fidelity(folder, ["nearest -k 0", "nearest"])
    assert (alone.known_transitions, alone.measured[0].cost.known_transitions) == (0, 0)
    of_each = [one.cost.known_transitions for one in both.measured]
    assert both.known_transitions == of_each[1] > of_each[0] == 0


def test_two_settings_are_compared_on_the_same_steps(folder: str) -> None:
    report = measured(folder, "--model", "nearest", "--model", "nearest without recorded,checks", "--held-out", "0.5")
    ours, theirs = report.measured
    assert str(theirs.setting) == "nearest without checks,recorded"
    assert ours.steps.steps == theirs.steps.steps == report.differences[0].difference.n
    assert "check" not in theirs.steps.tiers
    same = measured(folder, "--model", "nearest", "--model", "nearest")
    assert all(one.difference.mean == 0 for one in same.differences)


def test_parts_can_be_left_out_and_fewer_recordings_shown(folder: str) -> None:
    report = measured(folder, "--model", "nearest without retrieval,history -k 0")
    assert str(report.measured[0].setting) == "nearest without history,retrieval -k 0"
    assert report.measured[0].steps.answered.mean == 0.0


def test_a_single_trajectory_leaves_nothing_to_hold_out(folder: str) -> None:
    file = Path(folder) / "trajectories.jsonl"
    file.write_text(file.read_text().splitlines()[0] + "\n")
    with pytest.raises(InvalidInput, match="at least two trajectories with calls"):
        ran(folder, "--model", "nearest")


def test_an_episode_that_is_twice_in_the_file_counts_once(folder: str) -> None:
    once = measured(folder, "--model", "nearest")
    file = Path(folder) / "trajectories.jsonl"
    lines = file.read_text()
    file.write_text(lines * 2)
    twice = measured(folder, "--model", "nearest")
    assert (twice.held_out, twice.known_transitions) == (once.held_out, once.known_transitions)
    other = json.loads(lines.splitlines()[0])
    other["final_reward"] = 0.5
    file.write_text(f"{lines}{json.dumps(other)}\n")
    with pytest.raises(InvalidInput, match="'e0' is there twice with different content: keep one of the two"):
        ran(folder, "--model", "nearest")


def test_the_check_of_a_task_in_tasks_jsonl_decides_as_in_a_server(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DREAMGYM_ENCODER", "trigram")
    played = read_jsonl(Path(folder) / "trajectories.jsonl", Trajectory)
    tasks = {one.task.id: one.task for one in played}
    (Path(folder) / "tasks.jsonl").write_text("".join(f"{task.model_dump_json()}\n" for task in tasks.values()))
    unchecked = [
        one.model_copy(update={"task": one.task.model_copy(update={"metadata": {}}), "final_reward": 1.0})
        for one in played
    ]
    (Path(folder) / "trajectories.jsonl").write_text("".join(f"{one.model_dump_json()}\n" for one in unchecked))
    answers = fidelity(folder, ["nearest"]).measured[0].final_answers
    assert answers is not None
    assert (answers.decided.mean, answers.reward.precision.mean) == (1.0, 1.0)


def test_recordings_that_all_contradict_each_other_cannot_be_measured(folder: str) -> None:
    file = Path(folder) / "trajectories.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()[:2]]
    contrary = []
    for number, said in enumerate(("yes", "no")):
        one = json.loads(json.dumps(lines[0]))
        one["id"] = f"e{number}"
        one["transitions"] = one["transitions"][:1]
        one["transitions"][0]["result"]["observation"] = said
        contrary.append(json.dumps(one))
    file.write_text("\n".join(contrary) + "\n")
    with pytest.raises(InvalidInput, match=r"each of the 1 was also recorded with another outcome"):
        ran(folder, "--model", "nearest")


@pytest.mark.parametrize(
    ("arguments", "error", "reason"),
    [
        (["--model", "nearest", "--model", "nearest", "--model", "nearest"], InvalidInput, "two to compare, got 3"),
        (["--model", "nearest without memory"], UnknownName, "unknown part 'memory'"),
        (["--model", "nearest", "--judge", "nearest"], InvalidInput, "expected a language model"),
        (["--model", "nearest", "--trajectories", "nowhere.jsonl"], InvalidInput, "there is no such file"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    folder: str, arguments: list[str], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        ran(folder, *arguments)


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ({"limit": 0}, "limit: expected 1 or more, got 0"),
        ({"parallel": 0}, "parallel: expected 1 or more, got 0"),
        ({"known": -1}, "known: expected 0 or more, got -1"),
        ({"held_out": 2}, "held_out: expected a share from 0 to 1, got 2"),
        ({"models": ()}, "expected one --model, or two to compare, got 0"),
    ],
)
def test_numbers_that_would_measure_nothing_are_refused(folder: str, numbers: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        fidelity(folder, **({"models": ["nearest"]} | numbers))


def test_a_negative_seed_measures_too(folder: str) -> None:
    assert measured(folder, "--model", "nearest", "--seed", "-1").complete


def test_a_file_in_place_of_a_folder_is_refused(folder: str, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(InvalidInput, match=r"notes cannot be one: File exists; give another one with --out"):
        ran(folder, "--model", "nearest", "--out", str(tmp_path / "notes"))
    with pytest.raises(InvalidInput, match=r"notes cannot be one: File exists; give another one with --out"):
        check(folder, "dream", "nearest", out=tmp_path / "notes")


def test_a_model_that_cannot_be_reached_is_refused_before_any_step_is_predicted(folder: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(InvalidInput, match=r"no call was predicted: .* cannot be reached: is the server running"):
        ran(folder, "--model", "nearest", "--model", UNREACHABLE, "--out", str(out))
    with pytest.raises(InvalidInput, match=r"no call was predicted: .* cannot be reached: is the server running"):
        ran(folder, "--model", "nearest", "--judge", UNREACHABLE, "--out", str(out))
    assert not out.exists()


def test_a_model_that_stops_answering_ends_the_measurement_and_the_same_command_goes_on(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Endpoint(DeskModel):
        answers = 3

        async def predict(self, query: Query) -> Prediction:
            self.answers -= 1
            if self.answers == 1:
                raise PredictionError("no usable answer")
            if self.answers < 0:
                raise PredictionError("cannot be reached")
            return await super().predict(query)

        async def ping(self) -> None:
            if self.answers < 0:
                raise EnvironmentUnavailable("desk cannot be reached: is the server running?")

    endpoint = Endpoint()
    monkeypatch.setattr("dreamgym.runs.fidelity.load_model", lambda *_, **__: endpoint)
    out = str(tmp_path / "out")
    asked = (folder, "--model", "desk without recorded,checks,effects", "--held-out", "0.5", "--out", out)
    stopped = ran(*asked, code=130)
    assert "interrupted: desk cannot be reached: is the server running?" in stopped.stderr
    report = FidelityReport.model_validate_json((tmp_path / "out" / "report.json").read_text())
    (one,) = report.measured
    # the answer that the model itself could not give counts as wrong; that of the dead endpoint does not
    assert (one.complete, one.steps.steps, one.steps.answered.mean) == (False, 3, 2 / 3)
    endpoint.answers = 1_000
    assert "2 of " in ran(*asked).stderr
    (one,) = FidelityReport.model_validate_json((tmp_path / "out" / "report.json").read_text()).measured
    assert (one.complete, one.steps.answered.mean) == (True, 1.0)


def test_without_a_real_environment_a_closed_loop_runs_only_the_attacks_and_says_so(
    folder: str, tmp_path: Path
) -> None:
    result = ran(folder, "--model", "nearest", "--closed-loop", "1", "--out", str(tmp_path / "out"))
    assert "'desk' has no real environment" in result.stderr
    (one,) = FidelityReport.model_validate_json((tmp_path / "out" / "report.json").read_text()).measured
    assert one.closed_loop is None
    assert one.attacks is not None
    assert one.attacks.rewarded.mean == 0.0


def test_each_share_of_a_report_is_the_mean_of_the_steps_that_are_kept_behind_it(folder: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran(folder, "--model", "nearest", "--held-out", "0.5", "--out", str(out))
    (one,) = FidelityReport.model_validate_json((out / "report.json").read_text()).measured
    steps = read_jsonl(out / FILE, StepBehind)
    checked = 0
    for section in sections(one):
        head, *rows = section.rows or [()]
        for row in rows:
            for column, text in zip(head[1:], row[1:], strict=True):
                values = values_of(steps, cell(section.title, row[0], column))
                if re.fullmatch(r"[\d.]+ % \[[\d.]+, [\d.]+\]", text):
                    assert f"{100 * sum(values) / len(values):.1f}" == text.split(" %")[0], (section.title, row)
                    assert row[1] == str(len(values)), (section.title, row)
                    checked += 1
                if text == "-" and section.title in {"state", "answers", "tools"}:
                    assert values == [], (section.title, row)
    assert checked > 25
    assert {step.shown.trajectory for step in steps} <= {
        one.id for one in read_jsonl(out / "held_out.jsonl", Trajectory)
    }


def values_of(steps: list[StepBehind], name: str) -> list[float]:
    return [step.values[name] for step in steps if name in step.values]


def test_the_comparison_of_two_settings_has_the_steps_of_both_behind_it(folder: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran(folder, "--model", "nearest", "--model", "nearest -k 1", "--held-out", "0.5", "--out", str(out))
    report = FidelityReport.model_validate_json((out / "report.json").read_text())
    steps = read_jsonl(out / FILE, StepBehind)
    for measure in report.differences:
        name = cell("compared, on the same steps", measure.measure, "")
        for setting, rate in zip(report.measured, (measure.one, measure.other), strict=True):
            values = values_of([step for step in steps if step.setting == str(setting.setting)], name)
            assert len(values) == rate.n, measure.measure
            if values:
                assert sum(values) / len(values) == pytest.approx(rate.mean), measure.measure
