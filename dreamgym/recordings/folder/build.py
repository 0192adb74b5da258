"""Builds a folder's files from its recordings: each file whole or not at all, the same for the same recordings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dreamgym.environment import fault_of_tools, read_json, read_tasks, require_files
from dreamgym.errors import InvalidInput
from dreamgym.files import alone_in, write_whole
from dreamgym.recordings.folder.edits import (
    begin,
    digest_of_recordings,
    digests_of,
    edited_tasks,
    is_edited_list,
    last_built,
    made_from,
    tasks_by_hand,
    with_edits,
    write_built,
)
from dreamgym.recordings.folder.env_file import describe, max_steps_in, name_in, write_state
from dreamgym.recordings.folder.examples import observed_in
from dreamgym.recordings.folder.listings import Pages, ToolLists, listings_of, tool_lists
from dreamgym.recordings.folder.runs import Run, Say, read_runs
from dreamgym.recordings.folder.schema import on_schema
from dreamgym.recordings.folder.server import description_of, mirror_of
from dreamgym.recordings.folder.states import RecordedEpisode, Stated, stated
from dreamgym.recordings.folder.trajectories import Tasks, calls_of, trajectory_of
from dreamgym.recordings.folder.versions import listed_differences, outdated
from dreamgym.types import Frozen, Task, Trajectory


class FolderReport(Frozen):
    """The result of one build."""

    messages: tuple[str, ...] = ()
    """One sentence for each thing that was left out, with the reason."""


def update_folder(folder: Path, *, derives_facts: bool = False) -> FolderReport | None:
    """Build the folder again if anything that it is made from has changed since the last build.

    Several threads and processes may do so at the same time: one waits for the other.

    Returns:
        The report; None if there is nothing to do, because the folder is up to date or nothing was recorded.

    Raises:
        InvalidInput: see `build_folder`.
    """
    require_files(folder)
    if not is_recorded(folder):
        return None
    try:
        with alone_in(folder):
            last = None if derives_facts else last_built(folder)
            if last is not None and last.made_from == made_from(folder, digest_of_recordings(folder)):
                return None
            return build_folder(folder, derives_facts=derives_facts)
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be read: {error.strerror}") from error


def is_recorded(folder: Path) -> bool:
    """True if the folder's files are made from recordings, even if a person has deleted all of these since."""
    return any(any((folder / "recordings").glob(name)) for name in ("*.jsonl", "built.json"))


def build_folder(folder: Path, *, derives_facts: bool = False) -> FolderReport:
    """Make tools.json, server.json, tasks.jsonl, trajectories.jsonl and observed.json from the recordings.

    If the server reports its states, `[state]` in env.toml is written too, unless a person has written it. A
    trajectory, a task or a tools.json that a person has edited stays until its recording changes. If no recording is
    left, tools.json and server.json stay as they are.

    Args:
        folder: folder of the environment.
        derives_facts: derive `[state]` from the answers if the server reports no states.

    Raises:
        InvalidInput: there is no env.toml, a file cannot be read or written, tasks.jsonl has a faulty line or two
            different tasks with one id, or neither a recording nor a tools.json lists the tools. Nothing is written
            then, unless a write itself fails.
    """
    name = name_in(folder)
    messages: dict[str, None] = {}
    say: Say = messages.setdefault
    recorded = digest_of_recordings(folder)
    runs = read_runs(folder, say)
    tools = _tools(folder, runs, say)
    listed = read_tasks(folder)
    tasks = Tasks(name, tasks_by_hand(folder, listed), runs, say)
    calls = {run.id: calls_of(run, say) for run in runs}
    left_out = outdated(runs, calls, tools, say)
    episodes = [
        RecordedEpisode(run.id, tuple(exchange for _, _, exchange in calls[run.id]), trajectory)
        for run in runs
        if run.id not in left_out
        and (trajectory := trajectory_of(run, calls[run.id], tools, tasks, name, say)) is not None
    ]
    known = stated(folder, episodes, tools.definitions, say, derives_facts=derives_facts)
    tasks.start_in(known.starts)
    edited = edited_tasks(folder, tasks.all, listed, say)
    built = [_asked_as_edited(one, edited) for one in known.trajectories]
    trajectories = with_edits(folder, built, lambda one: on_schema(one, known.schema, one.id, say), say)
    longest = max((len(one.transitions) for one in trajectories), default=0)
    if longest > (most := max_steps_in(folder)):
        say(
            f"a recorded episode has {longest} calls, but an agent is cut off after {most}: raise max_steps in "
            f"{folder / 'env.toml'}"
        )
    all_tasks = [edited.get(task.id, task) for task in tasks.all]
    listing = _readable(tools.current[0] if len(tools.current) == 1 else list(tools.current))
    coming = digests_of(built, tasks.all, listing)
    try:
        writes_tools = bool(runs) and not is_edited_list(folder, listing, say)
        begin(folder, coming)
        if runs:
            mirror = mirror_of(runs, tools, calls)
            write_whole(folder / "server.json", _readable(mirror.model_dump(mode="json", exclude_defaults=True)))
            describe(folder, description_of(mirror))
        _write(folder, all_tasks, known, trajectories)
        if writes_tools:
            write_whole(folder / "tools.json", listing)
        if is_recorded(folder):
            write_built(folder, recorded, coming)
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be written: {error.strerror}") from error
    return FolderReport(messages=tuple(messages))


def _asked_as_edited(one: Trajectory, edited: Mapping[str, Task]) -> Trajectory:
    """The trajectory with the task that a person has edited; its initial state stays as it was recorded."""
    if one.task.id not in edited:
        return one
    task = edited[one.task.id].model_copy(update={"initial_state": one.task.initial_state})
    return one.model_copy(update={"task": task})


def _tools(folder: Path, runs: list[Run], say: Say) -> ToolLists:
    """The newest recorded tool list, else the one in the folder's tools.json."""
    found = tool_lists(runs, say)
    if found is None:
        found = ToolLists(_pages_in(folder, runs), {})
        if runs:
            say("no run lists the tools; those in tools.json are used")
    if older := ", ".join(found.older()):
        said = f"recorded with another tool list than the newest one: {older}"
        say("; ".join([said, *listed_differences(found), "a run whose calls all fit the newest list is kept"]))
    return found


def _pages_in(folder: Path, runs: Sequence[Run]) -> Pages:
    file = folder / "tools.json"
    if not file.exists():
        faulty = [run.id for run in runs if listings_of(run, "tools/list")]
        why = (
            f"the tool list of {', '.join(faulty)} cannot be used (expected tools that each have a name of their own)"
            if faulty
            else "no run in recordings/ lists the tools"
        )
        raise InvalidInput(
            f"{folder}: {why}, and there is no tools.json: record a run whose agent asks for tools/list, or write the "
            "server's answer to it into tools.json"
        )
    value = read_json(file)
    pages = tuple(value) if isinstance(value, list) else (value,)
    if fault := fault_of_tools(pages):
        raise InvalidInput(
            f"{file}: {fault}; got {json.dumps(value)[:60]}: write the server's answer to tools/list into it"
        )
    return pages


def _write(folder: Path, tasks: Iterable[Task], known: Stated, trajectories: Sequence[Trajectory]) -> None:
    if known.write is not None:
        write_state(folder, known.write)  # before observed.json, which contains a copy of it
    write_whole(folder / "tasks.jsonl", "".join(f"{task.model_dump_json()}\n" for task in tasks))
    lines = (f"{trajectory.model_dump_json()}\n" for trajectory in trajectories)
    write_whole(folder / "trajectories.jsonl", "".join(lines))
    observed = observed_in(trajectories)
    if known.written is not None:
        observed["state"] = known.written.model_dump(mode="json")
    write_whole(folder / "observed.json", _readable(observed))


def _readable(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"
