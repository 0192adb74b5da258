"""Stores the new and changed trajectories of an environment folder or a file.

The folder decides: a trajectory that differs from the stored one with its id replaces it. Dreamed trajectories stay. If
a recording is still in the folder, but its trajectory is now left out, the stored trajectory is deleted. If a recording
is no longer in the folder, its stored trajectory stays.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dreamgym.dream.task_check import accomplished, check_of, require_usable_check, wanting_others, wants_state
from dreamgym.environment import EnvironmentSpec, load_spec, read_jsonl, read_tasks, read_trajectories
from dreamgym.errors import InvalidInput, UnknownName
from dreamgym.recordings.contradictions import contradictions, summary
from dreamgym.recordings.folder import is_recorded, update_folder
from dreamgym.recordings.folder.env_file import name_in
from dreamgym.recordings.folder.identity import identity_of
from dreamgym.recordings.folder.runs import recorded_runs
from dreamgym.recordings.folder.schema import on_schema
from dreamgym.recordings.folder.trajectories import trajectory_id, unlisted
from dreamgym.recordings.log import Note
from dreamgym.redaction import redact_by, redacted_task
from dreamgym.replay.keys import check_storable
from dreamgym.runs.console import listed, say
from dreamgym.runs.opening import open_store
from dreamgym.types import Task, Trajectory

if TYPE_CHECKING:
    from dreamgym.replay.postgres import Store


class Seeds(NamedTuple):
    """Trajectories and tasks of one environment that are to be stored."""

    spec: EnvironmentSpec
    trajectories: dict[Path, list[Trajectory]]
    """Trajectories by the folder or file that contains them."""
    tasks: list[Task]
    folders: tuple[Path, ...] = ()
    """Folders of this environment."""
    left_out: frozenset[str] = frozenset()
    """Trajectory ids of the recorded runs that the folders leave out."""


async def claim(folders: Iterable[Path], store: Store) -> None:
    """Record in the store the folder that each environment comes from.

    Raises:
        InvalidInput: the store holds another folder's environment of the same name.
    """
    from dreamgym.replay.postgres.identity import Claim
    from dreamgym.replay.postgres.identity import claim as claim_in

    known = [(folder, identity_of(folder)) for folder in folders]
    claims = [Claim(name_in(folder), identity, str(folder.resolve())) for folder, identity in known if identity]
    await claim_in(store.database, claims)


def folder_of(env: str) -> Path | None:
    """The path `env` if it is an environment folder, else None."""
    return Path(env) if (Path(env) / "env.toml").is_file() else None


def load_updated(env: str) -> EnvironmentSpec:
    """The environment by its name or folder. A recorded folder is first updated from its recordings.

    Raises:
        InvalidInput: the folder cannot be read.
        UnknownName: there is no such environment.
    """
    folder = folder_of(env)
    report = update_folder(folder) if folder is not None else None
    for message in report.messages if report is not None else ():
        say(f"{folder}: {message}")
    return load_spec(env)


async def seed(
    env: str, paths: Sequence[Path], *, model: str | None = None, derives_state: bool = False, dsn: str | None = None
) -> None:
    """Read trajectories and tasks and store them; see `read` and `store`. If a file cannot be read, store nothing.

    Args:
        env: an environment's name or folder; a name may be that of one of the folders.
        paths: environment folders, and files with one trajectory per line.
        model: language model that words a task for each recorded episode that has none.
        derives_state: if the server reports no states, make a schema of the states that its answers show.
        dsn: DSN of the store; None: the embedded server.
    """
    found = await read(env, paths, model=model, derives_state=derives_state)
    async with open_store(dsn) as opened:
        await store(found, opened)


async def read(env: str, paths: Sequence[Path], *, model: str | None = None, derives_state: bool = False) -> Seeds:
    """Read what can be stored, and print what is left out. Folders are first updated from their recordings.

    Args:
        env: an environment's name or folder; a name may be that of one of the folders.
        paths: environment folders, and files with one trajectory per line.
        model: language model that words a task for each recorded episode that has none.
        derives_state: if the server reports no states, make a schema of the states that its answers show.

    Raises:
        InvalidInput: a file cannot be read, or is of another environment, or the check of a task cannot be used.
        UnknownName: there is no such environment.
    """
    folders = [path for path in paths if path.is_dir()]
    recorded = [folder for folder in folders if is_recorded(folder)]
    if derives_state and not recorded:
        raise InvalidInput("--derive-state needs an environment folder with recordings: give one after ENV")
    reports = {folder: update_folder(folder, derives_facts=derives_state) for folder in recorded}
    spec = _spec(env, folders)
    if model is not None:
        for folder in recorded:
            await _propose_tasks(folder, model)
            reports[folder] = update_folder(folder) or reports[folder]
    for folder, report in reports.items():
        for message in report.messages if report is not None else ():
            say(f"{folder}: {message}")
    trajectories = {path: _usable(spec, path, built=path in recorded) for path in paths}
    for folder in recorded:
        unnamed = sum(not trajectory.task.instruction for trajectory in trajectories[folder])
        if unnamed:
            say(
                f"{folder}: {unnamed} of {len(trajectories[folder])} episodes have no task: add it with "
                "`dreamgym label`, or let a model propose one with `dreamgym seed --model MODEL`"
            )
    answers = {step.result.observation for found in trajectories.values() for one in found for step in one.transitions}
    tasks = [task for folder in folders for task in _tasks(folder, spec, answers)]
    named = folder_of(env)
    of_env = tuple(dict.fromkeys([*([named] if named else []), *folders]))
    runs = {trajectory_id(spec.name, run) for folder in recorded for run in recorded_runs(folder)}
    used = {trajectory.id for found in trajectories.values() for trajectory in found}
    return Seeds(spec, trajectories, tasks, of_env, frozenset(runs - used))


async def store(seeds: Seeds, opened: Store) -> None:
    """Store new and changed trajectories, all or nothing per path. Print them, and recordings that contradict.

    Args:
        seeds: the result of `read`.
        opened: the store.

    Raises:
        InvalidInput: the store holds another folder's environment of the same name.
    """
    from dreamgym.replay.postgres.forget import forget_recorded

    await claim(seeds.folders, opened)
    buffer, tasks = opened.buffer, seeds.tasks
    for path, trajectories in seeds.trajectories.items():
        done = await buffer.upsert(trajectories, tasks)
        tasks = []
        say(f"{path}: {done.new} of {len(trajectories)} trajectories are new")
        if done.changed:
            say(f"replaced, because they have changed since they were stored: {listed(done.changed)}")
    if forgotten := await forget_recorded(opened.database, seeds.spec.name, seeds.left_out):
        say(f"deleted from the store, because the folder leaves them out now: {listed(forgotten)}")
    if seeds.spec.deterministic:
        for sentence in summary(contradictions(seeds.spec, chain.from_iterable(seeds.trajectories.values()))):
            say(sentence)


async def read_folder(env: str) -> Seeds | None:
    """Read an environment folder with `read`. Return None if `env` is not a folder or contains no trajectories."""
    folder = folder_of(env)
    if folder is None or not (is_recorded(folder) or (folder / "trajectories.jsonl").is_file()):
        return None
    return await read(env, [folder])


def _spec(env: str, folders: Iterable[Path]) -> EnvironmentSpec:
    """The environment of this name; if it is not registered, the given folder of that name."""
    try:
        return load_spec(env)
    except UnknownName:
        for folder in folders:
            if name_in(folder) == env:
                return EnvironmentSpec.load(folder)
        raise


async def _propose_tasks(folder: Path, model: str) -> None:
    """Propose a task for each run without one, and add it to the recording as `dreamgym label` would."""
    from dreamgym_server.recorder.recording import add_notes

    from dreamgym.curriculum.proposal import propose_tasks
    from dreamgym.dream.load import load_llm

    llm = load_llm(model)
    if llm is None:
        raise InvalidInput(f"--model {model} cannot write a task: expected a language model")
    spec = EnvironmentSpec.load(folder)
    try:
        proposals = await propose_tasks(llm, spec, read_jsonl(folder / "trajectories.jsonl", Trajectory))
    finally:
        await llm.close()
    for identity, task in proposals.tasks.items():
        run = identity.removeprefix(f"{spec.name}-")
        note = Note(run=run, task=task.instruction, task_id=task.id, proposed=True, at=time.time())
        add_notes(folder, [note.model_dump(mode="json", exclude_none=True)], os.environ)
        say(f"{run}: proposed task: {task.instruction}")
    for identity, reason in proposals.failures.items():
        say(f"{identity.removeprefix(f'{spec.name}-')}: no task proposed: {reason}")


def _usable(spec: EnvironmentSpec, path: Path, *, built: bool) -> list[Trajectory]:
    """The trajectories of a path that this environment can use. If `built`, they fit its state schema already."""
    file = path / "trajectories.jsonl" if path.is_dir() else path
    names = {str(tool["name"]) for tool in spec.tools}
    usable = []
    for number, trajectory in enumerate(read_trajectories(file), start=1):
        if trajectory.task.env != spec.name:
            raise InvalidInput(
                f"{file}, trajectory {number}: it belongs to environment {trajectory.task.env!r}, not {spec.name!r}"
            )
        if missing := unlisted(names, trajectory):
            say(f"{file}: {trajectory.id!r} is left out: {spec.name!r} has no tool {', '.join(map(repr, missing))}")
        elif _is_usable(trajectory, f"{file}: left out: trajectory {trajectory.id!r}"):
            schema = None if built else spec.state
            fit = on_schema(trajectory, schema, trajectory.id, lambda message: say(f"{file}: {message}"))
            usable += [] if fit is None else [fit]
    return usable


def _tasks(folder: Path, spec: EnvironmentSpec, answers: Collection[str]) -> list[Task]:
    """The tasks of a folder, redacted.

    Print those whose check wants an answer or a state that is not there, or asks nothing.
    """
    file, env = folder / "tasks.jsonl", spec.name
    tasks = read_tasks(folder)
    for number, task in enumerate(tasks, start=1):
        if task.env != env:
            raise InvalidInput(f"{file}, task {number}: it belongs to environment {task.env!r}, not {env!r}")
        try:
            require_usable_check(task)
        except InvalidInput as error:
            raise InvalidInput(f"{file}: {error}") from error
    redact = redact_by(spec.redact)
    tasks = [redacted_task(task, redact) for task in tasks]
    checked = [task for task in tasks if check_of(task)]
    if answers and (unknown := wanting_others(checked, answers)):
        say(
            f"{file}: no recording gives the answers that the checks of these tasks want: "
            f"{listed([task.id for task in unknown])}. A check wants whole answers; JSON is compared as JSON"
        )
    if spec.state is None and (stateless := [task.id for task in checked if wants_state(task)]):
        say(
            f"{file}: the checks of these tasks read a state (metadata.success), but env.toml has no [state]: "
            f"{listed(stateless)}. Without an explicit state they decide nothing; use metadata.answers"
        )
    starts = [] if spec.state is None else [(task, task.initial_state or "") for task in checked]
    if done := [task.id for task, start in starts if accomplished(task, start)]:
        say(
            f"{file}: the checks of these tasks hold at the start already, so an agent that does nothing useful "
            f"succeeds: {listed(done)}. A check (metadata.success) must fail until the task is done"
        )
    return [task for task in tasks if _is_storable(task, f"{file}: left out: task {task.id!r}")]


def _is_usable(trajectory: Trajectory, what: str) -> bool:
    """True if the check of its task can be used and PostgreSQL can hold it. If not, print why: it is left out."""
    try:
        require_usable_check(trajectory.task)
    except InvalidInput as error:
        say(f"{what}: {error}")
        return False
    return _is_storable(trajectory, what)


def _is_storable(row: Task | Trajectory, what: str) -> bool:
    """True if PostgreSQL can hold the row. If not, print why: it is left out, and the others are stored."""
    try:
        check_storable(row, what)
    except InvalidInput as error:
        say(str(error))
        return False
    return True
