"""`dreamgym seed`: load recorded trajectories, and the tasks they came with, into the buffer."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.options import Dsn, EnvName
from dreamgym.environment import EnvironmentSpec, load_spec, read_jsonl
from dreamgym.errors import InvalidInput, UnknownName
from dreamgym.recordings.contradictions import contradictions, summary
from dreamgym.recordings.folder import FolderReport, build_folder
from dreamgym.recordings.folder.env_file import name_in
from dreamgym.recordings.folder.episodes import unlisted
from dreamgym.recordings.folder.runs import Say
from dreamgym.recordings.folder.state import fitting
from dreamgym.recordings.log import Note
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.keys import check_storable
from dreamgym.runs.console import say
from dreamgym.runs.opening import open_store
from dreamgym.state import parsed
from dreamgym.types import Source, Task, Trajectory


def seed(
    env: EnvName,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="An environment folder, or JSONL with one trajectory per line."),
    ],
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Let this model word a task for recorded episodes that have none."),
    ] = None,
    derive_state: Annotated[
        bool,
        typer.Option(
            "--derive-state",
            help="Where the server tells no states, put a schema of what its answers show into env.toml, to look at.",
        ),
    ] = False,
    dsn: Dsn = None,
) -> None:
    """Load recorded trajectories. A folder that was recorded into is brought up to date first; twice changes nothing.

    Example: dreamgym seed crm crm/
    """
    folders = [path for path in paths if path.is_dir()]
    with_recordings = [folder for folder in folders if any((folder / "recordings").glob("*.jsonl"))]
    if derive_state and not with_recordings:
        raise InvalidInput("--derive-state needs an environment folder with recordings: name one after ENV")
    recorded = {folder: _built(folder, derives_facts=derive_state) for folder in with_recordings}
    spec = _spec(env, folders)
    if model is not None:
        for folder in recorded:
            recorded[folder] = asyncio.run(_with_proposals(folder, model))
    for folder, report in recorded.items():
        _tell(folder, report)
    read = {path: _checked(spec, path / "trajectories.jsonl" if path.is_dir() else path) for path in paths}
    tasks = [task for folder in folders for task in _tasks(folder, spec.name)]
    asyncio.run(_store(read, tasks, dsn))
    if spec.deterministic:
        for sentence in summary(contradictions(spec, chain.from_iterable(read.values()))):
            say(sentence)


def _built(folder: Path, *, derives_facts: bool) -> FolderReport:
    try:
        return build_folder(folder, derives_facts=derives_facts)
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be read: {error.strerror}") from error


def _spec(env: str, folders: Iterable[Path]) -> EnvironmentSpec:
    """The environment of this name; where none is registered, the given folder of that name."""
    try:
        return load_spec(env)
    except UnknownName:
        for folder in folders:
            if name_in(folder) == env:
                return EnvironmentSpec.load(folder)
        raise


async def _with_proposals(folder: Path, model: str) -> FolderReport:
    """Note down a proposed task for each run without one, as `dreamgym label` would, and build the folder again."""
    from dreamgym_server.recorder.recording import add_note

    from dreamgym.curriculum.proposal import propose_tasks
    from dreamgym.dream.load import load_llm

    llm = load_llm(model)
    if llm is None:
        raise InvalidInput(f"--model {model} cannot word a task: expected a language model")
    spec = EnvironmentSpec.load(folder)
    try:
        proposals = await propose_tasks(llm, spec, read_jsonl(folder / "trajectories.jsonl", Trajectory))
    finally:
        await llm.close()
    for trajectory_id, task in proposals.tasks.items():
        run = trajectory_id.removeprefix(f"{spec.name}-")
        note = Note(run=run, task=task.instruction, task_id=task.id, proposed=True, at=time.time())
        add_note(folder, note.model_dump(mode="json", exclude_none=True), dict(os.environ))
        say(f"{run}: proposed task: {task.instruction}")
    for trajectory_id, reason in proposals.failures.items():
        say(f"{trajectory_id.removeprefix(f'{spec.name}-')}: no task proposed: {reason}")
    return build_folder(folder)


def _tell(folder: Path, report: FolderReport) -> None:
    for message in report.messages:
        say(f"{folder}: {message}")
    if report.without_task:
        say(
            f"{folder}: {report.without_task} of {report.trajectories} episodes have no task: name it with "
            "`dreamgym label`, or let one be proposed with --model MODEL"
        )


def _checked(spec: EnvironmentSpec, file: Path) -> list[Trajectory]:
    """The trajectories of a file that this environment can use."""
    names = {str(tool["name"]) for tool in spec.tools}
    usable = []
    for number, trajectory in enumerate(read_jsonl(file, Trajectory), start=1):
        if trajectory.task.env != spec.name:
            raise InvalidInput(
                f"{file}, trajectory {number}: it is of environment {trajectory.task.env!r}, not {spec.name!r}"
            )
        missing = unlisted(names, trajectory)
        if missing:
            say(f"{file}: {trajectory.id!r} is left out: {spec.name!r} has no tool {', '.join(map(repr, missing))}")
        elif _is_storable(trajectory, f"{file}: left out: trajectory {trajectory.id!r}"):
            usable += _on_schema(spec, trajectory, lambda message: say(f"{file}: {message}"))
    return usable


def _on_schema(spec: EnvironmentSpec, trajectory: Trajectory, tell: Say) -> list[Trajectory]:
    """The trajectory without calls whose explicit state is off the schema; one of words stays as it is."""
    is_explicit = any(parsed(step.next_state) is not None for step in trajectory.transitions)
    if spec.state is None or not is_explicit:
        return [trajectory]
    fit = fitting(trajectory, spec.state, trajectory.id, tell)
    return [] if fit is None else [fit]


def _tasks(folder: Path, env: str) -> list[Task]:
    file = folder / "tasks.jsonl"
    tasks = read_jsonl(file, Task) if file.exists() else []
    for number, task in enumerate(tasks, start=1):
        if task.env != env:
            raise InvalidInput(f"{file}, task {number}: it is of environment {task.env!r}, not {env!r}")
    return [task for task in tasks if _is_storable(task, f"{file}: left out: task {task.id!r}")]


def _is_storable(row: Task | Trajectory, what: str) -> bool:
    """What PostgreSQL cannot hold is left out by name; the rest must not wait for it."""
    try:
        check_storable(row, what)
    except InvalidInput as error:
        say(str(error))
        return False
    return True


async def _store(read: dict[Path, list[Trajectory]], tasks: list[Task], dsn: str | None) -> None:
    """All or nothing per path; what is there already under the same id stays as it is."""
    async with open_store(dsn) as store:
        await store.buffer.add_tasks(tasks)
        for path, trajectories in read.items():
            new = await store.buffer.add(trajectories)
            say(f"{path}: {new} of {len(trajectories)} trajectories are new")
            if new < len(trajectories):
                await _tell_changed(store.buffer, trajectories)


async def _tell_changed(buffer: ReplayBuffer, trajectories: list[Trajectory]) -> None:
    """Name those that were stored before and have changed since: by a label, or because the run went on."""
    env = trajectories[0].task.env
    stored = {trajectory.id: trajectory for trajectory in await buffer.trajectories(env, sources=frozenset(Source))}
    changed = [one.id for one in trajectories if one.id in stored and _said(stored[one.id]) != _said(one)]
    if changed:
        say(f"changed since they were stored, and left as stored: {', '.join(changed)}")


def _said(trajectory: Trajectory) -> tuple[object, ...]:
    return trajectory.task.instruction, trajectory.answer, trajectory.final_reward, len(trajectory.transitions)
