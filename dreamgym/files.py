"""Files that are written whole or not at all, and files that are appended to, each for its owner alone."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def open_to_append(path: Path) -> int:
    """A file descriptor to read and to append with. A new file is its owner's alone.

    Raises:
        OSError: it cannot be opened, or is a link: what is recorded would end up where somebody else wants it.
    """
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a file in one go, and only if its content changes. Others may do the same at the same time.

    The new file is its owner's alone, and takes the place of a link. A process that is killed leaves the old file.

    Raises:
        OSError: it cannot be written.
    """
    encoded = content.encode("utf-8", "replace") if isinstance(content, str) else content
    if path.is_file() and path.read_bytes() == encoded:
        return
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.unfinished")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(encoded)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
