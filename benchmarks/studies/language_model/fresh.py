"""Run `mcp-server-sqlite` on a fresh database of its own: `python fresh.py SERVER`.

SERVER is the installed command. Each process is an episode, and many may run at once; the database ends with it.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from chandler import fill


def main(server: str) -> int:
    """Run the server until its standard input ends; return its exit code."""
    with tempfile.TemporaryDirectory(prefix="dreamgym-chandler-") as folder:
        file = Path(folder) / "chandler.db"
        with closing(sqlite3.connect(file)) as database:
            fill(database)
        return subprocess.call([server, "--db-path", str(file)])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
