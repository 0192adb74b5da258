"""Ways to visit the shop, good and deliberately bad.

The expert knows the product that the goal was made from, as the original's oracle does. Apart from that players read
only what an agent reads. So they visit a simulated shop as well, and recover from a slip.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from random import Random

from dreamgym.environment import Behaviour, Environment
from dreamgym.types import StepResult, ToolCall
from dreamgym_integrations.environments.base import graded, mixed
from dreamgym_integrations.environments.webshop.goals import Goal
from dreamgym_integrations.environments.webshop.visit import BUY, JOINT, NEXT, PREVIOUS, RESULTS

LAST_PAGE = 5
MALFORMED = ("add to cart", "checkout", "item 1", "buy", "next page", "back", "filter by price", "sort by rating", "")
IMPOSSIBLE_SHARE = 0.25
"""Share of clicks on elements that are not on the page, among the random actions of bad play."""
_ASIN = re.compile(r"[A-Z0-9]{10}")
_PAGE = re.compile(r"Page (\d{1,9}) \(Total results: \d{1,9}\)")


class Customer:
    """Remembers what was seen so far and suggests clicks."""

    def __init__(self, goal: Goal, random: Random) -> None:
        self._goal = goal
        self._random = random
        self._texts: list[str] = []
        self._chosen: dict[str, str] = {}
        self._seen: dict[str, None] = {}

    def see(self, result: StepResult) -> None:
        self._texts = result.observation.split(JOINT)
        if "Buy Now" in self._texts:
            self._seen.update(dict.fromkeys(self.possible()))
        elif self._number or "Search" in self._texts:
            self._chosen = {}

    def shopper(self) -> ToolCall:
        """Search for the whole instruction, then play as `expert`, which recognizes the wanted product."""
        return _search(self._goal.instruction.strip()) if "Search" in self._texts else self.expert()

    def expert(self) -> ToolCall:
        """Search for the title of the wanted product, open it, choose its options, buy it."""
        product = self._goal.product
        if "Search" in self._texts:
            return _search(product.title)
        if self._number:
            if product.asin in self._texts:
                return self._click(product.asin.lower())
            return self._click(NEXT if self._number < LAST_PAGE else RESULTS)
        if "Buy Now" not in self._texts:
            return self._click(PREVIOUS)
        if product.title.strip() not in self._texts:
            return self._click(RESULTS)
        for name, value in self._goal.options.items():
            if self._chosen.get(name) != value:
                return self._click(value)
        return self._click(BUY)

    def rule(self) -> ToolCall:
        """Search for the whole instruction, open the first product, choose the wanted options, and buy."""
        if "Search" in self._texts:
            return _search(self._goal.instruction.strip())
        if self._number:
            first = next((text for text in self._texts if _ASIN.fullmatch(text)), RESULTS)
            return self._click(first.lower())
        if "Buy Now" not in self._texts:
            return self._click(PREVIOUS)
        for name, value in self._goal.options.items():
            if self._chosen.get(name) != value and value in self._texts:
                return self._choose(name, value)
        return self._click(BUY)

    def random(self, impossible: float) -> ToolCall:
        """A random click, with probability `impossible` on a missing element; or a search for words of the goal."""
        if self._random.random() < impossible:
            return self._click(self._random.choice([*MALFORMED, *self._seen]))
        if "Search" in self._texts:
            words = self._goal.instruction.removeprefix("Find me ").split()
            start = self._random.randrange(len(words))
            return _search(" ".join(words[start : start + self._random.randint(1, 8)]))
        return self._click(self._random.choice(self.possible()))

    def possible(self) -> list[str]:
        """Elements that the page suggests to click. On an item page also names of options, which are refused."""
        buttons = [text.lower() for text in ("Back to Search", "< Prev", "Next >") if text in self._texts]
        if self._number:
            return [*buttons, *(text.lower() for text in self._texts if _ASIN.fullmatch(text))]
        if "Buy Now" not in self._texts:
            return buttons or [RESULTS]
        last = self._texts.index("Buy Now")
        first = self._texts.index("< Prev") + 1 if "< Prev" in self._texts else last
        return [*buttons, *(text.lower() for text in self._texts[first : last + 1] if ": " not in text)]

    @property
    def _number(self) -> int:
        """Number of the open page of results, counted from 1; 0 if none is open."""
        return next((int(page[1]) for page in map(_PAGE.fullmatch, self._texts) if page), 0)

    def _choose(self, name: str, value: str) -> ToolCall:
        self._chosen[name] = value
        return ToolCall(name="click", arguments={"element": value})

    def _click(self, element: str) -> ToolCall:
        for name, values in self._goal.product.options.items():
            if "Buy Now" in self._texts and element in values:
                self._chosen[name] = element
        return ToolCall(name="click", arguments={"element": element})


def behaviours(goal_of: Callable[[str], Goal]) -> Mapping[str, Behaviour]:
    """The behaviours by name; `goal_of` finds the goal by its instruction."""

    async def play(
        start: StepResult,
        environment: Environment,
        random: Random,
        good: float,
        slips: float,
        *,
        best: Callable[[Customer], ToolCall],
    ) -> None:
        customer, result = Customer(goal_of(start.observation.split(JOINT)[2]), random), start
        while not result.done:
            customer.see(result)
            call = best(customer) if random.random() < good else customer.random(slips)
            result = await environment.step(call)

    visit = partial(play, best=Customer.expert)
    shop = partial(play, best=Customer.shopper)
    by_rule = partial(play, best=Customer.rule)
    return {
        "rule": graded(by_rule, 1.0),
        "rule_50": graded(by_rule, 0.5, IMPOSSIBLE_SHARE),
        "mixed_rule": mixed(by_rule, IMPOSSIBLE_SHARE, shares=(0.3, 0.5, 0.8, 0.95)),
        "shopper": graded(shop, 1.0),
        "mixed_shopper": mixed(shop, IMPOSSIBLE_SHARE, shares=(0.3, 0.5, 0.8, 0.95)),
        "expert": graded(visit, 1.0),
        "expert_80": graded(visit, 0.8),
        "noisy": graded(visit, 0.35, 0.1),
        "random": graded(visit, 0.0, IMPOSSIBLE_SHARE),
        "mixed": mixed(visit, IMPOSSIBLE_SHARE, shares=(0.0, 0.5, 0.8, 0.95)),
    }


def _search(query: str) -> ToolCall:
    return ToolCall(name="search", arguments={"query": query})
