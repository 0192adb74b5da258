"""Writes `coin_worlds.tsv.xz`, the task list of `coin`: split, seed and first view of each world.

    python -m dreamgym_integrations.environments.textworld.coin_worlds

A world that an earlier seed already gave is left out, so that no test world was ever trained on.
"""

from __future__ import annotations

import asyncio
import lzma
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from dreamgym.environment import Environment
from dreamgym.types import Task, ToolCall
from dreamgym_integrations.environments.textworld.coin import COIN
from dreamgym_integrations.environments.textworld.game_environment import GameEnvironment
from dreamgym_integrations.environments.textworld.worlds import SEEDS

_BACK = {"north": "south", "east": "west", "south": "north", "west": "east"}


async def places(environment: Environment, seed: int) -> tuple[str, ...]:
    """Every place of one world, the first one first, found by walking through it."""
    start = await environment.reset(Task(id="walk", env="coin", instruction="", metadata={"seed": seed}))
    seen: list[str] = []
    await _walk(environment, start.state, seen)
    return tuple(seen)


async def _walk(environment: Environment, here: str, seen: list[str]) -> None:
    seen.append(here)
    for detail in here.rstrip(".").split(". "):
        side, _, place = detail.partition(": ")
        if place and not any(known.startswith(f"{place}.") for known in seen):
            entered = await environment.step(ToolCall(name="act", arguments={"command": f"move {side}"}))
            await _walk(environment, entered.state, seen)
            await environment.step(ToolCall(name="act", arguments={"command": f"move {_BACK[side]}"}))


async def rows(seeds: dict[str, Sequence[int]]) -> AsyncIterator[str]:
    """The lines of the task list."""
    environment = GameEnvironment(COIN)
    worlds: set[frozenset[str]] = set()
    for split, numbers in seeds.items():
        for seed in numbers:
            world = await places(environment, seed)
            if frozenset(world) not in worlds:
                worlds.add(frozenset(world))
                yield f"{split}\t{seed}\t{world[0]}\n"
    await environment.close()


async def _main() -> None:
    text = "".join([row async for row in rows({split: list(numbers) for split, numbers in SEEDS.items()})])
    target = Path(__file__).with_name("coin_worlds.tsv.xz")
    target.write_bytes(lzma.compress(text.encode(), preset=9))
    print(f"{target}: {text.count(chr(10))} worlds")


if __name__ == "__main__":
    asyncio.run(_main())
