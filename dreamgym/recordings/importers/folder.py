"""Makes a new environment folder from the tool definitions in recorded conversations.

Definitions are taken as they are, but for secrets. A tool without a definition stays unknown; trajectories that call it
are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from pydantic import JsonValue

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.files import alone_in, write_whole
from dreamgym.recordings.folder import identity
from dreamgym.recordings.folder.env_file import redaction_in
from dreamgym.recordings.importers.base import Found, ImportedEpisode
from dreamgym.redaction import redact_by
from dreamgym.types import JsonObject, Task, Trajectory

_ENV = """\
name = "{name}"
description = ""
# False: the agent decides when to stop, as with a server of tools. True: the environment ends an episode as soon as its
# task is accomplished, as a game does.
ends_itself = false

# Keys, tokens and personal data are taken out of what is imported. Without this table, imports are stored unchanged.
[redact]
secrets = true
"""


def defined_tools(found: Iterable[Found]) -> tuple[list[JsonObject], dict[str, list[str]]]:
    """All tool definitions, the first of each name, and by name the places where a later one differs from it."""
    tools: dict[str, JsonObject] = {}
    differing: dict[str, list[str]] = {}
    for episode in (item for item in found if isinstance(item, ImportedEpisode)):
        for tool in episode.tools:
            name = str(tool["name"])
            if tools.setdefault(name, tool) != tool:
                differing.setdefault(name, []).append(episode.where)
    return list(tools.values()), differing


def has_tools(folder: Path) -> bool:
    """True if the folder has a tools.json."""
    return (folder / "tools.json").exists()


@contextmanager
def new_folder(folder: Path) -> Iterator[None]:
    """Make the folder if it is not there, and keep other commands out of it during the block.

    If the block fails, what it has added is removed, so that it can be tried again.

    Raises:
        InvalidInput: another command works in the folder, or the folder cannot be made.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    with ExitStack() as held:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            held.enter_context(alone_in(folder, waits=False))
        except OSError as error:
            raise InvalidInput(f"{folder} cannot be written: {error}") from error
        names = ("env.toml", identity.FILE, "tools.json", "tasks.jsonl", "trajectories.jsonl")
        missing = [folder / name for name in names if not (folder / name).exists()]
        try:
            yield
        except BaseException:  # Ctrl-C too
            with suppress(OSError):
                for file in missing:
                    file.unlink(missing_ok=True)
                for path in made:
                    path.rmdir()
            raise


def make_environment(folder: Path, tools: list[JsonObject]) -> EnvironmentSpec:
    """Write tools.json, redacted by the folder's rules, and env.toml if there is none, and load the folder.

    The folder must be there, see `new_folder`.

    Raises:
        InvalidInput: there is a tools.json already, no file defines a tool, or the folder cannot be named or written.
    """
    if has_tools(folder):
        raise InvalidInput(f"{folder} has a tools.json already: leave out --new")
    if not tools:
        raise InvalidInput(
            f"{folder} cannot be made: no file defines a tool. Write {folder / 'tools.json'} as the real server's "
            "tools/list answer, or record that server with dreamgym record"
        )
    name = re.sub(r"[^a-z0-9_-]+", "-", folder.resolve().name.lower()).strip("-_")
    if not name:
        raise InvalidInput(
            f"{folder} cannot give the environment its name: use a folder whose name has a letter or a digit"
        )
    try:
        if not (folder / "env.toml").exists():
            write_whole(folder / "env.toml", _ENV.format(name=name))
        redact = redact_by(redaction_in(folder))
        listing: JsonValue = {"tools": [*tools]} if redact is None else redact({"tools": [*tools]})
        write_whole(folder / "tools.json", json.dumps(listing, ensure_ascii=False, indent=2) + "\n")
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be written: {error}") from error
    return EnvironmentSpec.load(folder)


def write_episodes(folder: Path, trajectories: Sequence[Trajectory]) -> None:
    """Write trajectories.jsonl and tasks.jsonl of a new folder; an existing file is left alone.

    Raises:
        InvalidInput: the folder cannot be written.
    """
    tasks = {trajectory.task.id: trajectory.task for trajectory in trajectories}
    files: Mapping[str, Sequence[Task | Trajectory]] = {
        "tasks.jsonl": list(tasks.values()),
        "trajectories.jsonl": trajectories,
    }
    try:
        for name, rows in files.items():
            if not (folder / name).exists():
                write_whole(folder / name, "".join(f"{row.model_dump_json()}\n" for row in rows))
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be written: {error}") from error
