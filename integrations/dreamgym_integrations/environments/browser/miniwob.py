"""MiniWoB++ (Liu et al., 2018): small pages with a task each, drawn by a seed, in the package `miniwob`.

What a page asks for is known only when it was opened, so each was looked at once: `miniwob_worlds.jsonl.xz` has a line
for each world, with its instruction and the page that it begins with. A world is a page and a seed: the seeds below 10
are training, 10 to 12 development and 13 to 15 test, each without the worlds that an earlier split has.

    python -m dreamgym_integrations.environments.browser.miniwob OUT.jsonl.xz      looks again at all of them
"""

from __future__ import annotations

import asyncio
import lzma
import os
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from dreamgym.errors import MissingPackage, UnknownName
from dreamgym.types import Frozen, JsonObject, Task
from dreamgym_integrations.environments.browser.actions import TOOLS
from dreamgym_integrations.environments.browser.environment import BrowserEnvironment, Manner, World
from dreamgym_integrations.environments.browser.state import state_of
from dreamgym_integrations.environments.browser.tree import page_of

PAGES = (
    *("click-test-2", "click-button", "click-button-sequence", "click-link", "click-option", "click-checkboxes"),
    *("click-checkboxes-transfer", "click-checkboxes-large", "click-dialog", "click-dialog-2", "click-tab"),
    *("click-widget", "focus-text-2", "enter-text", "enter-text-2", "enter-password", "enter-date", "enter-time"),
    *("login-user", "choose-list", "read-table", "simple-algebra", "simple-arithmetic", "copy-paste", "find-word"),
    *("odd-or-even", "unicode-test", "text-transform"),
)
"""Of the package's 125: those that a seed decides alone, without a clock, and that a script can play."""
SEEDS = {"train": range(10), "dev": range(10, 13), "test": range(13, 16)}
SETTLE_S = 0.05
"""BrowserGym waits half a second; these pages answer at once."""


class MiniwobWorld(Frozen):
    """One page as it begins."""

    page: str
    seed: int
    split: str
    instruction: str
    observation: str

    def task(self, env: str) -> Task:
        """The world as a task."""
        return Task(
            id=f"{env}-{self.page}-{self.seed}",
            env=env,
            instruction=self.instruction,
            initial_state=state_of(self.observation, self.instruction),
            metadata={"page": self.page, "seed": self.seed, "split": self.split},
        )


@cache
def miniwob_worlds() -> Sequence[MiniwobWorld]:
    """All that were looked at."""
    packed = files("dreamgym_integrations.environments.browser").joinpath("miniwob_worlds.jsonl.xz").read_bytes()
    return [MiniwobWorld.model_validate_json(line) for line in lzma.decompress(packed).decode().splitlines()]


def manner(settle_s: float | None, timeout_s: float, tools: Sequence[JsonObject] = TOOLS) -> Manner:
    """How these pages are played. Raises MissingPackage."""
    try:
        import browsergym.miniwob  # noqa: F401
        import miniwob  # noqa: F401
    except ImportError as error:
        raise MissingPackage("the environment 'miniwob'", "browser") from error
    return Manner(
        tools=tools,
        world_of=world_of,
        settle_s=SETTLE_S if settle_s is None else settle_s,
        timeout_s=timeout_s,
        shows_addresses=False,
    )


def world_of(task: Task) -> World:
    """BrowserGym's class for a task. Raises UnknownName."""
    from browsergym.miniwob import all as pages

    classes = {kind.subdomain: kind for kind in vars(pages).values() if hasattr(kind, "subdomain")}
    page = str(task.metadata.get("page"))
    if page not in classes:
        raise UnknownName("page of MiniWoB", page, classes)
    seed = task.metadata.get("seed")
    return World(
        task=classes[page],
        arguments={"base_url": address()},
        seed=seed if isinstance(seed, int) else 0,
        goal=task.instruction or None,
    )


def address() -> str:
    """Where the pages are: at MINIWOB_URL where that is set, else in the installed package."""
    import miniwob

    return os.environ.get("MINIWOB_URL") or f"{(Path(miniwob.__file__).parent / 'html' / 'miniwob').as_uri()}/"


async def look() -> Iterator[MiniwobWorld]:
    """Open every page with every seed; a world that was seen before is left out."""
    environment = BrowserEnvironment(manner(None, timeout_s=60))
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
    return iter(found.values())


if __name__ == "__main__":
    lines = "".join(f"{world.model_dump_json()}\n" for world in asyncio.run(look()))
    Path(sys.argv[1]).write_bytes(lzma.compress(lines.encode()))
