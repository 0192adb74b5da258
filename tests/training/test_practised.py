"""Which tasks are practised in a dream."""

import pytest

from dreamgym import EnvironmentSpec, Source, Task, Trajectory
from dreamgym.errors import InvalidInput
from dreamgym.runs.train.run import practised
from dreamgym.types import JsonObject, StopReason


def task(name: str, start: str | None = None, **metadata: object) -> Task:
    return Task.model_validate(
        {"id": name, "env": "crm", "instruction": name, "initial_state": start, "metadata": metadata}
    )


def recorded(one: Task) -> Trajectory:
    return Trajectory(id=one.id, task=one, transitions=(), source=Source.REAL, stop_reason=StopReason.FINISHED)


def names(*tasks: Task, recordings: tuple[Task, ...] = (), deterministic: bool = False) -> list[str]:
    tool: JsonObject = {"name": "call", "inputSchema": {"type": "object"}}
    spec = EnvironmentSpec(name="crm", tools_list=({"tools": [tool]},), tasks=tasks, deterministic=deterministic)
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


def test_tasks_that_are_all_of_another_split_are_refused_with_what_to_change() -> None:
    with pytest.raises(
        InvalidInput, match=r"no task of 'crm' to practise: .* such as 'held-out': change metadata\.split"
    ):
        names(recordings=(task("held-out", split="test"),))
