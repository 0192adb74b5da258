"""Finds and removes what DreamGym leaves on a machine besides its packages.

If DREAMGYM_HOME is set, only what lies below it is removed. Environment folders and run folders belong to the user, so
they stay.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import platformdirs

from dreamgym.errors import StoreError
from dreamgym.redaction.placeholder import key_file
from dreamgym.replay import embedded
from dreamgym.replay.embedded.programs import SERVICE_USER, has_user, remove_user
from dreamgym.types import Frozen


class Leftover(Frozen):
    """Something that stays on the machine when the packages are uninstalled."""

    what: str
    path: Path | None = None
    """File or folder; None: the system user."""
    size: int = 0
    """Number of bytes."""


def leftovers() -> list[Leftover]:
    """Everything that can be removed, the databases first."""
    from dreamgym_integrations.models.weights import folder as models

    home = os.environ.get("DREAMGYM_HOME")
    default = embedded.default_folder()
    places = [
        ("database, with everything recorded and played", default),
        *(
            (f"database of the experiments in a folder {folder.name.removeprefix(default.name + '-')}", folder)
            for folder in embedded.databases()
            if folder != default
        ),
        ("key of the redaction; without it, new recordings get other placeholders than the existing ones", key_file()),
        ("models", models()),
    ]
    if not home:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        places += [
            ("ALFWorld's games, as they were read", platformdirs.user_cache_path("dreamgym") / "alfworld"),
            ("compiled rules of the redaction", cache / "kingfisher"),
        ]
        places += [
            ("usage data of onnxruntime, from an older version", each / "Microsoft" / "DeveloperTools" / ".onnxruntime")
            for each in dict.fromkeys([cache, Path.home() / ".cache"])
        ]
    found = [Leftover(what=what, path=path, size=_size(path)) for what, path in places if path.exists()]
    if not home and os.geteuid() == 0 and has_user():
        found.append(Leftover(what=f"system user {SERVICE_USER}, which runs the database for root"))
    return found


def remove(found: Sequence[Leftover]) -> None:
    """Remove these leftovers, and their parent folders named `dreamgym` if these are then empty.

    Raises:
        StoreError: a database is in use, and nothing was removed; or the file in the message could not be deleted.
    """
    databases = [one.path for one in found if one.path in (embedded.default_folder(), *embedded.databases())]
    embedded.remove(*databases)
    for one in found:
        if one.path is None:
            remove_user()
        elif one.path not in databases:
            _delete(one.path)
        if one.path is not None and one.path.parent.name == "dreamgym" and not any(one.path.parent.iterdir()):
            one.path.parent.rmdir()


def described(found: Sequence[Leftover]) -> str:
    """The leftovers as text, one per line."""
    return "\n".join(
        f"{one.what}: {one.path} ({_in_words(one.size)})" if one.path is not None else one.what for one in found
    )


def _delete(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{error.filename} cannot be deleted: {error.strerror}") from error


def _size(path: Path) -> int:
    """Bytes of a file, or of all files of a folder that can be read."""
    if not path.is_dir():
        return path.stat().st_size
    size = 0
    for place, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):  # a database in use deletes some of its files
                size += (Path(place) / name).lstat().st_size
    return size


def _in_words(size: int) -> str:
    return f"{size:,} bytes" if size < 1_000_000 else f"{size / 1_000_000:,.0f} MB"
