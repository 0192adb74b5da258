"""ALFWorld's recorded episodes and their games, if this machine has them: shared/data/alfworld, or ALFWORLD_DATA."""

import json
import lzma
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDERS = [Path(__file__).parents[3] / "shared/data/alfworld", Path(os.environ.get("ALFWORLD_DATA") or "nowhere")]
DATA = next((folder for folder in FOLDERS if (folder / "trajectories_planner.jsonl.xz").is_file()), FOLDERS[0])
FILES = [DATA / f"trajectories_{name}.jsonl.xz" for name in ("planner", "handcoded")]
NO_DATA = f"neither ALFWORLD_DATA nor {FOLDERS[0]} is a folder with recorded episodes (trajectories_planner.jsonl.xz)"
HAS_DATA = all(file.is_file() for file in FILES)

_GAME = re.compile(r'"game": ?"([^"]+)"')


def episodes() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield every recorded episode with the packed row of its game."""
    recorded: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for file in FILES:
        with lzma.open(file, "rt", encoding="utf-8") as lines:
            for episode in map(json.loads, lines):
                recorded.setdefault((episode["split"], episode["game"]), []).append(episode)
    for split in sorted({split for split, _ in recorded}):
        with lzma.open(DATA / f"{split}.jsonl.xz", "rt", encoding="utf-8") as lines:
            for line in lines:
                found = _GAME.search(line, 0, 400)
                of_game = recorded.pop((split, found[1]), []) if found else []
                if of_game:
                    row = json.loads(line)
                    yield from ((episode, row) for episode in of_game)
    assert not recorded, "every recorded episode has its game"
