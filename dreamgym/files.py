"""Writes files whole or not at all, and opens files to append to. Only the owner may read new files."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dreamgym.errors import InvalidInput


def open_to_append(path: Path) -> int:
    """Open a file to read and to append to, and return its descriptor. Only its owner may read a new file.

    Raises:
        OSError: the file cannot be opened, or is a pipe or a device. Links are refused: somebody else could redirect
            the recordings with one.
    """
    _require_ordinary(path)
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
def alone_in(folder: Path, *, waits: bool = True) -> Iterator[None]:
    """Context manager that waits until no other thread and no other process is inside it for the same folder.

    Raises:
        InvalidInput: another one is inside it, and `waits` is false.
        OSError: the folder cannot be opened.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InvalidInput(
                f"{folder}: another command works in it: wait for its end, or give another folder"
            ) from error
        except OSError:  # a file system without locks
            pass
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


def _require_ordinary(path: Path) -> None:
    """Raises PermissionError for a pipe or a device: reading one may never end, and it must not be replaced."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise PermissionError(errno.EPERM, "it is a pipe or a device", str(path))


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a file in one step, and only if its content changes. Several processes may do so at the same time.

    Only its owner may read the new file. A link is replaced, not followed. If the process is killed, the old file
    stays.

    Raises:
        OSError: the file cannot be written, or is a pipe or a device.
    """
    _require_ordinary(path)
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


def is_alive(process: int) -> bool:
    """True if a process with this id exists on this machine, whoever owns it."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
