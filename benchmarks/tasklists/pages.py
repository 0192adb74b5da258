"""Write the packed task list of MiniWoB++: the instruction and the first view of each page with each seed.

    python benchmarks/tasklists/pages.py

The command opens every page in a browser. A world that an earlier seed already gave is left out. The list is written
into the package.
"""

from __future__ import annotations

import asyncio
import lzma
import sys
from importlib.resources import files
from pathlib import Path

from dreamgym_integrations.environments.browser.miniwob import PAGES, SEEDS, MiniwobWorld, miniwob
from dreamgym_integrations.environments.browser.tree import page_of

from dreamgym.types import Task


async def pages() -> list[MiniwobWorld]:
    """Open every page with every seed."""
    environment = miniwob({}).create()
    found: dict[tuple[str, str], MiniwobWorld] = {}
    for page in PAGES:
        for split, seeds in SEEDS.items():
            for seed in seeds:
                task = Task(id="survey", env="miniwob", instruction="", metadata={"page": page, "seed": seed})
                start = await environment.reset(task)
                world = MiniwobWorld(
                    page=page,
                    seed=seed,
                    split=split,
                    instruction=page_of(start.observation).goal,
                    observation=start.observation.split("\n", 1)[1],
                )
                found.setdefault((world.instruction, world.observation), world)
        sys.stderr.write(f"{page}: {sum(world.page == page for world in found.values())} worlds\n")
    await environment.close()
    return list(found.values())


if __name__ == "__main__":
    lines = "".join(f"{world.model_dump_json()}\n" for world in asyncio.run(pages()))
    target = Path(str(files("dreamgym_integrations.environments.browser").joinpath("miniwob_worlds.jsonl.xz")))
    target.write_bytes(lzma.compress(lines.encode()))
    print(f"{target}: {lines.count(chr(10))} worlds")
