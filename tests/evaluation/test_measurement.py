"""Measurement of one setting: the held-out trajectories, and what is kept after an interruption."""

import asyncio
import json
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
from desk import SPEC, Desk, DeskModel, call, gullible, recorded, recordings, task

import dreamgym
from dreamgym.dream.model import ExperienceModel, Prediction, Query
from dreamgym.dream.task_check import accomplished
from dreamgym.embedding import TrigramEncoder
from dreamgym.errors import EnvironmentUnavailable, InvalidInput
from dreamgym.evaluation.criteria import CRITERIA, JUDGED
from dreamgym.evaluation.final_answers import EpisodeVerdict
from dreamgym.evaluation.kept import KeptRows, edition
from dreamgym.evaluation.material import Material, material
from dreamgym.evaluation.measurement import Measurement, Wanted
from dreamgym.evaluation.predictions import dream_of, predictions
from dreamgym.evaluation.report import FidelityReport
from dreamgym.evaluation.report.behind import cell
from dreamgym.evaluation.report.page import page
from dreamgym.evaluation.report.text import as_text, cost_notes, plain, sections
from dreamgym.evaluation.setting import Setting, setting
from dreamgym.llm import ScriptedLLM
from dreamgym.types import StepResult, ToolCall

pytestmark = pytest.mark.anyio

WANTED = Wanted()
TWO = json.dumps({"reasoning": "", "rubric_scores": dict.fromkeys(CRITERIA, 2)})


async def given() -> Material:
    return material(SPEC, await recordings(), held_out=0.5)


def measuring(
    of: Material,
    *,
    model: ExperienceModel | None = None,
    wanted: Wanted = WANTED,
    out: Path | None = None,
    **more: object,
) -> Measurement:
    said: list[str] = []
    heard = {"say": said.append, "progress": said.append, **more}
    return Measurement(
        of,
        Setting(model="desk"),
        model or DeskModel(),
        TrigramEncoder(),
        wanted,
        out=out,
        **heard,  # type: ignore[arg-type]
    )


async def test_a_fitted_model_is_measured_on_trajectories_that_it_was_not_trained_on() -> None:
    trajectories = await recordings()
    learned = {one.id for one in trajectories} - {trajectories[2].id, trajectories[5].id}
    found = material(SPEC, trajectories, held_out=0.9, learned=frozenset({*learned, "gone"}))
    assert {one.id for one in found.held_out} == {trajectories[2].id, trajectories[5].id}
    assert len(found.known) == 6
    with pytest.raises(InvalidInput, match="was trained on all recordings"):
        material(SPEC, trajectories, held_out=0.9, learned=frozenset(one.id for one in trajectories))


def stop_after_five(text: str) -> None:
    if text.endswith("5 of 12 steps"):
        task = asyncio.current_task()
        assert task is not None
        task.cancel()


async def test_an_interruption_keeps_partial_results_and_the_next_start_continues(tmp_path: Path) -> None:
    held = await given()

    stopped = measuring(held, out=tmp_path, progress=stop_after_five)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(stopped.run())
    partly = stopped.report()
    assert (partly.complete, partly.steps.steps) == (False, 5)

    told: list[str] = []
    second = measuring(held, out=tmp_path, say=told.append)
    await second.run()
    assert told == ["desk: 5 of 12 steps were predicted before"]
    assert (second.report().complete, second.report().steps.steps) == (True, 12)


async def test_the_cost_names_the_number_of_steps_that_all_workers_of_a_cluster_predict_at_a_time() -> None:
    held = await given()
    make_dream = await dream_of(SPEC, DeskModel(), held.known, TrigramEncoder(), recorded=held.recorded)
    measured = measuring(held)
    await measured.run(partial(predictions, make_dream, parallel=6), places=6)
    assert measured.report().cost.at_a_time == 6


async def test_a_time_says_if_kept_steps_were_predicted_with_another_number_at_a_time(tmp_path: Path) -> None:
    held = await given()

    stopped = measuring(held, out=tmp_path, progress=stop_after_five)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(stopped.run())
    for parallel in (8, 1):  # the second time, nothing is predicted
        measured = measuring(held, wanted=WANTED._replace(parallel=parallel), out=tmp_path)
        await measured.run()
        assert (stopped.report().cost.at_a_time, measured.report().cost.at_a_time) == (1, None)


async def test_of_many_recorded_episodes_some_are_drawn_for_a_verdict_wherever_the_failures_are() -> None:
    played = {done: await recorded(task(1), call("ship" if done else "get", "O-1")) for done in (True, False)}
    many = [
        played[number < 200].model_copy(
            update={"id": f"{number}", "answer": "shipped", "final_reward": float(number < 200)}
        )
        for number in range(300)
    ]
    measured = measuring(material(SPEC, many, held_out=0.9, all_steps=True))
    await measured.run()
    found = measured.report().final_answers
    assert found is not None
    assert (found.episodes, found.known) == (JUDGED, 270)
    assert 15 < found.reward.recall.n < 85, "successes and failures are among them"
    assert any("100 of 270, drawn at random." in str(one.notes) for one in sections(measured.report()))


@pytest.mark.parametrize("changed", ["weights", "code"])
async def test_predictions_of_other_weights_or_of_other_code_are_not_reused(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = await given()
    model = DeskModel()
    await measuring(held, model=model, out=tmp_path).run()
    if changed == "weights":
        model.fingerprint = "trained once more"  # type: ignore[attr-defined]
    else:
        monkeypatch.setattr("dreamgym.evaluation.measurement.edition", lambda: "edited")
    told: list[str] = []
    await measuring(held, model=model, out=tmp_path, say=told.append).run()
    assert told == []
    assert len(list(tmp_path.glob("steps-*.jsonl"))) == 2


def install(folder: Path, group: str) -> Path:
    """Install a package whose entry point `another` is a tier without answers. Returns the file of its code."""
    about = folder / "another_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: another-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{group}]\nanother = another_package:Tier\n")
    (folder / "another_package").mkdir()
    (folder / "another_package" / "__init__.py").write_text("from another_package.code import Tier\n")
    code = folder / "another_package" / "code.py"
    code.write_text(
        "class Tier:\n    infers = False\n    def __init__(self, spec): pass\n    async def answer(self, query): pass\n"
    )
    return code


@pytest.mark.parametrize("group", ["dreamgym.tiers", "dreamgym.environments"])
@pytest.mark.parametrize("change", ["none", "edited", "gone"])
async def test_predictions_are_not_reused_after_a_change_of_another_package_that_is_part_of_the_dream(
    group: str, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = install(tmp_path, group)
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("another_package", "another_package.code"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    held = await given()
    held = held._replace(spec=held.spec.model_copy(update={"adapter": "another"}))
    await measuring(held, out=tmp_path / "out").run()
    if change == "edited":
        code.write_text(code.read_text() + "\n")
    elif change == "gone":
        sys.path.remove(str(tmp_path))
    told: list[str] = []
    await measuring(held, out=tmp_path / "out", say=told.append).run()
    assert told == (["desk: 12 of 12 steps were predicted before"] if change == "none" else [])


def test_any_change_of_a_prompt_or_of_the_method_changes_the_edition(tmp_path: Path) -> None:
    editions = {edition()}
    for changed in (
        "dream/rules.txt",
        "dream/nearest.py",
        "synthesis/search/effects.py",
        "replay/ranking.py",
        "tools.py",
    ):
        copy = tmp_path / changed.replace("/", "-") / "dreamgym"
        shutil.copytree(Path(dreamgym.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
        with (copy / changed).open("a") as file:
            file.write("\n")
        editions.add(edition(copy))
    assert len(editions) == 6


async def test_a_judge_is_not_asked_again_about_steps_that_it_has_scored(tmp_path: Path) -> None:
    held = await given()
    judge = ScriptedLLM([TWO] * 12)
    for _ in range(2):
        one = measuring(held, wanted=WANTED._replace(judge=judge), out=tmp_path)
        await one.run()
        assert (one.report().criteria.judge, one.report().criteria.judged) == ("scripted", 12)
    assert len(judge.asked) == 12


async def test_a_model_that_cannot_be_reached_is_not_needed_if_every_step_was_predicted_before(tmp_path: Path) -> None:
    class Unreachable(DeskModel):
        async def check_reachable(self) -> None:
            raise EnvironmentUnavailable("is the server running?")

    held = await given()
    with pytest.raises(InvalidInput, match="no call was predicted: is the server running"):
        await measuring(held, model=Unreachable(), out=tmp_path).require_reachable()
    await measuring(held, out=tmp_path).run()
    again = measuring(held, model=Unreachable(), out=tmp_path)
    await again.require_reachable()
    await again.run()
    assert again.report().complete


@pytest.mark.parametrize("relabelled", ["held_out", "known"])
async def test_after_a_correction_of_the_recordings_nothing_kept_is_reused(relabelled: str, tmp_path: Path) -> None:
    held = await given()
    await measuring(held, wanted=WANTED._replace(judge=ScriptedLLM([TWO] * 12)), out=tmp_path).run()
    corrected = {one.id: one.model_copy(update={"final_reward": 0.0}) for one in getattr(held, relabelled)}
    again = held._replace(
        known=tuple(corrected.get(one.id, one) for one in held.known),
        held_out=tuple(corrected.get(one.id, one) for one in held.held_out),
        steps=tuple(one._replace(trajectory=corrected.get(one.trajectory.id, one.trajectory)) for one in held.steps),
    )
    told: list[str] = []
    judge = ScriptedLLM([TWO] * 12)
    second = measuring(again, wanted=WANTED._replace(judge=judge), out=tmp_path, say=told.append)
    await second.run()
    fresh = measuring(again)
    await fresh.run()
    assert (told, len(judge.asked)) == ([], 12)
    assert second.report().final_answers == fresh.report().final_answers


async def test_a_kept_file_that_was_cut_off_within_a_letter_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    kept = KeptRows(EpisodeVerdict, tmp_path, "verdicts", [])
    for name in ("jörg", "jörg"):
        kept.add(EpisodeVerdict(trajectory=name, recorded=True))
    whole = kept.path.read_bytes()
    kept.path.write_bytes(whole[: whole.rindex("ö".encode()) + 1])
    assert [row.trajectory for row in kept.read()] == ["jörg"]
    assert kept.path.read_bytes() == whole[: len(whole) // 2]


async def test_scores_that_other_code_asked_for_are_not_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = await given()
    judge = ScriptedLLM([TWO] * 24)
    await measuring(held, wanted=WANTED._replace(judge=judge), out=tmp_path).run()
    monkeypatch.setattr("dreamgym.evaluation.measurement.edition", lambda: "edited")
    await measuring(held, wanted=WANTED._replace(judge=judge), out=tmp_path).run()
    assert len(judge.asked) == 24


async def test_a_closed_loop_times_the_real_environment() -> None:
    one = measuring(await given(), wanted=WANTED._replace(closed_loop=2, make_real=Desk))
    await one.run()
    found = one.report()
    assert found.closed_loop is not None
    assert found.closed_loop.tasks == 2
    assert found.closed_loop.replay.same.mean == 1.0
    assert found.consistency is not None
    assert found.consistency.agree.mean == 1.0
    assert found.attacks is not None
    assert found.attacks.rewarded.mean == 0.0
    assert found.cost.prices.real_seconds is not None
    assert plain(cost_notes(found.cost)[0]).startswith("Time: a step takes")


async def test_a_dream_that_rewards_what_only_the_check_calls_accomplished_gives_no_false_reward() -> None:
    def ends(query: Query, right: Prediction) -> Prediction:
        won = accomplished(query.task, right.next_state, [right.observation]) is True
        return right.model_copy(update={"success": won, "terminated": won})

    alone = setting("desk without effects,recorded")
    one = Measurement(await given(), alone, DeskModel(ends), TrigramEncoder())
    await one.run()
    found = one.report()
    rewarded = [
        step.values for step in one.behind() if step.values.get(cell("answers", "end: precision", "share")) == 0
    ]
    assert rewarded, "the dream rewards steps, and the recording has no rewards"
    assert (found.steps.false_rewards.mean, found.steps.reward.precision.n) == (0, 0)
    assert found.bound.eps_reward.mean == 0
    assert all(cell("answers", "unrewarded steps: rewarded", "share") not in values for values in rewarded)


async def test_a_real_step_is_timed_while_nothing_else_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    class Second(Desk):
        async def step(self, action: ToolCall) -> StepResult:
            await asyncio.sleep(0)  # others go on
            clock[0] += 1
            return await super().step(action)

    def slow(query: Query, right: Prediction) -> Prediction:
        clock[0] += 100
        return right

    one = measuring(await given(), model=DeskModel(slow), wanted=WANTED._replace(closed_loop=2, make_real=Second))
    await one.run()
    assert one.report().cost.prices.real_seconds == 1


async def test_a_dream_is_attacked_even_without_the_real_environment() -> None:
    one = measuring(await given(), model=DeskModel(gullible), wanted=WANTED._replace(closed_loop=2))
    await one.run()
    found = one.report()
    assert (found.closed_loop, found.consistency, found.cost.prices.real_seconds) == (None, None, None)
    assert found.attacks is not None
    assert found.attacks.tasks == 2


async def test_without_answers_of_a_model_no_calibration_is_written(tmp_path: Path) -> None:
    one = measuring(await given())
    assert not one.save_calibration(tmp_path / "calibration.json")
    await one.run()
    assert one.save_calibration(tmp_path / "calibration.json")
    assert (tmp_path / "calibration.json").is_file()


async def test_a_measurement_that_has_not_begun_gives_an_empty_report() -> None:
    found = measuring(await given()).report()
    assert (found.complete, found.steps.steps, found.calibration, found.worst) == (False, 0, None, ())
    assert (found.steps.answered.low, found.steps.answered.high) == (0.0, 1.0)
    report = FidelityReport(
        env="desk", seed=0, known_transitions=0, held_out=(), contradicted=0, measured=(found,), differences=()
    )
    assert "Interrupted: the results are partial." in as_text(report)
    assert "<svg" in page(report)
