"""A shop, ready to be visited: its products, their prices, the search over them, and its customers' goals.

One shop per catalogue and process is built and shared by all episodes: nothing in it changes.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from pathlib import Path
from random import Random

from dreamgym.errors import InvalidInput
from dreamgym_integrations.environments.webshop.catalogue import Product, draw_prices, load
from dreamgym_integrations.environments.webshop.goals import Goal, goals
from dreamgym_integrations.environments.webshop.search import SearchIndex

HITS = 50
HELD_OUT = (500, 1500)
"""Goals before the first number are test, those before the second are dev, the others are train, as usual."""

GOALS_OF_A_PRODUCT = 4
"""Most goals of one product if a large catalogue is split by product."""


class Shop:
    """Products, prices, goals and the search, shared by all episodes."""

    def __init__(self, products: list[Product], seed: int) -> None:
        """Draw prices and goals with the seed. Raises MissingPackage, and InvalidInput if there are no goals."""
        random = Random(seed)
        self.products = {product.asin: product for product in products}
        self.prices = draw_prices(products, random)
        self.goals = goals(products, self.prices, random)
        if not self.goals:
            raise InvalidInput("the catalogue has no goals: none of its products has an 'instruction' in items_ins_v2")
        self._index = SearchIndex((product.asin, product.document) for product in products)

    def search(self, query: str) -> list[Product]:
        """The products that the search finds, the best first."""
        return [self.products[asin] for asin in self._index.search(query, HITS)]

    def split(self, name: str, *, by_product: bool = False) -> list[tuple[int, Goal]]:
        """The goals of `train`, `dev` or `test` with their numbers.

        Goals are split by number, as in the original. A catalogue too small for that is split by product: of each five
        products, one is test and one is dev.

        Args:
            name: name of the split.
            by_product: split by product in any case. Of a large catalogue, keep only the first GOALS_OF_A_PRODUCT goals
                of each product: one product has 558.
        """
        numbered = list(enumerate(self.goals))
        is_large = len(numbered) > 2 * HELD_OUT[1]
        if is_large and not by_product:
            test, dev = HELD_OUT
            return {"test": numbered[:test], "dev": numbered[test:dev], "train": numbered[dev:]}[name]
        wanted = [product.asin for product in self.products.values() if product.demand is not None]
        place = {asin: ("test", "dev", "train", "train", "train")[at % 5] for at, asin in enumerate(wanted)}
        found = [(number, goal) for number, goal in numbered if place[goal.product.asin] == name]
        if not is_large:
            return found
        earlier = Counter[str]()
        few = []
        for number, goal in found:
            earlier[goal.product.asin] += 1
            if earlier[goal.product.asin] <= GOALS_OF_A_PRODUCT:
                few.append((number, goal))
        return few


@lru_cache(maxsize=4)
def shop(folder: Path | None, seed: int) -> Shop:
    """The shop of a catalogue folder, or of our own small catalogue. Raises InvalidInput, MissingPackage."""
    return Shop(load(folder), seed)
