"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: Path, content: str) -> None:
    """Replace a file in one go, and only if something changes. Others may do the same at the same time."""
    encoded = content.encode("utf-8", "replace")
    if path.is_file() and path.read_bytes() == encoded:
        return
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.unfinished")
    try:
        unfinished.write_bytes(encoded)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
