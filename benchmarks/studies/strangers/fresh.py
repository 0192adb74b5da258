"""Run one of the public MCP servers on a fresh copy of its world: `python fresh.py NAME FOLDER`.

FOLDER is where the servers are installed. A server process is an episode, but files outlive a process, so the copy is
made here. Two processes of one server at once would share it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from public_server import prepare, world
from servers import SERVERS


def main(name: str, folder: str) -> None:
    """Restore the server's world, and replace this process by the server."""
    server = SERVERS[name]
    installed = Path(folder).absolute()
    prepare(server, installed)
    command = server.command(installed)
    os.chdir(world(name))
    os.execvpe(command[0], command, {**os.environ, **server.environment})


if __name__ == "__main__":
    main(*sys.argv[1:])
