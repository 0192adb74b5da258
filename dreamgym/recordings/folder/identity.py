"""The identity of an environment folder: `environment.id`, made once and copied with the folder.

The name in env.toml is not enough: two companies may both call their server `crm`. A copy of a folder is the same
environment until its env.toml has another name.
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from dreamgym.errors import InvalidInput
from dreamgym.files import open_to_append

FILE = "environment.id"
LONGEST = 100
"""Number of bytes that are read from the file."""


def identity_of(folder: Path) -> str | None:
    """The identity of a folder, made if it has none; None if the file cannot be read or written.

    Raises:
        InvalidInput: the file contains something else.
    """
    file = folder / FILE
    try:
        if not file.exists():
            _make(file)
        with file.open("rb") as opened:
            content = opened.read(LONGEST).strip()
    except OSError:  # such a folder is known by its name alone, as all folders were in older versions
        return None
    if not re.fullmatch(rb"[0-9a-f]{32}", content):
        raise InvalidInput(f"{file}: expected 32 digits of 0-9a-f, got {content[:40]!r}: remove it to get a new one")
    return content.decode()


def _make(file: Path) -> None:
    """Make the file. The first of several processes wins, and none reads half a file."""
    unfinished = file.with_name(f".{file.name}.{secrets.token_hex(4)}.unfinished")
    try:
        with open(open_to_append(unfinished), "w", encoding="utf-8") as new:
            new.write(f"{secrets.token_hex(16)}\n")
        os.link(unfinished, file)
    except FileExistsError:
        pass
    finally:
        unfinished.unlink(missing_ok=True)
