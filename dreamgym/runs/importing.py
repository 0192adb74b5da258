"""Imports existing conversations, traces and runs into the store or into a file."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dreamgym.environment import EnvironmentSpec, load_spec, read_jsonl
from dreamgym.errors import InvalidInput, UnknownName, in_one_line
from dreamgym.files import write_whole
from dreamgym.recordings.folder.env_file import redaction_in
from dreamgym.recordings.importers import FORMATS, Found, ImportReport, Skipped, importer_named, read_file
from dreamgym.recordings.importers.folder import (
    defined_tools,
    has_tools,
    make_environment,
    new_folder,
    write_episodes,
)
from dreamgym.redaction import Redact, RedactionRules, redact_by
from dreamgym.runs.console import listed, say
from dreamgym.runs.opening import open_store, say_if_taken_for_a_game
from dreamgym.runs.seed import claim, folder_of
from dreamgym.runs.stored import contained
from dreamgym.types import Source, Trajectory

REASONS = 20
"""Maximum number of reasons of one kind that are printed."""


async def import_files(
    files: Sequence[str],
    env: str,
    *,
    new: bool = False,
    out: Path | None = None,
) -> None:
    """Import what can be used, and print what cannot and why.

    Args:
        files: files, plain, .xz or .gz. Their format is detected, unless its name is in the first place.
        env: an environment's name or folder.
        new: make the folder `env` from the tool definitions and the episodes in the files.
        out: JSONL file to write instead of storing.

    Raises:
        InvalidInput: a file or the environment cannot be used, nothing in the files can, or `out` contains anything
            but trajectories of this import.
    """
    importer = None
    if files[0] in FORMATS and not Path(files[0]).exists():
        importer, files = importer_named(files[0]), files[1:]
    if not files:
        raise InvalidInput("no file given: dreamgym import [FORMAT] FILE... --env ENV")
    if importer is None and len(files) > 1 and not {".", "/"} & {*files[0]} and not Path(files[0]).exists():
        raise UnknownName("format", files[0], FORMATS, f"there is no file {files[0]} either")
    found = [entry for file in files for entry in read_file(Path(file), importer)]
    with _environment(env, found, new=new) as spec:
        say_if_taken_for_a_game(spec)
        report = ImportReport()
        redact = redact_by(spec.redact)
        report.add(found, spec, redact)
        tell(report, redact)
        if not report.trajectories:
            raise InvalidInput(f"nothing in {', '.join(files)} can be used for environment {spec.name!r}; see above")
        if out is not None:
            _require_nothing_lost(out, report.trajectories)
        if new:
            write_episodes(Path(env), report.trajectories)
        if out is None:
            async with open_store() as store:
                if (folder := folder_of(env)) is not None:
                    await claim([folder], store)
                stored = await store.buffer.add(report.trajectories)
                # read them only if some are not new: a buffer may have a million
                all_new = stored == len(report.trajectories)
                there = () if all_new else await store.buffer.trajectories(spec.name, sources=frozenset(Source))
            say(f"{stored} of {len(report.trajectories)} trajectories are new in the buffer of {spec.name!r}")
            ids = [one.id for one in report.trajectories]
            if folder is not None and stored and contained(folder, ids) != ids:
                say(
                    f"{folder / 'trajectories.jsonl'} stays as it is, and `check`, `fidelity` and copies of the folder "
                    "know only what is in it: to add episodes, import them with --out NEW.jsonl, and append that file"
                )
            found_there = {one.id: one for one in there}
            if not all_new and (
                unlike := [one.id for one in report.trajectories if not one.has_json_of(found_there.get(one.id))]
            ):
                say(
                    "not stored, because their ids are stored with other content or of another environment: "
                    f"{listed(unlike)}. Give them other ids, or replace those of this environment with `dreamgym seed`"
                )
            return
        try:
            write_whole(out, "".join(f"{row.model_dump_json()}\n" for row in report.trajectories))
        except OSError as error:
            raise InvalidInput(f"{out}: cannot be written: {error.strerror}; give another file") from error
        say(f"{out}: {len(report.trajectories)} trajectories")


def _require_nothing_lost(out: Path, trajectories: Sequence[Trajectory]) -> None:
    """Raises InvalidInput if writing these trajectories to `out` would remove or change what it contains."""
    if not out.is_file():
        return
    there, new = read_jsonl(out, Trajectory), {one.id: one for one in trajectories}
    lost = [one.id for one in there if not one.has_json_of(new.get(one.id))]
    if lost:
        raise InvalidInput(
            f"{out} would lose {len(lost)} of its {len(there)} trajectories, or changes in them: {listed(lost)}. Give "
            "another file with --out and append it to this one, or move this one away"
        )


@contextmanager
def _environment(env: str, found: list[tuple[str, Found]], *, new: bool) -> Iterator[EnvironmentSpec]:
    """The environment. With `new`, it is made from the tool definitions that were found, unless the import fails."""
    folder = Path(env)
    tools, differing = defined_tools(item for _, item in found)
    if new:
        if not tools and not has_tools(folder):
            unread = [item for _, item in found if isinstance(item, Skipped)]
            rules = redaction_in(folder) if (folder / "env.toml").exists() else RedactionRules()
            _tell_reasons("not usable", unread, redact_by(rules))
            if len(unread) == len(found):
                raise InvalidInput(f"{folder} cannot be made: nothing in the files can be read; see above")
        with new_folder(folder):
            spec = make_environment(folder, tools)
            redact = redact_by(spec.redact)
            for name, places in differing.items():
                told = f"tool {name!r} is defined differently in {listed(places, 1)}"
                say(f"{in_one_line(told if redact is None else redact(told))}; the first definition is kept")
            say(f"{folder}: a new environment {spec.name!r} with {len(spec.tools)} tools")
            yield spec
        say(f"{env}: serve it with `dreamgym serve {shlex.quote(env)}`")
        return
    is_path = folder.is_dir() or len(folder.parts) > 1 or env.endswith("/")
    if tools and is_path and not has_tools(folder):
        raise InvalidInput(
            f"{folder} has no tools.json yet: --new makes it from the {len(tools)} tools that the files define"
        )
    yield load_spec(env)


def tell(report: ImportReport, redact: Redact | None) -> None:
    """Print what was found, and what could not be used and why. Lines that may quote the files are redacted."""
    by_format = ", ".join(f"{count} {name}" for name, count in report.formats.items())
    steps = sum(len(trajectory.transitions) for trajectory in report.trajectories)
    total = len(report.trajectories) + report.repeated + len(report.skipped)
    say(f"{len(report.trajectories)} of {total} usable ({by_format or 'none'}), {steps} transitions")
    if report.repeated:
        say(f"{report.repeated} left out: each occurs earlier in this import")
    if report.replies:
        say(f"{report.replies} exchanges between agent and user left out: the environment has no tool 'respond'")
    _tell_reasons("not usable", report.skipped, redact)
    _tell_reasons("left out of a usable trajectory", report.left_out, redact)
    for tool, misfits in report.misfits.items():
        where, reason = listed([one.where for one in misfits], 1), misfits[0].reason
        told = f"calls of {tool!r} that its schema refuses are in {where}: {reason}"
        say(
            f"{in_one_line(told if redact is None else redact(told))}. "
            "If they come from another version of the server, import each version into an environment of its own"
        )


def _tell_reasons(kind: str, reasons: list[Skipped], redact: Redact | None) -> None:
    for skipped in reasons[:REASONS]:
        told = f"{skipped.where}: {skipped.reason}"
        say(f"{kind}: {in_one_line(told if redact is None else redact(told))}")
    if len(reasons) > REASONS:
        say(f"{kind}: and {len(reasons) - REASONS} more")
