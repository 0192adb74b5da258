"""The price of a language model's tokens: the one in DREAMGYM_PRICE, else the one in litellm's table.

The table is a file of the package litellm. It is read without importing the package: no network, no seconds of
startup. An uncertain price is not used: an entry of the table counts only if it has the provider of the model.
"""

from __future__ import annotations

import json
import math
import os
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from dreamgym.errors import InvalidInput
from dreamgym.types import Frozen, JsonObject, TokenUsage

PRICE_VARIABLE = "DREAMGYM_PRICE"
TABLE = "model_prices_and_context_window_backup.json"
MILLION = 1_000_000
OWN_SERVERS = frozenset({"hosted_vllm", "ollama", "lm_studio"})
"""Providers that are a server of the user, which costs nothing."""
OPENAI_PROVIDERS = OWN_SERVERS | {"openai", "openrouter"}
"""Providers that the openai client reaches by itself."""
IN_PROCESS = frozenset({"", "nearest", "local", "checkpoint"})
_LONG = re.compile(r"input_cost_per_token_above_(\d{1,6})k_tokens")
"""A name in an entry of litellm's table: the price of a prompt token if the prompt has more tokens than this."""
_SEARCHES = re.compile(r"\bsonar\b|-search-(?:preview|api)|\bdeep-research\b")
"""Names of models that search the web for each answer, and cost a fee for it besides their tokens."""
EXPECTED = (
    "expected IN,OUT or IN,OUT,CACHED in dollars per million tokens, or MODEL=IN,OUT for one --model; "
    "separate several prices with spaces"
)


class Price(Frozen):
    """Dollars per million tokens."""

    prompt: float
    completion: float
    cached: float
    """Dollars per million prompt tokens that the endpoint had in its cache."""
    long_prompt: int = 0
    """A call with more prompt tokens than this costs `longer`."""
    longer: Price | None = None

    def of_call(self, usage: TokenUsage) -> float:
        """Dollars for the tokens of one call."""
        if self.longer is not None and usage.prompt_tokens > self.long_prompt:
            return self.longer.of_call(usage)
        return self.of(usage)

    def of(self, usage: TokenUsage) -> float:
        """Dollars for the tokens of any number of calls, if none had a long prompt.

        Thinking tokens cost as much as other completion tokens.
        """
        new = usage.prompt_tokens - usage.cached_tokens
        dear = new * self.prompt + usage.cached_tokens * self.cached + usage.completion_tokens * self.completion
        return dear / MILLION


FREE = Price(prompt=0, completion=0, cached=0)


OF_ONES_OWN = frozenset({"azure", "azure_ai", "databricks", "watsonx"})
"""Providers at which each customer has an address of their own, with the listed prices."""
OTHER_NAMES = {"fireworks_ai": "FIREWORKS", "friendliai": "FRIENDLI", "lambda_ai": "LAMBDA", "vertex_ai": "VERTEXAI"}
"""Providers of whose name litellm's variable for the address has another form."""


def price_of(model: str) -> Price | None:
    """The price of a model by its name in `--model`; None if it is not known.

    Raises:
        InvalidInput: the variable DREAMGYM_PRICE is not a list of prices.
    """
    given = read_prices(os.environ.get(PRICE_VARIABLE, ""))
    name = model.removeprefix("litellm:")
    if is_in_process(model):
        return FREE
    if (known := given.get(model, given.get(""))) is not None:
        return known
    provider, slash, own = name.partition("/")
    if provider in OWN_SERVERS and slash:
        return FREE
    if not slash:
        provider, own = "openai", name
    if model.startswith("litellm:") or provider not in OPENAI_PROVIDERS:
        start = OTHER_NAMES.get(provider, provider.upper())
        addresses = [] if provider in OF_ONES_OWN else [f"{start}_{end}" for end in ("API_BASE", "BASE_URL")]
    else:
        addresses = ["OPENAI_BASE_URL" if provider == "openai" else f"{provider.upper()}_API_BASE"]
    if any(map(os.environ.get, addresses)):
        return None  # the endpoint of another provider, with its own prices
    table = _table()
    for key in (name, own):
        entry = table.get(key)
        if isinstance(entry, dict) and entry.get("litellm_provider") == provider:
            return None if _SEARCHES.search(key) else _listed(entry)
    return None


def is_in_process(model: str) -> bool:
    """True for a model that runs in the process that asks it, as the default model does."""
    if model.startswith(("http://", "https://")) or model.partition("/")[0] in OPENAI_PROVIDERS:
        return False  # even if a file or folder has this name
    path = Path(model).expanduser()
    is_file = model.endswith(".gguf") and path.is_file()
    return model.partition(":")[0] in IN_PROCESS or is_file or path.is_dir()


def read_prices(text: str) -> dict[str, Price]:
    """Parse the variable DREAMGYM_PRICE: prices by model. The empty name has the price of all other models.

    Raises:
        InvalidInput: the text is not a list of prices.
    """
    prices = {}
    for item in text.split():
        model, _, numbers = item.rpartition("=")
        try:
            given = [float(number) for number in numbers.split(",")]
        except ValueError:
            given = []
        if len(given) not in (2, 3) or not all(math.isfinite(number) and number >= 0 for number in given):
            raise InvalidInput(f"{PRICE_VARIABLE}: {item[:100]!r} is not a price: {EXPECTED}")
        prices[model] = Price(prompt=given[0], completion=given[1], cached=given[2] if len(given) == 3 else given[0])
    return prices


@cache
def _table() -> JsonObject:
    """The table of litellm, by model name; empty if litellm is not installed."""
    found = find_spec("litellm")
    for folder in found.submodule_search_locations or () if found else ():
        file = Path(folder) / TABLE
        if file.is_file():
            table = json.loads(file.read_text(encoding="utf-8"))
            return table if isinstance(table, dict) else {}
    return {}


def _listed(entry: JsonObject, suffix: str = "") -> Price | None:
    """The price in an entry of the table. If several may apply, the highest, since a budget must not be exceeded.

    Args:
        entry: an entry of the table.
        suffix: end of the names that have the price of calls with long prompts.
    """
    if entry.keys() & {"input_cost_per_request", "citation_cost_per_token"}:
        return None

    def highest(*names: str) -> float | None:
        named = [entry.get(f"{name}{suffix}", entry.get(name)) for name in names]
        known = [float(value) for value in named if isinstance(value, int | float)]
        return max(known) * MILLION if known else None

    prompt = highest("input_cost_per_token", "cache_creation_input_token_cost")
    completion = highest("output_cost_per_token", "output_cost_per_reasoning_token")
    if prompt is None or completion is None:
        return None
    cached = highest("cache_read_input_token_cost")
    price = Price(prompt=prompt, completion=completion, cached=prompt if cached is None else cached)
    thousands = min((int(found[1]) for name in entry if (found := _LONG.fullmatch(name))), default=0)
    if suffix or not thousands:
        return price
    longer = _listed(entry, f"_above_{thousands}k_tokens")
    return price.model_copy(update={"long_prompt": 1000 * thousands, "longer": longer})
