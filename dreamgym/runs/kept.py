"""Reads the files with which a run goes on, which an earlier part of it wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from dreamgym.environment import first_reason
from dreamgym.errors import InvalidInput

T = TypeVar("T")


def read_kept(file: Path, kind: TypeAdapter[T], expected: str, mend: str) -> T:
    """The content of a JSON file of a run folder.

    Args:
        file: the file.
        kind: what the file contains.
        expected: what it contains, in words.
        mend: what the user can do if it does not.

    Raises:
        InvalidInput: the file cannot be read, or contains something else.
    """
    try:
        return kind.validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise InvalidInput(f"{file}: expected {expected}, got {first_reason(error)}; {mend}") from error
