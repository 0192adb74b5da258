"""Writes files whole or not at all, and opens files to append to. Only the owner may read new files."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dreamgym.errors import InvalidInput


def open_to_append(path: Path) -> int:
    """Open a file to read and to append to, and return its descriptor. Only its owner may read a new file.

    Raises:
        OSError: the file cannot be opened. Links are refused: somebody else could redirect the recordings with one.
    """
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def open_alone(path: Path) -> BinaryIO:
    """Open a file to read and to append to, locked against others that open it so, until it is closed.

    Raises:
        InvalidInput: another command has it open.
        OSError: the file cannot be opened.
    """
    while True:
        file = os.fdopen(open_to_append(path), "ab+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        except FileNotFoundError:
            pass
        except OSError as error:
            file.close()
            raise InvalidInput(f"{path}: another command is writing to it: wait, or give another file") from error
        file.close()  # another process has replaced or removed the file since it was opened


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Context manager that waits until no other thread and no other process is inside it for the same folder.

    Raises:
        OSError: the folder cannot be opened.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make the folder of a run, and its parents, if it is not there. Raises InvalidInput if it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"expected a folder for the run, and {path} cannot be one: {error.strerror}; give another one with --out"
        ) from error


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a file in one step, and only if its content changes. Several processes may do so at the same time.

    Only its owner may read the new file. A link is replaced, not followed. If the process is killed, the old file
    stays.

    Raises:
        OSError: the file cannot be written.
    """
    encoded = content.encode("utf-8", "replace") if isinstance(content, str) else content
    if path.is_file() and path.read_bytes() == encoded:
        return
    unfinished = path.parent / f".{path.name}.{secrets.token_hex(4)}.unfinished"
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(encoded)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
