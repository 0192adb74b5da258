"""Becomes `mcp-server-sqlite` on a fresh database of its own: `python fresh.py SERVER`.

SERVER is the installed command. Each process is an episode, and many may run at once.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from chandler import fill


def main(server: str) -> None:
    """Become the server."""
    file = Path(tempfile.mkdtemp(prefix="dreamgym-chandler-")) / "chandler.db"
    with closing(sqlite3.connect(file)) as database:
        fill(database)
    os.execv(server, [server, "--db-path", str(file)])


if __name__ == "__main__":
    main(*sys.argv[1:])
