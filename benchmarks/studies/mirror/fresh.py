"""Start one of three public MCP servers over stdio, on a fresh copy of its data.

    python benchmarks/studies/mirror/fresh.py filesystem | memory | everything

A server process is an episode, but files outlive a process. So the copy is made here, always in the same place, because
answers contain paths. Two such servers at once would share it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

PLACE = Path(tempfile.gettempdir()) / "dreamgym-mirror"
ROOT = PLACE / "harbour"
GRAPH = PLACE / "graph.jsonl"
PACKAGES = Path(__file__).parents[3] / "tests" / "node" / "node_modules" / "@modelcontextprotocol"

FILES = {
    "README.md": "# Harbour\n\nTide tables for small harbours.\n\nOwner: the pier committee\nLicence: MIT\n",
    "notes/meeting-march.md": "Decision: ship on 14 March.\nOpen: the pier lamp is broken.\n",
    "notes/todo.txt": "[ ] fix pier lamp\n[x] order rope\n[ ] paint buoy 7\n",
    "data/prices.csv": "item,price\nrope,12\nbuoy,45\nlamp,80\n",
    "data/stock.json": '{"rope": 40, "buoy": 3, "lamp": 0}\n',
    "logs/app.log": "INFO start\nERROR tide gauge 3 silent\nINFO retry\nERROR no route to gauge 5\nINFO stop\n",
}
ENTITIES = {
    "Ada": ("person", ["mathematician", "wrote the first program"]),
    "Charles": ("person", ["inventor"]),
    "Analytical Engine": ("project", ["begun in 1837"]),
    "Difference Engine": ("project", ["begun in 1822", "given up in 1842"]),
    "London": ("city", ["on the Thames"]),
}
RELATIONS = [
    ("Charles", "leads", "Analytical Engine"),
    ("Charles", "leads", "Difference Engine"),
    ("Ada", "works on", "Analytical Engine"),
    ("Charles", "lives in", "London"),
]


def node() -> str:
    """Path of the Node from the project's own installation, else of the system's."""
    found = shutil.which("node", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if found is None or not PACKAGES.is_dir():
        sys.exit("the public MCP servers are not installed: `make test` installs them, with the Node they need")
    return found


def prepare() -> None:
    """Restore the files and the graph."""
    if PLACE.is_symlink() or (PLACE.exists() and PLACE.stat().st_uid != os.geteuid()):
        sys.exit(f"{PLACE} is a link or belongs to another user: remove it, or set TMPDIR to a folder of your own")
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(mode=0o700)
    for name, text in FILES.items():
        file = ROOT / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    lines: list[dict[str, object]] = [
        {"type": "entity", "name": name, "entityType": kind, "observations": said}
        for name, (kind, said) in ENTITIES.items()
    ]
    lines += [{"type": "relation", "from": a, "to": b, "relationType": kind} for a, kind, b in RELATIONS]
    GRAPH.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")


def main(server: str) -> None:
    """Restore the data, and replace this process by the server."""
    runtime = node()
    prepare()
    index = PACKAGES / f"server-{server}" / "dist" / "index.js"
    arguments = [str(ROOT)] if server == "filesystem" else []
    environment = {**os.environ, "MEMORY_FILE_PATH": str(GRAPH)}
    os.execve(runtime, [runtime, str(index), *arguments], environment)


if __name__ == "__main__":
    main(*sys.argv[1:])
