"""Tasks by their value, as JSON for the page: from the store, or from the newest checkpoint of a training run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dreamgym.curriculum.evidence import Evidence
from dreamgym.errors import InvalidInput, UnknownName
from dreamgym.replay.buffer import TaskValue
from dreamgym.types import JsonObject, Origin, Task
from dreamgym_server.view.folders import METRICS, RunFolder, is_own
from dreamgym_server.view.shown import cut

CURRICULUM = "curriculum.json"


def shown_tasks(tasks: Sequence[Task], values: Mapping[str, TaskValue]) -> list[JsonObject]:
    """Tasks, those of most value first and those never attempted last, with parents and children."""
    by_id = {task.id: task for task in tasks}
    children: dict[str, list[str]] = {}
    for task in tasks:
        if task.parent_id is not None:
            children.setdefault(task.parent_id, []).append(task.id)
    ordered = sorted(tasks, key=lambda task: -values[task.id].variance if task.id in values else 1.0)
    return [_shown(task, by_id.get(task.parent_id or ""), children.get(task.id, []), values) for task in ordered]


def _shown(task: Task, parent: Task | None, children: Iterable[str], values: Mapping[str, TaskValue]) -> JsonObject:
    value = values.get(task.id)
    return {
        "id": task.id,
        "instruction": cut(task.instruction, 300),
        "origin": task.origin.value,
        "parent": task.parent_id,
        "varied": {} if parent is None else {**_differences(parent, task)},
        "children": [*children],
        "value": None if value is None else value.model_dump(mode="json", exclude={"task_id"}),
    }


def _differences(parent: Task, task: Task) -> JsonObject:
    """The varied texts: those in which the task differs from its parent."""
    texts = {
        "instruction": (parent.instruction, task.instruction),
        "start": (parent.initial_state or "", task.initial_state or ""),
    }
    return {
        name: {"before": cut(before, 600), "after": cut(after, 600)}
        for name, (before, after) in texts.items()
        if before != after
    }


def curricula(folder: RunFolder) -> list[str]:
    """The training runs of a folder that have a checkpoint with a curriculum."""
    return [name for name, path in _runs(folder).items() if _newest(path) is not None]


def curriculum_of(folder: RunFolder, name: str) -> tuple[list[Task], dict[str, TaskValue]]:
    """The tasks of a training run and their values, from its newest checkpoint.

    Raises:
        UnknownName: there is no such run, or it has no checkpoint.
        InvalidInput: its checkpoint cannot be read.
    """
    path = _runs(folder).get(name)
    newest = None if path is None else _newest(path)
    if newest is None:
        raise UnknownName("training run with a checkpoint", name, curricula(folder))
    try:
        state = json.loads(newest.read_bytes())
        generated = [Task.model_validate(one) for one in state["generated"]]
        evidence = Evidence.of(state["groups"])
        attempted = list(state["groups"])
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError, InvalidInput) as error:
        raise InvalidInput(
            f"the curriculum of {name!r} cannot be read, perhaps it is being written: {error}"
        ) from error
    known = folder.tasks() | {task.id: task for task in generated}
    env = next((task.env for task in known.values()), "")
    missing = [Task(id=one, env=env, instruction="", origin=Origin.SEED) for one in attempted if one not in known]
    wanted = {*attempted, *(task.id for task in generated), *(task.parent_id for task in generated)}
    tasks = [task for task in (*known.values(), *missing) if task.id in wanted]
    return tasks, {one: value for one in attempted if (value := _value(one, evidence)) is not None}


def _value(task: str, evidence: Evidence) -> TaskValue | None:
    groups = evidence.groups(task)
    if not groups:
        return None
    last = groups[-1]
    attempts, total = sum(one.attempts for one in groups), sum(one.total for one in groups)
    if not (last.attempts and attempts):
        return None
    mean = last.total / last.attempts
    return TaskValue(
        task_id=task,
        policy_version=last.iteration,
        attempts=last.attempts,
        mean=mean,
        variance=max(0.0, last.squares / last.attempts - mean * mean),
        total_attempts=attempts,
        total_mean=total / attempts,
    )


def _runs(folder: RunFolder) -> dict[str, Path]:
    return {folder.place_of(path): path.parent for path in folder.files(METRICS)}


def _newest(run: Path) -> Path | None:
    """The curriculum of the newest checkpoint of a run."""
    numbered = [
        (int(number), path)
        for path in run.glob(f"checkpoints/checkpoint-*/{CURRICULUM}")
        if (number := path.parent.name.rpartition("-")[2]).isdecimal()
        and is_own(path)
        and not any(folder.is_symlink() for folder in path.parents[:2])
    ]
    return max(numbered)[1] if numbered else None
