"""The synthetic goals of WebShop, in the order in which its splits count them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product as combinations
from random import Random

from dreamgym_integrations.environments.webshop.catalogue import Product

PRICE_LIMITS = tuple(10.0 * step for step in range(1, 100))
NO_LIMIT = 1_000_000.0
SHUFFLE_SEED = 233


@dataclass(frozen=True, slots=True)
class Goal:
    """One goal: a product with chosen options, below a price."""

    product: Product
    options: Mapping[str, str]
    price_limit: float

    @property
    def instruction(self) -> str:
        options = ", and ".join(f"{name}: {value}" for name, value in self.options.items())
        chosen = f" with {options}" if options else ""
        limit = "" if self.price_limit == NO_LIMIT else f", and price lower than {self.price_limit:.2f} dollars"
        return f"{self.product.demand}{chosen}{limit}"


def goals(products: Sequence[Product], prices: Mapping[str, float], random: Random) -> list[Goal]:
    """All goals, shuffled. `random` must be the generator that drew the prices, in its state after that."""
    ordered = [goal for product in products for goal in _goals_of(product, prices[product.asin], random)]
    Random(SHUFFLE_SEED).shuffle(ordered)
    return ordered


def _goals_of(product: Product, price: float, random: Random) -> Iterator[Goal]:
    """One goal for each way to choose all options."""
    if product.demand is None:
        return
    above = [limit for limit in PRICE_LIMITS if limit > price][:4]
    limit = max(random.sample(above, 2)) if len(above) >= 2 else NO_LIMIT
    names = sorted(product.options)
    for values in combinations(*(product.options[name] for name in names)):
        yield Goal(product, dict(zip(names, values, strict=True)), limit)
