"""Keeps a person's edits of a folder's files when the files are made again from the recordings.

`recordings/built.json` contains a digest of each trajectory, each recorded task and tools.json as of the last build,
so that an edited one is recognised. An edit stays until the recording behind it changes, for instance by a label.
While a build writes its files, the digests of what it writes are there too: if it is killed, each file is of one of
the two builds.
Reasoning that a teacher model wrote is not an edit: it stays as long as its step does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from dreamgym.dream.annotation import with_traces
from dreamgym.environment import first_reason
from dreamgym.files import write_whole
from dreamgym.recordings.folder.runs import Say
from dreamgym.recordings.folder.trajectories import RECORDED
from dreamgym.types import Frozen, Task, Trajectory

MADE_FROM = ("env.toml", "tasks.jsonl", "tools.json", "trajectories.jsonl")
"""Files of a folder that a build reads besides the recordings."""


class Built(Frozen):
    """Digests of a folder's last build: the content of recordings/built.json."""

    made_from: str = ""
    """Digest of everything that the folder was made from."""
    trajectories: dict[str, str] = Field(default_factory=dict)
    """Digest of each trajectory that the recordings gave, by id."""
    tasks: dict[str, str] = Field(default_factory=dict)
    """Digest of each task that the recordings gave, by id."""
    tools: str = ""
    """Digest of tools.json as the recordings gave it."""
    unfinished: tuple[Built, ...] = ()
    """Digests of builds that have begun since and were not finished. Each file may be of one of them."""

    def gave(self, row: str, kind: Literal["trajectories", "tasks"]) -> set[str]:
        """The digests of a trajectory or a task by id; more than one if it has changed in an unfinished build."""
        builds: list[dict[str, str]] = [getattr(one, kind) for one in (self, *self.unfinished)]
        return {one[row] for one in builds if row in one}

    def keeps_edit(self, row: str, now: str, kind: Literal["trajectories", "tasks"]) -> bool:
        """True if an edit of a row stays: its recording gives what it gave when the row was edited.

        A row that only an unfinished build gave was edited after it.
        """
        finished: dict[str, str] = getattr(self, kind)
        return now in ({finished[row]} if row in finished else self.gave(row, kind))


def last_built(folder: Path) -> Built | None:
    """The digests of the last build; None if there was none, or if an older version of this program made it."""
    try:
        return Built.model_validate_json((folder / "recordings" / "built.json").read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def digests_of(built: Iterable[Trajectory], tasks: Iterable[Task], tools: str) -> Built:
    """The digests of the trajectories, the tasks and the tools.json that the recordings give."""
    return Built(
        trajectories={one.id: _digest(one) for one in built},
        tasks={task.id: _digest_of_task(task) for task in tasks if RECORDED in task.metadata},
        tools=sha256(tools.encode()).hexdigest(),
    )


def begin(folder: Path, coming: Built) -> None:
    """Add the digests of a build to recordings/built.json, if it is there, before the build writes its files."""
    last = last_built(folder)
    if last is not None:
        begun = tuple(one for one in last.unfinished if one != coming)
        _write(folder, last.model_copy(update={"made_from": "", "unfinished": (*begun, coming)}))


def write_built(folder: Path, recorded: str, done: Built) -> None:
    """Write recordings/built.json, after the other files of a build.

    Args:
        folder: folder of the environment.
        recorded: result of `digest_of_recordings` before the recordings were read.
        done: the digests of the build.
    """
    _write(folder, done.model_copy(update={"made_from": made_from(folder, recorded)}))


def _write(folder: Path, built: Built) -> None:
    write_whole(folder / "recordings" / "built.json", built.model_dump_json(indent=1, exclude_defaults=True) + "\n")


def digest_of_recordings(folder: Path) -> str:
    """Digest of all recordings. Raises OSError."""
    return _digest_of_files(sorted((folder / "recordings").glob("*.jsonl")))


def made_from(folder: Path, recorded: str) -> str:
    """Digest of everything that a folder is made from. Raises OSError."""
    files = [folder / name for name in MADE_FROM]
    return sha256(f"{recorded} {_digest_of_files(file for file in files if file.exists())}".encode()).hexdigest()


def tasks_by_hand(folder: Path, listed: Iterable[Task]) -> list[Task]:
    """The tasks of tasks.jsonl that a person wrote, also as a copy of a recorded one, without its mark."""
    last = last_built(folder) or Built()
    return [
        task.model_copy(update={"metadata": {name: item for name, item in task.metadata.items() if name != RECORDED}})
        for task in listed
        if RECORDED not in task.metadata or (last.tasks and not last.gave(task.id, "tasks"))
    ]


def edited_tasks(folder: Path, given: Iterable[Task], listed: Iterable[Task], say: Say) -> dict[str, Task]:
    """The recorded tasks that a person has edited, by id. If an edit is lost, a copy of the file is kept.

    Args:
        folder: folder of the environment.
        given: the tasks that the recordings give now.
        listed: the tasks in tasks.jsonl.
        say: called with each message.
    """
    last = last_built(folder) or Built()
    now = {task.id: _digest_of_task(task) for task in given}
    recorded = {task.id: task for task in listed if RECORDED in task.metadata}
    before = {name: last.gave(name, "tasks") for name in recorded}
    edited = {
        name: task for name, task in recorded.items() if before[name] and _digest_of_task(task) not in before[name]
    }
    lost = [name for name in edited if not last.keeps_edit(name, now.get(name, ""), "tasks")]
    if lost:
        say(
            f"tasks.jsonl was built again and lost the edits of {', '.join(lost)}; "
            f"the edited file was saved as {_copied(folder / 'tasks.jsonl').name}"
        )
    return {name: task for name, task in edited.items() if name not in lost}


def is_edited_list(folder: Path, tools: str, say: Say) -> bool:
    """True if a person has edited tools.json, so that it stays. If an edit is lost, a copy of the file is kept.

    Args:
        folder: folder of the environment.
        tools: the tools.json that the recordings give now.
        say: called with each message.
    """
    file, last = folder / "tools.json", last_built(folder)
    if last is None or not last.tools or not file.exists():
        return False
    there, given = (sha256(content).hexdigest() for content in (file.read_bytes(), tools.encode()))
    before = {one.tools for one in (last, *last.unfinished)}
    if there in {given, *before}:
        return False
    if given == last.tools:
        return True
    say(
        "tools.json was built again and lost its edits, because the server has other tools now; "
        f"the edited file was saved as {_copied(file).name}"
    )
    return False


def with_edits(
    folder: Path, built: Sequence[Trajectory], fit: Callable[[Trajectory], Trajectory | None], say: Say
) -> list[Trajectory]:
    """The new trajectories, with a person's edits. If an edit is lost, a copy of the old trajectories.jsonl is kept.

    Args:
        folder: folder of the environment.
        built: the trajectories that the recordings give now.
        fit: removes calls that env.toml does not allow from an edited trajectory; returns None if none is left.
        say: called with each message.
    """
    file, last = folder / "trajectories.jsonl", last_built(folder)
    if not file.exists() or not file.stat().st_size:
        return list(built)
    there, faults = _readable(file)
    if faults:
        say(
            f"{file}, {faults[0]}{f', and {len(faults) - 1} more lines' if len(faults) > 1 else ''}: what could not be "
            f"read was left out, and the damaged file was saved as {_copied(file).name}"
        )
    before = last or Built()
    kept: list[Trajectory] = []
    lost: list[str] = []
    for one in built:
        digest, edited, gave = _digest(one), there.get(one.id), before.gave(one.id, "trajectories")
        if edited is None:
            # a person has removed it, unless it is new, or its line may be a damaged one
            kept += [one] if before.trajectories.get(one.id) != digest or faults else []
        elif _digest(edited) in {digest, *gave}:  # never edited
            kept.append(one)
        elif before.keeps_edit(one.id, digest, "trajectories"):
            kept += _fitted(edited, fit, lost)
        else:  # its recording has changed since
            kept.append(one)
            lost.append(one.id)
    known = {one.id for one in built}
    for one in there.values():
        gave = before.gave(one.id, "trajectories")
        if one.id in known or _digest(one) in gave:
            continue
        if last is not None and not gave:  # a person added it
            kept += _fitted(one, fit, lost)
        else:
            lost.append(one.id)
    if lost:
        say(
            f"trajectories.jsonl was built again and lost the edits of {', '.join(lost)}; "
            f"the edited file was saved as {_copied(file).name}"
        )
    return with_traces(kept, there.values())


def _readable(file: Path) -> tuple[dict[str, Trajectory], list[str]]:
    """The trajectories of all lines that can be read, by id, and the faults of the others."""
    found: dict[str, Trajectory] = {}
    faults: list[str] = []
    for number, line in enumerate(file.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            one = Trajectory.model_validate_json(line)
        except ValidationError as error:
            faults.append(f"line {number}: {first_reason(error)}")
            continue
        if not found.setdefault(one.id, one).has_json_of(one):
            faults.append(f"line {number}: an earlier trajectory has the id {one.id!r} and other content")
    return found, faults


def _fitted(
    edited: Trajectory, fit: Callable[[Trajectory], Trajectory | None], lost: list[str]
) -> Iterator[Trajectory]:
    fitted = fit(edited)
    if fitted != edited:
        lost.append(edited.id)
    if fitted is not None:
        yield fitted


def _copied(file: Path) -> Path:
    content = file.read_bytes()
    copy = file.with_name(f"{file.name}.{sha256(content).hexdigest()[:8]}.bak")
    write_whole(copy, content)
    return copy


def _digest(trajectory: Trajectory) -> str:
    bare = tuple(step.model_copy(update={"reasoning": ""}) for step in trajectory.transitions)
    return trajectory.model_copy(update={"transitions": bare}).digest().hex()


def _digest_of_task(task: Task) -> str:
    return sha256(task.model_dump_json().encode()).hexdigest()


def _digest_of_files(files: Iterable[Path]) -> str:
    digests = (f"{file.name} {sha256(file.read_bytes()).hexdigest()}" for file in files)
    return sha256("\n".join(digests).encode()).hexdigest()
