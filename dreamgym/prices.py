"""The price of a language model's tokens: the one that is given, else that of litellm's table.

The table is a file of the package litellm, which is read without importing it: no network, no seconds of start. A price
that is not certain is not used: a provider's model counts only under that provider's name.
"""

from __future__ import annotations

import json
import math
import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from dreamgym.errors import InvalidInput
from dreamgym.types import Frozen, JsonObject, TokenUsage

PRICE_VARIABLE = "DREAMGYM_PRICE"
TABLE = "model_prices_and_context_window_backup.json"
MILLION = 1_000_000
OWN_SERVERS = frozenset({"hosted_vllm", "ollama", "lm_studio"})
"""Providers that are a server of the user's own, which bills nothing."""
IN_PROCESS = frozenset({"", "nearest", "local", "checkpoint"})
EXPECTED = (
    "expected IN,OUT or IN,OUT,CACHED in dollars per million tokens, or MODEL=IN,OUT for one --model, with spaces"
)


class Price(Frozen):
    """Dollars per million tokens."""

    prompt: float
    completion: float
    cached: float
    """Dollars per million prompt tokens that the endpoint had in its cache."""

    def of(self, usage: TokenUsage) -> float:
        """Dollars for these tokens; thinking is billed as what is written."""
        new = usage.prompt_tokens - usage.cached_tokens
        dear = new * self.prompt + usage.cached_tokens * self.cached + usage.completion_tokens * self.completion
        return dear / MILLION


FREE = Price(prompt=0, completion=0, cached=0)


def price_of(model: str) -> Price | None:
    """The price of a model, as `--model` names it; None: nobody knows it.

    Raises:
        InvalidInput: the variable DREAMGYM_PRICE holds something else than prices.
    """
    given = read_prices(os.environ.get(PRICE_VARIABLE, ""))
    name = model.removeprefix("litellm:")
    if (known := given.get(model, given.get(""))) is not None:
        return known
    provider, slash, own = name.partition("/")
    if is_in_process(model) or (provider in OWN_SERVERS and slash):
        return FREE
    if not slash:
        provider, own = "openai", name
    if provider == "openai" and os.environ.get("OPENAI_BASE_URL"):
        return None  # it is another's endpoint, which has prices of its own
    table = _table()
    for key in (name, own):
        entry = table.get(key)
        if isinstance(entry, dict) and entry.get("litellm_provider") == provider:
            return _listed(entry)
    return None


def is_in_process(model: str) -> bool:
    """True for a model that computes in the process that asks it; the default model is one."""
    return model.partition(":")[0] in IN_PROCESS or Path(model).expanduser().exists()


def read_prices(text: str) -> dict[str, Price]:
    """The prices of the variable DREAMGYM_PRICE by model; that of all others under an empty name.

    Raises:
        InvalidInput: it is no list of prices.
    """
    prices = {}
    for item in text.split():
        model, _, numbers = item.rpartition("=")
        try:
            given = [float(number) for number in numbers.split(",")]
        except ValueError:
            given = []
        if len(given) not in (2, 3) or not all(math.isfinite(number) and number >= 0 for number in given):
            raise InvalidInput(f"{PRICE_VARIABLE}: {item[:100]!r} is no price: {EXPECTED}")
        prices[model] = Price(prompt=given[0], completion=given[1], cached=given[2] if len(given) == 3 else given[0])
    return prices


@cache
def _table() -> JsonObject:
    """The table of litellm by its names of models; empty if it is not installed."""
    found = find_spec("litellm")
    for folder in found.submodule_search_locations or () if found else ():
        file = Path(folder) / TABLE
        if file.is_file():
            table = json.loads(file.read_text(encoding="utf-8"))
            return table if isinstance(table, dict) else {}
    return {}


def _listed(entry: JsonObject) -> Price | None:
    """The price in an entry of the table: where several may apply, the highest, as a budget must not be passed."""

    def highest(*names: str) -> float | None:
        known = [float(value) for name in names if isinstance(value := entry.get(name), int | float)]
        return max(known) * MILLION if known else None

    prompt = highest("input_cost_per_token", "cache_creation_input_token_cost")
    completion = highest("output_cost_per_token", "output_cost_per_reasoning_token")
    if prompt is None or completion is None or "input_cost_per_request" in entry:
        return None
    cached = highest("cache_read_input_token_cost")
    return Price(prompt=prompt, completion=completion, cached=prompt if cached is None else cached)
