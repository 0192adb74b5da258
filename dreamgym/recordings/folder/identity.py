"""Which environment a folder is: `environment.id`, made once and copied with the folder.

The name in env.toml cannot tell: two companies both call their server `crm`. A copy of a folder is the same
environment until its env.toml names another.
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
"""Bytes that are read of the file."""


def identity_of(folder: Path) -> str | None:
    """The identity of a folder, which is given one if it has none; None if nothing can be written there.

    Raises:
        InvalidInput: the file has something else in it.
    """
    file = folder / FILE
    try:
        if not file.exists():
            _make(file)
        with file.open("rb") as opened:
            content = opened.read(LONGEST).strip()
    except OSError:  # a folder that cannot be written is known by its name alone, as all were once
        return None
    if not re.fullmatch(rb"[0-9a-f]{32}", content):
        raise InvalidInput(f"{file}: expected 32 digits of 0-9a-f, got {content[:40]!r}: remove it to get a new one")
    return content.decode()


def _make(file: Path) -> None:
    """The first of several processes wins, and none reads half a file."""
    unfinished = file.with_name(f".{file.name}.{secrets.token_hex(4)}.unfinished")
    try:
        with open(open_to_append(unfinished), "w", encoding="utf-8") as new:
            new.write(f"{secrets.token_hex(16)}\n")
        os.link(unfinished, file)
    except FileExistsError:
        pass
    finally:
        unfinished.unlink(missing_ok=True)
