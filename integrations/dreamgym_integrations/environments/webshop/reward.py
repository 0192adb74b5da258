"""The score of a purchase in WebShop, between 0 and 1.

It is the share of the goal's demands (attributes, options, price) that the purchase fulfils, times the factor `kind`:
how well the kind of the bought product matches that of the wanted one. Two things to know:

- The original compares the colour found in a chosen option (`r.brown2060` counts as `brown`, and `rectangular` as
  `tan`) with the wanted option as it is, together with its name. So 458 of the 6,910 goals of the small set have
  options that do not match themselves, and buying exactly what is wanted scores below 1. We do the same, so that
  figures can be compared.
- The original tags the nouns of titles with spaCy. For the 1,000 products of its small set, the positions of the nouns
  that spaCy (3.8 with en_core_web_sm) finds are stored beside this file, by a checksum of the title, so there is no
  difference. In any other title, all words except those in NO_NOUNS count as nouns, because a tagger takes most words
  of a title for proper nouns. Compared with spaCy on those 1,000 titles, that changes the factor `kind` for 2.6 % of
  the pairs of different products and for 1 of 271 recorded purchases, and never if the wanted product is bought.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from zlib import crc32

from dreamgym.errors import MissingPackage
from dreamgym.types import JsonObject
from dreamgym_integrations.environments.base import packed_lines
from dreamgym_integrations.environments.webshop.catalogue import Product
from dreamgym_integrations.environments.webshop.goals import Goal

ALIKE = 85
"""Texts with a similarity above this, from 0 to 100, count as equal."""
_COLOURS = """\
alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo
caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal
dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo ivory
ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom
mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand sapphire
seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut wheat white
wine yellow"""
COLOURS = _COLOURS.split()
"""A chosen option that contains one of these counts as the first of them."""
_NO_NOUNS = """\
a all an and any are as at based be but by can comfortable cooling damaged designed discontinued each effective for
from full fully get has have he her his i if imported in included includes inspired into is it its italian japanese
large led made make me my no nor not of off on one only or original our out over own per powered reduce removes
resealable scratch shaped she six so some that the their then these they this those three through to two under up used
very was we were when which while will with without you your"""
NO_NOUNS = frozenset(_NO_NOUNS.split())
_WORD = re.compile(r"\d[\w.]*|[^\W\d_]\w*(?:\.\w+)*")
_LATIN_1 = dict.fromkeys(range(128, 256))


def score(bought: Product, goal: Goal, price: float, options: Mapping[str, str]) -> tuple[float, JsonObject]:
    """The score of a purchase, and its parts. Raises MissingPackage."""
    wanted = goal.product.demanded
    attributes = sum(_has_attribute(bought, attribute) for attribute in wanted)
    fulfilled = sum(_fulfilled(goal.options, options))
    in_price = price <= goal.price_limit
    kind = _kind(bought, goal.product)
    share = (attributes + fulfilled + in_price) / (len(wanted) + len(goal.options) + 1)
    return share * kind, {"kind": kind, "attributes": attributes, "options": fulfilled, "price": in_price}


def can_be_fulfilled(wanted: Mapping[str, str]) -> bool:
    """True if a purchase with exactly the wanted options fulfils all of them. Raises MissingPackage."""
    return all(_fulfilled(wanted, wanted))


def _fulfilled(wanted: Mapping[str, str], options: Mapping[str, str]) -> Iterator[bool]:
    """Yield for each wanted option whether the chosen ones fulfil it."""
    chosen = [_colour_in(value) for value in options.values()]
    return (_is_like_one_of(_wish(name, value), chosen) for name, value in wanted.items())


def _kind(bought: Product, meant: Product) -> float:
    """How well the kinds of two products match: 0, 0.1, 0.5 or 1."""
    meant_nouns = nouns(meant.title)
    shared = len(set(nouns(bought.title)) & set(meant_nouns)) / len(meant_nouns) if meant_nouns else 0.2
    if shared < 0.1:
        return 0.1 if shared else 0.0
    common = _categories(bought) & _categories(meant)
    return 1.0 if bought.query == meant.query or len(common) >= 2 or shared > 0.2 else 0.5


def _categories(product: Product) -> set[str]:
    return {part.strip() for part in product.product_category.split("›")}


def _has_attribute(bought: Product, wanted: str) -> bool:
    """True if an attribute is listed for the product or occurs in its texts."""
    texts = (bought.title, " ".join(bought.bullets), bought.description)
    return _is_like_one_of(wanted, bought.attributes) or any(wanted in text.lower() for text in texts)


def _colour_in(option: str) -> str:
    return next((colour for colour in COLOURS if colour in option), option)


def _wish(name: str, value: str) -> str:
    """A wanted option as the original compares it: name and value, or only the colour if one of them is a colour."""
    return next((colour for colour in COLOURS if colour in (name, value)), str((name, value)))


def _is_like_one_of(text: str, others: Sequence[str]) -> bool:
    return any(_alike(other, text) > ALIKE for other in others)


@lru_cache(maxsize=100_000)
def _alike(one: str, other: str) -> int:
    """Similarity of two texts by their sets of words, from 0 to 100."""
    try:
        from rapidfuzz.fuzz import token_set_ratio
        from rapidfuzz.utils import default_process
    except ModuleNotFoundError as error:
        raise MissingPackage("the reward of WebShop", "webshop") from error
    alike: float = token_set_ratio(one.translate(_LATIN_1), other.translate(_LATIN_1), processor=default_process)
    return round(alike)


@lru_cache(maxsize=10_000)
def nouns(title: str) -> tuple[str, ...]:
    """The nouns of a title in their order, in lower case: they show what kind of product it is."""
    places = _tagged().get(f"{crc32(title.encode()):08x}")
    if places is None:
        words = (word.lower() for word in _WORD.findall(title))
        return tuple(word for word in words if word not in NO_NOUNS and not word[0].isdigit() and word != "s")
    found: list[str] = []
    end = 0
    for place in places.split():
        gap, length = map(int, place.split("+"))
        start, end = end + gap, end + gap + length
        found.append(title[start:end].lower())
    return tuple(found)


@cache
def _tagged() -> Mapping[str, str]:
    """By checksum of a title: for each noun, `GAP+LENGTH`, the characters since the one before and its own."""
    lines = packed_lines("dreamgym_integrations.environments.webshop", "nouns_1000.xz")
    return {checksum: places for checksum, _, places in (line.partition(" ") for line in lines)}
