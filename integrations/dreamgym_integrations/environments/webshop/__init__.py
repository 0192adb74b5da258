"""WebShop (Yao et al., 2022) as a real environment: buy what the instruction asks for.

The shop is pure Python. It answers as the authors' text environment does, without its Java, browser templates and
tagger. By default it has a small invented catalogue. The option `catalogue`, or the variable DREAMGYM_WEBSHOP, sets a
folder with the authors' `items_shuffle_1000.json` and `items_ins_v2_1000.json`, plain or packed by xz.

Success is a score of 1, as in the original. The score itself, between 0 and 1, is in `info["score"]`. It is never the
reward, because any positive reward at the end counts as a success.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field

from dreamgym.environment import Behaviour, Environment, EnvironmentSpec
from dreamgym.errors import EpisodeFinished, InvalidInput, UnknownName
from dreamgym.types import Frozen, JsonObject, StepResult, Task, ToolCall
from dreamgym_integrations.environments.base import SPLITS, check_goal, check_split, checked
from dreamgym_integrations.environments.webshop.goals import Goal
from dreamgym_integrations.environments.webshop.players import behaviours
from dreamgym_integrations.environments.webshop.reader import WebShopReader
from dreamgym_integrations.environments.webshop.shop import Shop, shop
from dreamgym_integrations.environments.webshop.visit import SEARCH, ShopVisit
from dreamgym_integrations.environments.webshop.wishes import WebShopGoals

CATALOGUE = "DREAMGYM_WEBSHOP"
DESCRIPTION = "A web shop: find the product that the instruction asks for, choose its options, and buy it."
RULES = """A page is its visible texts joined by ` [SEP] `; all but the last page begin with the instruction.
`search` works on every page and answers `Page 1 (Total results: N)` with up to ten products (id, title, price) of at \
most fifty; `next >` and `< prev` turn the pages. Clicking an id opens the product: its options (name, then values), \
title, price, rating, and the buttons Description, Features, Reviews and Buy Now. Clicking an option's value shows the \
same page again and remembers the choice; the page does not show it, the state does (`chosen: …`). Description, \
Features and Reviews open a page with that text, from where `< prev` leads back to the product. `back to search` \
empties everything. A new search and going back to the results forget the choice.
A click on what the page does not have is refused with the same page, unchanged. `buy now` ends the episode with a \
receipt that shows the score; success is a score of 1: product, attributes, all options and price as wished."""
TOOLS: Sequence[JsonObject] = (
    {
        "name": "search",
        "description": "Search the shop for products.",
        "inputSchema": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "A few words, for example: red wool blanket"}},
            "required": ["query"],
            "additionalProperties": False,
        },
    },
    {
        "name": "click",
        "description": "Click something on the page: a button, a product's id, or the value of an option.",
        "inputSchema": {
            "type": "object",
            "properties": {"element": {"type": "string", "description": "What to click, for example: buy now"}},
            "required": ["element"],
            "additionalProperties": False,
        },
    },
)


class WebShopOptions(Frozen):
    """Options of an environment folder, under [real]."""

    catalogue: str | None = None
    """Folder with the authors' data; None: the folder in DREAMGYM_WEBSHOP, or our own small catalogue."""
    seed: int = 0
    """Seed of the prices that are ranges, and of the goals' price limits; the original's goals depend on it too."""
    max_steps: int = Field(default=15, ge=1)
    """The original has no limit; 15 is usual with language models."""
    split: Literal["goals", "products"] = "goals"
    """How the splits are cut. `goals`: by goal, as the original does, so that products occur in several splits.
    `products`: by the wanted product, so that the products of the test are in no other split."""
    attributes: bool = False
    """Products also have a page `Attributes`, which reveals much; the original's `show_attrs`."""


class WebShopEnvironment:
    """Serves one customer at a time. The task fixes the world; the seed of `reset` is ignored."""

    tools: Sequence[JsonObject] = TOOLS

    def __init__(self, shop: Shop, *, show_attributes: bool = False) -> None:
        self._shop = shop
        self._show_attributes = show_attributes
        self._visit: ShopVisit | None = None

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        """Start a visit for the goal with the number `task.metadata["goal"]`.

        Raises InvalidInput if there is no such goal, or if it is not the wish of the task.
        """
        self._visit = None
        number = task.metadata.get("goal")
        if not isinstance(number, int) or not 0 <= number < len(self._shop.goals):
            raise InvalidInput(f"task {task.id!r}: expected a goal below {len(self._shop.goals)}, got {number!r}")
        goal = self._shop.goals[number]
        check_goal(task, goal.instruction)
        if task.instruction.split() != goal.instruction.split():
            raise InvalidInput(
                f"task {task.id!r}: expected the wish {goal.instruction.strip()!r}, which is goal {number} of this "
                f"catalogue, got {task.instruction!r}: play with the catalogue and the seed that the task was made with"
            )
        self._visit = ShopVisit(self._shop, goal, show_attributes=self._show_attributes)
        return self._result(self._visit)

    async def step(self, action: ToolCall) -> StepResult:
        """Search or click. An impossible action is refused with the same page, which is the original's only answer."""
        argument = {"search": "query", "click": "element"}.get(action.name)
        if argument is None:
            raise UnknownName("tool", action.name, ["search", "click"])
        value = action.arguments.get(argument)
        if not isinstance(value, str):
            raise InvalidInput(f"{action.name} expects a string {argument!r}, got {value!r}")
        visit = self._visit
        if visit is None or visit.is_over:
            raise EpisodeFinished("the episode is over or was never started: reset starts one")
        is_done = visit.search(value) if action.name == "search" else visit.click(value)
        return self._result(visit, is_error=not is_done)

    async def close(self) -> None:
        """End the visit; the shop itself stays open for others."""
        self._visit = None

    def _result(self, visit: ShopVisit, *, is_error: bool = False) -> StepResult:
        observation, state = visit.observation, visit.state
        info: JsonObject = {"state": state} if state != observation else {}
        if visit.is_over:
            info |= {"score": visit.score, "parts": visit.parts}
        else:
            search = ["search[…]"] if visit.has_search else []
            info["admissible"] = [*search, *(f"click[{name}]" for name in visit.elements() if name != SEARCH)]
        reward = float(visit.score == 1)
        return StepResult(
            observation=observation, reward=reward, terminated=visit.is_over, is_error=is_error, info=info
        )


class WebShop:
    """WebShop as a real environment: description, tasks, behaviours and new instances."""

    def __init__(self, options: WebShopOptions) -> None:
        self._options = options
        folder = options.catalogue or os.environ.get(CATALOGUE)
        self._folder = Path(folder) if folder else None
        self.behaviours: Mapping[str, Behaviour] = behaviours(self._goal)
        self.reader = WebShopReader(TOOLS)
        self.goals = WebShopGoals()

    @cached_property
    def spec(self) -> EnvironmentSpec:
        options = self._options.model_dump(exclude_defaults=True)
        return EnvironmentSpec(
            name=self._name,
            description=DESCRIPTION,
            rules=RULES,
            tools_list=({"tools": [*TOOLS]},),
            max_steps=self._options.max_steps,
            deterministic=True,
            tasks=tuple(self.tasks("train")),
            adapter="webshop",
            options={**options, "catalogue": str(self._folder.resolve())} if self._folder else options,
        )

    def tasks(self, split: str) -> Sequence[Task]:
        """The goals of a split, in the original's order."""
        check_split(split)
        return self._tasks[split]

    def create(self) -> Environment:
        """A new instance; all instances share one shop."""
        return WebShopEnvironment(self.shop, show_attributes=self._options.attributes)

    @property
    def shop(self) -> Shop:
        """The one shop of this process with these options."""
        return shop(self._folder, self._options.seed)

    @property
    def _name(self) -> str:
        """A name for these options: with other options the same task has another wish, or the pages differ."""
        size = f"-{len(self.shop.products)}" if self._folder else ""
        by_product = "-products" if self._options.split == "products" else ""
        seed = f"-seed{self._options.seed}" if self._options.seed else ""
        return f"webshop{size}{by_product}{seed}{'-attributes' if self._options.attributes else ''}"

    @cached_property
    def _tasks(self) -> Mapping[str, Sequence[Task]]:
        return {
            split: [
                Task(
                    id=f"{self._name}-{split}-{number}",
                    env=self._name,
                    instruction=goal.instruction,
                    initial_state=ShopVisit(self.shop, goal).observation,
                    metadata={"goal": number, "split": split},
                )
                for number, goal in self.shop.split(split, by_product=self._options.split == "products")
            ]
            for split in SPLITS
        }

    @cached_property
    def _goals(self) -> Mapping[str, Goal]:
        return {goal.instruction.strip(): goal for goal in self.shop.goals}

    def _goal(self, instruction: str) -> Goal:
        if instruction not in self._goals:
            raise InvalidInput(
                f"this catalogue has no goal {instruction!r}: play with the options that the tasks were made with"
            )
        return self._goals[instruction]


def webshop_products(options: JsonObject) -> WebShop:
    """Entry point of the shop whose test goals ask for products that are not in training."""
    return webshop({"split": "products", **options})


def webshop(options: JsonObject) -> WebShop:
    """The entry point. Raises InvalidInput for an unknown option."""
    return WebShop(checked(WebShopOptions, "webshop", options))
