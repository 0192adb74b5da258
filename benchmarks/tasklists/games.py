"""Write the packed task lists of TextWorldExpress's games: split, seed, instruction and first view of each world.

    python benchmarks/tasklists/games.py coin twc mapreader

A world that an earlier seed already gave is left out, so that no test world was ever trained on. The lists are written
into the package, with each game's default parameters.
"""

from __future__ import annotations

import asyncio
import lzma
import sys
from collections.abc import AsyncIterator, Mapping
from importlib.resources import files
from pathlib import Path

from dreamgym_integrations.environments.base import act
from dreamgym_integrations.environments.textworld_express.coin import COIN
from dreamgym_integrations.environments.textworld_express.engine import SEEDS, GameEnvironment, distinct_worlds
from dreamgym_integrations.environments.textworld_express.games import GAMES

from dreamgym.environment import Environment
from dreamgym.types import Task

TRAINED_ON = ("coin", "mapreader", "twc")
FEW = {"train": range(500), "dev": range(2000, 2200), "test": range(500_000, 500_300)}
"""Fewer seeds for the games on which training is not measured, so that their lists stay small."""
OPPOSITE = {"north": "south", "east": "west", "south": "north", "west": "east"}


async def places(environment: Environment, seed: int) -> tuple[str, ...]:
    """Walk through one world of coin; return every place, beginning with the start."""
    start = await environment.reset(Task(id="walk", env="coin", instruction="", metadata={"seed": seed}))
    seen: list[str] = []

    async def walk(here: str) -> None:
        seen.append(here)
        for detail in here.rstrip(".").split(". "):
            side, _, place = detail.partition(": ")
            if place and not any(known.startswith(f"{place}.") for known in seen):
                await walk((await environment.step(act(f"move {side}"))).state)
                await environment.step(act(f"move {OPPOSITE[side]}"))

    await walk(start.state)
    return tuple(seen)


async def coin_lines(seeds: Mapping[str, range]) -> AsyncIterator[str]:
    """Yield the lines of coin's list; its worlds are compared place by place."""
    environment = GameEnvironment(COIN)
    worlds: set[frozenset[str]] = set()
    for split, numbers in seeds.items():
        for seed in numbers:
            world = await places(environment, seed)
            if frozenset(world) not in worlds:
                worlds.add(frozenset(world))
                yield f"{split}\t{seed}\t{world[0]}\n"
    await environment.close()


async def main(names: list[str]) -> None:
    """Write the lists of these games."""
    for name in names:
        if name == "coin":
            lines = [line async for line in coin_lines(SEEDS)]
        else:
            seeds = SEEDS if name in TRAINED_ON else FEW
            lines = ["\t".join(map(str, world)) + "\n" for world in distinct_worlds(GAMES[name], {}, seeds)]
        target = Path(
            str(files("dreamgym_integrations.environments.textworld_express").joinpath(f"{name}_worlds.tsv.xz"))
        )
        target.write_bytes(lzma.compress("".join(lines).encode(), preset=9))
        print(f"{target}: {len(lines)} worlds")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
