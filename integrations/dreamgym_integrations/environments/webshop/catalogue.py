"""The products of a shop, read from the files that WebShop's authors publish.

A folder contains the products (`items_shuffle*.json`) and the instructions to buy them (`items_ins_v2*.json`), each
plain or packed by xz. If a product has a range of prices, its price is drawn once. So goals and rewards need the same
seed every time.
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from random import Random

from pydantic import JsonValue

from dreamgym.errors import InvalidInput
from dreamgym.types import JsonObject

PRODUCTS = ("items_shuffle_1000.json", "items_shuffle.json")
DEMANDS = ("items_ins_v2_1000.json", "items_ins_v2.json")
SMALL = files("dreamgym_integrations.environments.webshop").joinpath("small")
"""Our own small catalogue of invented products."""
UNPRICED = 100.0
"""The original's price of a product whose price is unknown."""
_MISSING = "`./setup.sh -d small` in a clone of WebShop's repository downloads items_shuffle_1000 and items_ins_v2_1000"


@dataclass(frozen=True, slots=True)
class Product:
    """One product, as the shop shows it and as the reward sees it."""

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    category: str
    query: str
    """The authors' search that found the product."""
    product_category: str
    """The path of categories, separated by `›`."""
    prices: tuple[float, ...]
    """One price, or the two ends of a range."""
    options: Mapping[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    demand: str | None
    """Instruction to buy it; None: no goal asks for it."""
    demanded: tuple[str, ...]
    """The attributes that its instruction asks for."""

    @property
    def price_tag(self) -> str:
        """The price as the pages show it."""
        return " to ".join(f"${price}" for price in self.prices)

    @property
    def document(self) -> str:
        """The text that the search ranks."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join([self.title, self.description, self.bullets[0], options]).lower()


def load(folder: Path | None) -> list[Product]:
    """The products of a folder, or of our own small catalogue for None. Raises InvalidInput with file and row."""
    place: Traversable = SMALL if folder is None else folder
    file, rows = _read(place, PRODUCTS)
    if not isinstance(rows, list):
        raise InvalidInput(f"{file}: expected a list of products, got {type(rows).__name__}")
    demands_file, demands = _read(place, DEMANDS)
    if not isinstance(demands, dict):
        raise InvalidInput(f"{demands_file}: expected an object of demands by asin, got {type(demands).__name__}")
    products: dict[str, Product] = {}
    for number, row in enumerate(rows, start=1):
        asin = row.get("asin") if isinstance(row, dict) else None
        if not isinstance(row, dict) or not isinstance(asin, str):
            raise InvalidInput(f"{file}, row {number}: expected a product with an 'asin', got {str(row)[:80]!r}")
        if asin == "nan" or len(asin) > 10 or asin in products:
            continue  # the original leaves these out too
        wanted = demands.get(asin)
        try:
            products[asin] = _product(row, wanted if isinstance(wanted, dict) else {})
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            what = f"missing field {error}" if isinstance(error, KeyError) else str(error)
            raise InvalidInput(f"{file}, row {number}, product {asin}: {what}") from error
    if not products:
        raise InvalidInput(f"{file}: expected products, got none")
    return list(products.values())


def draw_prices(products: list[Product], random: Random) -> dict[str, float]:
    """The price of each product by its asin, drawn if the product has a range of prices."""
    return {
        product.asin: product.prices[0] if len(product.prices) == 1 else random.uniform(*product.prices)
        for product in products
    }


def _read(folder: Traversable, names: tuple[str, ...]) -> tuple[str, JsonValue]:
    """Path and content of the first of these files that exists."""
    for candidate in (packed for name in names for packed in (name, f"{name}.xz")):
        file = folder.joinpath(candidate)
        if not file.is_file():
            continue
        try:
            data = file.read_bytes()
            return str(file), json.loads(lzma.decompress(data) if candidate.endswith(".xz") else data)
        except (OSError, ValueError, lzma.LZMAError, EOFError) as error:
            raise InvalidInput(
                f"{file}: cannot be read ({error}); if the download is incomplete, download it again"
            ) from error
    raise InvalidInput(f"catalogue {folder}: there is no {names[0]} or {names[0]}.xz; {_MISSING}")


def _product(row: JsonObject, demand: JsonObject) -> Product:
    bullets = row["small_description"]
    return Product(
        asin=_text(row, "asin"),
        title=_text(row, "name"),
        description=_text(row, "full_description"),
        bullets=tuple(map(str, bullets)) if isinstance(bullets, list) and bullets else (str(bullets or ""),),
        category=_text(row, "category"),
        query=_text(row, "query").lower().strip(),
        product_category=_text(row, "product_category"),
        prices=_prices(row["pricing"]),
        options=dict(_options(row["customization_options"])),
        attributes=_texts(demand.get("attributes", ["DUMMY_ATTR"])),
        demand=None if demand.get("instruction") is None else str(demand["instruction"]),
        demanded=_texts(demand.get("instruction_attributes") or []),
    )


def _text(row: JsonObject, key: str) -> str:
    value = row[key]
    if not isinstance(value, str):
        raise TypeError(f"expected a text as {key!r}, got {value!r}")
    return value


def _texts(values: JsonValue) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError(f"expected a list of attributes, got {values!r}")
    return tuple(map(str, values))


def _prices(tag: JsonValue) -> tuple[float, ...]:
    """`$3.99` or `$3.99 - $10.99` as numbers."""
    if not tag:
        return (UNPRICED,)
    digits = [re.sub(r"[^\d.]", "", part) for part in str(tag).split("$")[1:3]]
    if not digits or not all(digits):
        raise ValueError(f"expected a price such as '$3.99' as 'pricing', got {tag!r}")
    return tuple(map(float, digits))


def _options(customization: JsonValue) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Options of a product: name, and values as the pages show them."""
    if not isinstance(customization, dict):
        return
    for name, values in customization.items():
        if isinstance(values, list):
            yield (
                name.lower(),
                tuple(_text(value, "value").strip().replace("/", " | ").lower() for value in map(_object, values)),
            )


def _object(value: JsonValue) -> JsonObject:
    if not isinstance(value, dict):
        raise TypeError(f"expected an option such as {{'value': 'red'}}, got {value!r}")
    return value
