"""Regular expressions whose time is linear in the text, whatever the two are: those of RE2."""

from __future__ import annotations

from typing import Any

from dreamgym.errors import MissingPackage

MAX_BYTES = 64 * 2**20
"""What a pattern may take; beyond that RE2 compiles anew while it matches."""


def compiled(pattern: str) -> Any:
    """A pattern with `finditer` and `fullmatch`. Raises ValueError where RE2 has no such pattern."""
    try:
        import re2
    except ImportError as error:
        raise MissingPackage("redaction", "server") from error
    options = re2.Options()
    options.max_mem = MAX_BYTES
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        said = error.args[0]
        raise ValueError(said.decode() if isinstance(said, bytes) else str(said)) from error
