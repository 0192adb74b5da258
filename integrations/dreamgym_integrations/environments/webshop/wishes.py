"""Goals that were not recorded: a product that was bought with success, with other options and another price limit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import prod
from random import Random

from dreamgym.goals import PageGoal
from dreamgym.state import as_object
from dreamgym.types import JsonObject, ToolCall
from dreamgym_integrations.environments.webshop.goals import PRICE_LIMITS
from dreamgym_integrations.environments.webshop.reward import can_be_fulfilled
from dreamgym_integrations.environments.webshop.visit import BUY

LIMITS = 4
"""The price limit of a goal is one of so many steps above the price, as in the original."""
MOST = 1_000
"""Most goals that are made from one."""


class WebShopGoals:
    """WebShop's goals, see `dreamgym.goals.PageGoals`, without those that the shop's score does not count as fulfilled.

    Raises:
        MissingPackage: the package that compares options is not installed.
    """

    def proposals(self, instruction: str, state: JsonObject, draw: Random) -> Iterator[PageGoal]:
        asin, options, price = "", defaultdict[str, list[str]](list), 0.0
        for name, shown in as_object(state["products"]).items():
            asin, price = name, float(str(as_object(shown)["price"]))
        for value, link in as_object(state["links"]).items():
            if as_object(link)["kind"] == "option":
                option, _, _ = str(as_object(link)["text"]).partition(": ")
                options[option].append(value)
        thing = instruction.strip().partition(", and price lower than ")[0]
        for option in options:  # what the thing is, without its options
            thing = thing.partition(f" with {option}: ")[0]
        names = sorted(options)
        limits = [limit for limit in PRICE_LIMITS if limit > price][:LIMITS]
        sizes = [len(limits), *(len(options[name]) for name in names)]
        for number in draw.sample(range(prod(sizes)), min(prod(sizes), MOST)):
            limit, *values = _digits(number, sizes)
            chosen = {name: options[name][value] for name, value in zip(names, values, strict=True)}
            wished = ", and ".join(f"{name}: {value}" for name, value in chosen.items())
            with_options = f" with {wished}" if wished else ""
            asked = f"{thing}{with_options}, and price lower than {limits[limit]:.2f} dollars"
            if asked != instruction.strip() and can_be_fulfilled(chosen):
                yield PageGoal(asked, _check(asin, chosen), _way(asked, asin, chosen))


def _digits(number: int, sizes: Sequence[int]) -> list[int]:
    """Split a number into one index for each of some lists, of these sizes."""
    digits = []
    for size in sizes:
        number, digit = divmod(number, size)
        digits.append(digit)
    return digits


def _check(asin: str, chosen: dict[str, str]) -> JsonObject:
    """JSON Schema: the product was bought with these options."""
    options: JsonObject = {name: {"const": value} for name, value in chosen.items()}
    bought: JsonObject = {"const": asin}
    return {
        "properties": {"bought": bought, "chosen": {"properties": options, "required": [*chosen]}},
        "required": ["bought", "chosen"],
    }


def _way(wish: str, asin: str, chosen: dict[str, str]) -> tuple[ToolCall, ...]:
    """Calls that search for the whole wish, open the product, choose its options, and buy it."""
    clicks = (ToolCall(name="click", arguments={"element": element}) for element in (asin, *chosen.values(), BUY))
    return (ToolCall(name="search", arguments={"query": wish}), *clicks)
