"""MiniWoB++ (Liu et al., 2018): small pages with a task each, drawn by a seed, in the package `miniwob`.

The instruction of a page is known only after the page is opened, so each was opened once: `miniwob_worlds.jsonl.xz` has
a line for each world, with its instruction and its first page. A world is a page and a seed. Seeds below 10 are train,
10 to 12 are dev and 13 to 15 are test. Each split leaves out the worlds of earlier splits.

`benchmarks/tasklists/pages.py` opens all of them again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path

from dreamgym.environment import Behaviour, Environment, EnvironmentSpec
from dreamgym.errors import MissingPackage, UnknownName
from dreamgym.types import Frozen, JsonObject, Task
from dreamgym_integrations.environments.base import check_split, checked, packed_lines
from dreamgym_integrations.environments.browser import RULES, BrowserOptions
from dreamgym_integrations.environments.browser.environment import BrowserEnvironment, TaskSetup
from dreamgym_integrations.environments.browser.players import BEHAVIOURS
from dreamgym_integrations.environments.browser.state import state_of

PAGES = (
    *("click-test-2", "click-button", "click-button-sequence", "click-link", "click-option", "click-checkboxes"),
    *("click-checkboxes-transfer", "click-checkboxes-large", "click-dialog", "click-dialog-2", "click-tab"),
    *("click-widget", "focus-text-2", "enter-text", "enter-text-2", "enter-password", "enter-date", "enter-time"),
    *("login-user", "choose-list", "read-table", "simple-algebra", "simple-arithmetic", "copy-paste", "find-word"),
    *("odd-or-even", "unicode-test", "text-transform"),
)
"""The pages, among the package's 125, that depend on the seed alone, not on a clock, and that a script can play."""
SEEDS = {"train": range(10), "dev": range(10, 13), "test": range(13, 16)}
SETTLE_S = 0.05
"""BrowserGym waits half a second; these pages answer at once."""


class MiniwobWorld(Frozen):
    """One world: a page with a seed, and how it begins."""

    page: str
    seed: int
    split: str
    instruction: str
    observation: str

    def task(self, env: str) -> Task:
        return Task(
            id=f"{env}-{self.page}-{self.seed}",
            env=env,
            instruction=self.instruction,
            initial_state=state_of(self.observation, self.instruction),
            metadata={"page": self.page, "seed": self.seed, "split": self.split},
        )


@cache
def miniwob_worlds() -> Sequence[MiniwobWorld]:
    """The packed task list."""
    lines = packed_lines("dreamgym_integrations.environments.browser", "miniwob_worlds.jsonl.xz")
    return [MiniwobWorld.model_validate_json(line) for line in lines]


def world_of(task: Task) -> TaskSetup:
    """How BrowserGym plays a task. Raises UnknownName for an unknown page."""
    import miniwob as package
    from browsergym.miniwob import all as pages

    classes = {kind.subdomain: kind for kind in vars(pages).values() if hasattr(kind, "subdomain")}
    page = str(task.metadata.get("page"))
    if page not in classes:
        raise UnknownName("page of MiniWoB", page, classes)
    seed = task.metadata.get("seed")
    address = os.environ.get("MINIWOB_URL") or f"{(Path(package.__file__).parent / 'html' / 'miniwob').as_uri()}/"
    return TaskSetup(
        task=classes[page],
        arguments={"base_url": address},
        seed=seed if isinstance(seed, int) else 0,
        goal=task.instruction or None,
    )


class Miniwob:
    """MiniWoB++ as a real environment: description, tasks, behaviours and new instances."""

    behaviours: Mapping[str, Behaviour] = BEHAVIOURS

    def __init__(self, options: BrowserOptions) -> None:
        for page in options.pages:
            if page not in PAGES:
                raise UnknownName("page of MiniWoB", page, PAGES)
        self._options = options

    @cached_property
    def spec(self) -> EnvironmentSpec:
        max_steps = self._options.max_steps or 20
        return EnvironmentSpec(
            name="miniwob",
            description="Small web pages with one task each: buttons, lists, forms, tables.",
            rules=RULES,
            tools_list=({"tools": list(self._options.tools)},),
            max_steps=max_steps,
            deterministic=True,
            tasks=tuple(self.tasks("train")),
            adapter="miniwob",
            options=self._options.given,
        )

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split; no world occurs twice."""
        pages = self._options.pages or PAGES
        check_split(split)
        chosen = [world for world in miniwob_worlds() if world.split == split and world.page in pages]
        return [world.task("miniwob") for world in sorted(chosen, key=lambda world: world.seed)]

    def create(self) -> Environment:
        """A new instance, with a browser that nobody else uses. Raises MissingPackage."""
        try:
            import browsergym.miniwob  # noqa: F401
            import miniwob  # noqa: F401
        except ImportError as error:
            raise MissingPackage("the environment 'miniwob'", "browser") from error
        return BrowserEnvironment(self._options, world_of, settle_s=SETTLE_S)


def miniwob(options: JsonObject) -> Miniwob:
    """Entry point `miniwob`. Raises InvalidInput for an unknown option."""
    return Miniwob(checked(BrowserOptions, "miniwob", options))
