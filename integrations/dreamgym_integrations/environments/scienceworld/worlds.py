"""The tasks of ScienceWorld with their words and their starts, which only the running package knows.

    python -m dreamgym_integrations.environments.scienceworld.worlds [LIMIT]

writes `worlds.tsv.xz`, with at most LIMIT variations of each task and fold. All of them take half an hour.
"""

from __future__ import annotations

import json
import lzma
import sys
from collections.abc import Iterator
from pathlib import Path

from dreamgym_integrations.environments.scienceworld.simulator import Simulator, World


def lines(simulator: Simulator, limit: int | None) -> Iterator[str]:
    """One line for each task, those of one fold one of each kind after another."""
    from scienceworld.constants import ID2TASK

    kinds: dict[str, dict[str, list[int]]] = {kind: simulator.folds(kind) for kind in ID2TASK.values()}
    for split in ("train", "dev", "test"):
        longest = max(len(folds[split]) for folds in kinds.values())
        for place in range(min(longest, limit or longest)):
            for kind, folds in kinds.items():
                if place < len(folds[split]):
                    yield line(simulator, split, World(kind, folds[split][place]))


def line(simulator: Simulator, split: str, world: World) -> str:
    """Fold, task, variation, what is to be done, and what is seen first."""
    simulator.load(world)
    start = json.dumps(simulator.view(), ensure_ascii=False)
    return "\t".join([split, world.kind, str(world.variation), simulator.description(), start])


def _main() -> None:
    simulator = Simulator()
    limit = int(sys.argv[1]) if len(sys.argv) > 1 else None
    text = "".join(f"{one}\n" for one in lines(simulator, limit))
    simulator.stop()
    target = Path(__file__).with_name("worlds.tsv.xz")
    target.write_bytes(lzma.compress(text.encode(), preset=9))
    print(f"{target}: {text.count(chr(10))} tasks")


if __name__ == "__main__":
    _main()
