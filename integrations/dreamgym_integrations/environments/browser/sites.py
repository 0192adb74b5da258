"""The tasks of WebArena (Zhou et al., 2024) and WebArena-Lite (Liu et al., 2024), on sites that the user runs.

The tasks are read from the files that their authors publish, from one folder or one file:

    test_webarena_lite.raw.json            the 165 tasks; all of them are the test split of `webarena_lite`
    webarena_812_test.raw.json, or .xz     the 812 tasks (also as test.raw.json); 647 of them are not among the 165

`webarena_lite` trains on those 647, as the paper does; every tenth template of them is dev. Its train and test tasks
may share a template. `webarena` keeps templates apart: of ten templates, one is dev and two are test.
"""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from pydantic import Field, ValidationError

from dreamgym.environment import Behaviour, Environment, EnvironmentSpec, first_reason
from dreamgym.errors import InvalidInput, MissingPackage
from dreamgym.types import Frozen, JsonObject, Task
from dreamgym_integrations.environments.base import check_goal, check_split, checked
from dreamgym_integrations.environments.browser import RULES, BrowserOptions
from dreamgym_integrations.environments.browser.checks import Checks
from dreamgym_integrations.environments.browser.environment import BrowserEnvironment, TaskSetup
from dreamgym_integrations.environments.browser.players import BEHAVIOURS

SITES = ("shopping", "shopping_admin", "reddit", "gitlab", "wikipedia", "map", "homepage")
LITE_FILES = ("test_webarena_lite.raw.json",)
FULL_FILES = ("webarena_812_test.raw.json", "test.raw.json")
VARIABLES = {"webarena": "DREAMGYM_WEBARENA", "webarena_lite": "DREAMGYM_WEBARENA_LITE"}


class SiteTask(Frozen):
    """The fields of a task row that are used."""

    task_id: int
    old_task_id: int | None = None
    sites: tuple[str, ...] = Field(min_length=1)
    start_url: str
    intent: str = Field(min_length=1)
    intent_template_id: int = 0
    require_login: bool = True
    eval: JsonObject

    def task(self, env: str, split: str) -> Task:
        """The row as a task; the addresses stay placeholders."""
        return Task(
            id=f"{env}-{self.task_id if self.old_task_id is None else self.old_task_id}",
            env=env,
            instruction=self.intent,
            metadata={"split": split, "site_task": self.model_dump(mode="json")},
        )


def site_tasks(name: str, data: Path | None) -> Mapping[str, Sequence[Task]]:
    """The tasks of each split. Raises InvalidInput if there is no file, or if it is malformed."""
    place = data or (Path(os.environ[VARIABLES[name]]) if os.environ.get(VARIABLES[name]) else None)
    if place is None:
        raise InvalidInput(
            f"{name} needs the file of its tasks: set [real] data in env.toml, or the variable {VARIABLES[name]}, "
            f"to a folder with {LITE_FILES[0] if name == 'webarena_lite' else FULL_FILES[0]}"
        )
    env = name.replace("_", "-")
    split_of: Mapping[str, Sequence[SiteTask]]
    if name == "webarena_lite":
        lite = _read(file := _file(place, LITE_FILES))
        if any(row.old_task_id is None for row in lite):
            raise InvalidInput(
                f"{file}: expected the tasks of WebArena-Lite, with an old_task_id; use webarena instead"
            )
        known = {row.old_task_id for row in lite}
        full = _file(place, FULL_FILES) if place.is_dir() else None
        others = [row for row in (_read(full) if full and full.exists() else ()) if row.task_id not in known]
        dev = _tenths(others, {0})
        split_of = {"train": [row for row in others if row not in dev], "dev": dev, "test": lite}
    else:
        rows = _read(file := _file(place, FULL_FILES))
        if any(row.old_task_id is not None for row in rows):
            raise InvalidInput(
                f"{file}: expected all tasks of WebArena, got those of its test: use webarena_lite instead"
            )
        split_of = {
            "train": _tenths(rows, {3, 4, 5, 6, 7, 8, 9}),
            "dev": _tenths(rows, {0}),
            "test": _tenths(rows, {1, 2}),
        }
    return {split: [row.task(env, split) for row in rows] for split, rows in split_of.items()}


def _tenths(rows: Sequence[SiteTask], which: set[int]) -> list[SiteTask]:
    templates = sorted({row.intent_template_id for row in rows})
    chosen = {template for place, template in enumerate(templates) if place % 10 in which}
    return [row for row in rows if row.intent_template_id in chosen]


def _file(place: Path, names: Sequence[str]) -> Path:
    if not place.is_dir():
        return place
    found = (place / f"{name}{packed}" for name in names for packed in ("", ".xz"))
    return next((file for file in found if file.is_file()), place / names[0])


def _read(file: Path) -> list[SiteTask]:
    try:
        content = file.read_bytes()
        rows = json.loads(lzma.decompress(content) if file.suffix == ".xz" else content)
    except (OSError, ValueError, lzma.LZMAError, EOFError) as error:
        raise InvalidInput(f"{file}: expected the tasks of WebArena as a JSON list: {error}") from error
    if not isinstance(rows, list) or not rows:
        raise InvalidInput(f"{file}: expected the tasks of WebArena as a JSON list, got {type(rows).__name__}")
    read = []
    for number, row in enumerate(rows):
        try:
            wanted = {name: row[name] for name in SiteTask.model_fields if name in row}
            task = SiteTask.model_validate(wanted)
            Checks.of(task.eval)
        except (ValidationError, InvalidInput, TypeError) as error:
            raise InvalidInput(f"{file}, row {number}: {first_reason(error)}") from error
        read.append(task)
    return read


def addresses(given: Mapping[str, str]) -> dict[str, str]:
    """The addresses of the sites: as given, else from WA_SHOPPING, WA_REDDIT, …; without a slash at the end."""
    found = {site: given.get(site) or os.environ.get(f"WA_{site.upper()}", "") for site in SITES}
    return {site: address.rstrip("/") for site, address in found.items() if address}


def site_worlds(given: Mapping[str, str]) -> Callable[[Task], TaskSetup]:
    """A function that returns how BrowserGym plays a task on these sites. Raises MissingPackage."""
    try:
        from dreamgym_integrations.environments.browser.site_task import PlayedTask
    except ImportError as error:
        raise MissingPackage("a browser environment", "browser") from error

    def world_of(task: Task) -> TaskSetup:
        row = SiteTask.model_validate(task.metadata.get("site_task"))
        check_goal(task, row.intent)
        known = addresses(given)
        text = row.model_dump_json()
        needed = {*row.sites, *(site for site in SITES if f"__{site.upper()}__" in text)}
        if missing := sorted(needed - known.keys()):
            variables = ", ".join(f"WA_{site.upper()}" for site in missing)
            raise InvalidInput(
                f"task {task.id!r} plays on {', '.join(missing)}: set {variables} to the address of your site"
            )
        for site, address in known.items():
            text = text.replace(f"__{site.upper()}__", json.dumps(address)[1:-1])
        return TaskSetup(task=PlayedTask, arguments={"row": SiteTask.model_validate_json(text), "addresses": known})

    return world_of


class Sites:
    """WebArena as a real environment. The addresses of the sites are looked up when a task is played."""

    behaviours: Mapping[str, Behaviour] = BEHAVIOURS

    def __init__(self, name: str, options: BrowserOptions) -> None:
        self._name = name
        self._options = options

    @cached_property
    def spec(self) -> EnvironmentSpec:
        return EnvironmentSpec(
            name=self._name.replace("_", "-"),
            description="Tasks on a shop, its administration, a forum, a code host and a map.",
            rules=RULES,
            tools_list=({"tools": list(self._options.tools)},),
            max_steps=self._options.max_steps or 30,
            tasks=tuple(self.tasks("train")),
            adapter=self._name,
            options=self._options.given,
        )

    @cached_property
    def _tasks(self) -> Mapping[str, Sequence[Task]]:
        return site_tasks(self._name, self._options.data)

    def tasks(self, split: str) -> Sequence[Task]:
        check_split(split)
        return self._tasks[split]

    def create(self) -> Environment:
        """A new instance, with a browser that nobody else uses."""
        return BrowserEnvironment(self._options, site_worlds(self._options.sites), settle_s=0.5, shows_addresses=True)


def webarena(options: JsonObject) -> Sites:
    """Entry point `webarena`: the 812 tasks, split by template."""
    return Sites("webarena", checked(BrowserOptions, "webarena", options))


def webarena_lite(options: JsonObject) -> Sites:
    """Entry point `webarena_lite`: the 165 tasks for test, the other 647 of WebArena for train and dev."""
    return Sites("webarena_lite", checked(BrowserOptions, "webarena_lite", options))
