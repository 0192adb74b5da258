"""A real web browser as an environment, through BrowserGym: MiniWoB++, WebArena and WebArena-Lite by one adapter.

What an agent reads is the page's accessibility tree with the elements' ids; what is kept as the state is the part of it
that matters for the task (see `state`). Each environment has a Chromium of its own.

    miniwob         pages in the installed package; nothing else is needed
    webarena        tasks from a file that `[real] data = "…"` or DREAMGYM_WEBARENA names, played on sites of your own
    webarena_lite   the same with the 165 tasks of WebArena-Lite; the file is named by DREAMGYM_WEBARENA_LITE
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from pydantic import Field, ValidationError

from dreamgym.environment import Behaviour, Environment, EnvironmentSpec, first_reason
from dreamgym.errors import InvalidInput, UnknownName
from dreamgym.types import Frozen, JsonObject, Task
from dreamgym_integrations.environments.browser.actions import NAVIGATION_TOOLS, TOOLS
from dreamgym_integrations.environments.browser.environment import BrowserEnvironment, Manner
from dreamgym_integrations.environments.browser.miniwob import PAGES, manner, miniwob_worlds
from dreamgym_integrations.environments.browser.players import BEHAVIOURS
from dreamgym_integrations.environments.browser.sites import site_tasks, site_worlds

SPLITS = ("train", "dev", "test")
RULES = (
    "The state is what matters of a web page: its elements as [id] role: 'name' value='…' with marks, and its texts. "
    "Ids stay the same while the page does. A call that names an id that is not on the page is refused with "
    "'ValueError: Could not find element with bid \"…\"' and changes nothing. fill changes a value, click presses, "
    "checks or follows. The task ends when the page takes its answer, and is a success if it was the right one."
)


class BrowserOptions(Frozen):
    """What an environment folder may set under [real]."""

    max_steps: int | None = Field(default=None, ge=1)
    """None: 20 on MiniWoB, 30 on sites."""
    pages: tuple[str, ...] = ()
    """Only these pages of MiniWoB."""
    data: Path | None = None
    """The file of WebArena's tasks."""
    sites: dict[str, str] = Field(default_factory=dict)
    """Address by the name of the site, instead of the variables WA_SHOPPING, WA_REDDIT, …"""
    navigation: bool = False
    """Six actions more than the paper's thirteen: addresses and tabs."""
    uploads: Path | None = None
    """The one folder that files may be uploaded from."""
    settle_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """How long a page is left alone after an action; None: 0.05 s on MiniWoB, 0.5 s on sites."""
    timeout_s: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """How long a reset or a step may take."""


class Miniwob:
    """MiniWoB++ as an entry point gives it."""

    behaviours: Mapping[str, Behaviour] = BEHAVIOURS

    def __init__(self, options: BrowserOptions) -> None:
        for page in options.pages:
            if page not in PAGES:
                raise UnknownName("page of MiniWoB", page, PAGES)
        self._options = options

    @cached_property
    def spec(self) -> EnvironmentSpec:
        """The description, with the training tasks."""
        max_steps = self._options.max_steps or 20
        return EnvironmentSpec(
            name="miniwob",
            description="Small web pages with one task each: buttons, lists, forms, tables.",
            rules=RULES,
            tools_list=({"tools": list(_tools(self._options))},),
            max_steps=max_steps,
            deterministic=True,
            tasks=tuple(self.tasks("train")),
            adapter="miniwob",
            options=_given(self._options),
        )

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split; no world occurs twice."""
        if split not in SPLITS:
            raise UnknownName("split", split, SPLITS)
        pages = self._options.pages or PAGES
        chosen = [world for world in miniwob_worlds() if world.split == split and world.page in pages]
        return [world.task("miniwob") for world in sorted(chosen, key=lambda world: world.seed)]

    def create(self) -> Environment:
        """A browser that nobody else uses."""
        options = self._options
        return BrowserEnvironment(manner(options.settle_s, options.timeout_s, _tools(options)))


class Sites:
    """WebArena's sites as an entry point gives them; where they are, is known when one is played."""

    behaviours: Mapping[str, Behaviour] = BEHAVIOURS

    def __init__(self, name: str, options: BrowserOptions) -> None:
        self._name = name
        self._options = options

    @cached_property
    def spec(self) -> EnvironmentSpec:
        """The description, with the training tasks."""
        return EnvironmentSpec(
            name=self._name.replace("_", "-"),
            description="Tasks on a shop, its administration, a forum, a code host and a map.",
            rules=RULES,
            tools_list=({"tools": list(_tools(self._options))},),
            max_steps=self._options.max_steps or 30,
            tasks=tuple(self.tasks("train")),
            adapter=self._name,
            options=_given(self._options),
        )

    @cached_property
    def _tasks(self) -> Mapping[str, Sequence[Task]]:
        return site_tasks(self._name, self._options.data)

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split (see `sites`)."""
        if split not in SPLITS:
            raise UnknownName("split", split, SPLITS)
        return self._tasks[split]

    def create(self) -> Environment:
        """A browser that nobody else uses."""
        options = self._options
        return BrowserEnvironment(
            Manner(
                tools=_tools(options),
                world_of=site_worlds(options.sites),
                settle_s=0.5 if options.settle_s is None else options.settle_s,
                timeout_s=options.timeout_s,
                shows_addresses=True,
                uploads=options.uploads,
            )
        )


def _tools(options: BrowserOptions) -> Sequence[JsonObject]:
    return (*TOOLS, *NAVIGATION_TOOLS) if options.navigation else TOOLS


def _given(options: BrowserOptions) -> JsonObject:
    return options.model_dump(mode="json", exclude_unset=True)


def _checked(name: str, options: JsonObject) -> BrowserOptions:
    try:
        return BrowserOptions.model_validate(options)
    except ValidationError as error:
        raise InvalidInput(f"environment {name!r}, its options: {first_reason(error)}") from error


def miniwob(options: JsonObject) -> Miniwob:
    """Entry point `miniwob`. Raises InvalidInput for an option that it does not know."""
    return Miniwob(_checked("miniwob", options))


def webarena(options: JsonObject) -> Sites:
    """Entry point `webarena`: the 812 tasks, of which those of WebArena-Lite are the test."""
    return Sites("webarena", _checked("webarena", options))


def webarena_lite(options: JsonObject) -> Sites:
    """Entry point `webarena_lite`: the 165 tasks."""
    return Sites("webarena_lite", _checked("webarena_lite", options))
