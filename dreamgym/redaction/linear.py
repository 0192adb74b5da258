"""RE2's regular expressions, which take time linear in the length of the text for every pattern and every text."""

from __future__ import annotations

from typing import Any

from dreamgym.errors import MissingPackage

MAX_BYTES = 64 * 2**20
"""Most memory of a compiled pattern. If its states needed more, RE2 would compile it again while it matches."""


def compiled(pattern: str) -> Any:
    """A compiled pattern with `finditer` and `fullmatch`. Raises ValueError if RE2 does not support the pattern."""
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
