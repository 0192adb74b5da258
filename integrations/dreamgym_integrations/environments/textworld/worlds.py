"""The worlds of a game, split by seed: none occurs twice, so that no test world was ever trained on.

    python -m dreamgym_integrations.environments.textworld.worlds twc mapreader

writes `<game>_worlds.tsv.xz` with the game's default parameters. Two worlds count as one where their task, their first
view and the commands of the package's own solution agree, moves, looks and placements left out: the order in which it
walks is drawn anew each time. Worlds that merely look alike are left out too.
"""

from __future__ import annotations

import json
import lzma
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dreamgym_integrations.environments.textworld import java_games
from dreamgym_integrations.environments.textworld.game import Game

SEEDS = {"train": range(2000), "dev": range(2000, 3000), "test": range(500_000, 501_100)}
FEW = {"train": range(500), "dev": range(2000, 2200), "test": range(500_000, 500_300)}
"""For the games that no training is measured on, so that their lists stay small."""
_WALK = re.compile(r"(move|look|task|inventory|put|open|close) ")


class World(NamedTuple):
    """One line of a task list."""

    split: str
    seed: int
    instruction: str
    start: str

    @classmethod
    def of_line(cls, line: str) -> World:
        """From a line of a packed list; coin's has no instruction of its own."""
        split, seed, *words = line.split("\t")
        return cls(split, int(seed), words[0] if len(words) > 1 else "", words[-1])


def worlds(game: Game, parameters: Mapping[str, int], seeds: Mapping[str, range] = SEEDS) -> Iterator[World]:
    """Every world of the seeds that no earlier seed gave.

    Raises:
        InvalidInput: the game cannot be played with these parameters.
        MissingPackage, EnvironmentUnavailable: Java or the package is missing or failed.
    """
    loaded = (game.name, java_games.parameters({**game.parameters, **parameters}))
    java = java_games.games.take(*loaded)
    seen: set[object] = set()
    try:
        for split, numbers in seeds.items():
            for seed in numbers:
                world, solution = _world(java, game, split, seed)
                if (fingerprint := (world.instruction, world.start, solution)) not in seen:
                    seen.add(fingerprint)
                    yield world
    finally:
        java_games.games.give_back(java, *loaded)


def _world(java: Any, game: Game, split: str, seed: int) -> tuple[World, frozenset[str]]:
    with java_games.java_failures():
        answer = json.loads(java.generateNewGameJSON(seed, "train", True))
        task = " ".join(java.getTaskDescription().split())
        solution = frozenset(command for command in java.getGoldActionSequence() if not _WALK.match(command))
    return World(split, seed, task, game.view(answer)), solution


def _main() -> None:
    from dreamgym_integrations.environments.textworld import GAMES

    for name in sys.argv[1:]:
        seeds = SEEDS if name in ("twc", "mapreader") else FEW
        text = "".join("\t".join(map(str, world)) + "\n" for world in worlds(GAMES[name], {}, seeds))
        target = Path(__file__).with_name(f"{name}_worlds.tsv.xz")
        target.write_bytes(lzma.compress(text.encode(), preset=9))
        print(f"{target}: {text.count(chr(10))} worlds")


if __name__ == "__main__":
    _main()
