"""Which tasks are practised in a dream."""

from pathlib import Path

import pytest

from dreamgym import EnvironmentSpec, Source, Task, Trajectory
from dreamgym.errors import InvalidInput
from dreamgym.redaction import RedactionRules, redact_by, redacted_task
from dreamgym.runs.opening import tasks_of
from dreamgym.runs.train.run import practised
from dreamgym.types import JsonObject, StopReason

TOOL: JsonObject = {"name": "call", "inputSchema": {"type": "object"}}


def task(name: str, start: str | None = None, **metadata: object) -> Task:
    return Task.model_validate(
        {"id": name, "env": "crm", "instruction": name, "initial_state": start, "metadata": metadata}
    )


def recorded(one: Task) -> Trajectory:
    return Trajectory(id=one.id, task=one, transitions=(), source=Source.REAL, stop_reason=StopReason.FINISHED)


def names(*tasks: Task, recordings: tuple[Task, ...] = (), deterministic: bool = False) -> list[str]:
    spec = EnvironmentSpec(name="crm", tools_list=({"tools": [TOOL]},), tasks=tasks, deterministic=deterministic)
    return [one.id for one in practised(spec, [recorded(one) for one in recordings])]


def test_tasks_of_the_folder_that_nobody_recorded_are_practised_if_they_have_a_check() -> None:
    checked, unchecked = task("checked", answers=["[1]"]), task("unchecked")
    empty = task("empty", success=None, answers=None), task("no answers", answers=[])
    assert names(checked, unchecked, *empty, recordings=(task("played"),)) == ["played", "checked"]


def test_in_a_deterministic_environment_an_unrecorded_task_needs_a_start() -> None:
    told, silent = task("told", start='{"a": 1}', success={}), task("silent", success={})
    assert names(told, silent, deterministic=True) == ["told"]
    assert names(told, silent) == ["told", "silent"]


def test_tasks_of_other_splits_are_not_practised_recorded_or_not() -> None:
    others = [task(split, split=split, answers=["[1]"]) for split in ("dev", "test", "browsing")]
    train = task("train", split="train", answers=["[1]"])
    assert names(train, *others, recordings=(train, *others)) == ["train"]


def test_a_recording_moves_no_task_of_the_test_to_practice_and_replaces_no_check() -> None:
    test, other = task("test", split="test", answers=["[1]"]), task("other", answers=["[2]"])
    copies = task("test", answers=["[1]"]), task("other", success={"type": "object"})
    spec = EnvironmentSpec(name="crm", tools_list=({"tools": [TOOL]},), tasks=(test, other))
    assert practised(spec, [recorded(one) for one in copies]) == [other]


def test_a_misspelt_split_is_told_where_tasks_are_practised_and_where_they_are_tested(
    capsys: pytest.CaptureFixture[str],
) -> None:
    right, wrong = task("right", split="test"), task("wrong", split="tset", answers=["[1]"])
    assert names(task("train"), wrong, recordings=(task("train"), right)) == ["train"]
    assert capsys.readouterr().err == (
        "tasks that belong to no split: 1, for example 'wrong': expected its metadata.split "
        "to be train, dev, test or absent, got 'tset'; they are neither trained nor tested on\n"
    )
    tested = EnvironmentSpec(name="crm", tools_list=({"tools": [TOOL]},), tasks=(right, task("mine", split="Test")))
    assert [one.id for one in tasks_of(tested, "test", None)] == ["right"]
    assert (
        "for example 'mine': expected its metadata.split to be train, dev, test or absent, got 'Test'"
        in capsys.readouterr().err
    )
    assert [one.id for one in tasks_of(tested, "Test", None)] == ["mine"]
    assert capsys.readouterr().err == "", "a split that was asked for is none by mistake"
    with pytest.raises(InvalidInput, match=r"no tasks of split 'dev': give another --split, or write tasks into"):
        tasks_of(tested, "dev", None)


def test_tasks_that_are_all_of_another_split_are_refused_with_what_to_change() -> None:
    with pytest.raises(
        InvalidInput, match=r"no task of 'crm' to practise: .* such as 'held-out': change metadata\.split"
    ):
        names(recordings=(task("held-out", split="test"),))


def test_tasks_of_the_folder_are_practised_redacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DREAMGYM_HOME", str(tmp_path))
    told = task("told", answers=["sent to ann.lee@corp.net"]).model_copy(update={"instruction": "ask ann.lee@corp.net"})
    tools: tuple[JsonObject, ...] = ({"tools": [TOOL]},)
    spec = EnvironmentSpec(name="crm", tools_list=tools, tasks=(told,), redact=RedactionRules())
    (found,) = practised(spec, [])
    assert found == redacted_task(told, redact_by(spec.redact))
    assert "ann.lee" not in found.model_dump_json()
