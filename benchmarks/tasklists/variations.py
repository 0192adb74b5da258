"""Write the packed task list of ScienceWorld: instructions and first views, which only the running package knows.

    python benchmarks/tasklists/variations.py [LIMIT]

The command takes at most LIMIT variations of each task and fold. All of them take half an hour. The list is written
into the package.
"""

from __future__ import annotations

import json
import lzma
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from dreamgym_integrations.environments.base import SPLITS
from dreamgym_integrations.environments.scienceworld.simulator import Simulator, Variation


def lines(simulator: Simulator, limit: int | None) -> Iterator[str]:
    """Yield fold, task, variation, instruction and first view of each; within a fold, the tasks take turns."""
    from scienceworld.constants import ID2TASK

    kinds: dict[str, dict[str, list[int]]] = {kind: simulator.folds(kind) for kind in ID2TASK.values()}
    for split in SPLITS:
        longest = max(len(folds[split]) for folds in kinds.values())
        for place in range(min(longest, limit or longest)):
            for kind, folds in kinds.items():
                if place < len(folds[split]):
                    number = folds[split][place]
                    simulator.load(Variation(kind, number))
                    start = json.dumps(simulator.view(), ensure_ascii=False)
                    yield "\t".join([split, kind, str(number), simulator.description(), start]) + "\n"


if __name__ == "__main__":
    simulator = Simulator()
    text = "".join(lines(simulator, int(sys.argv[1]) if len(sys.argv) > 1 else None))
    simulator.stop()
    target = Path(str(files("dreamgym_integrations.environments.scienceworld").joinpath("worlds.tsv.xz")))
    target.write_bytes(lzma.compress(text.encode(), preset=9))
    print(f"{target}: {text.count(chr(10))} tasks")
