"""One customer's way through the shop: which page is open, what it shows, and what can be clicked on it.

Pages are texts as the original's text mode has them: the visible strings in their order, joined by ` [SEP] `.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal

from dreamgym.types import JsonObject
from dreamgym_integrations.environments.webshop.catalogue import Product
from dreamgym_integrations.environments.webshop.goals import Goal
from dreamgym_integrations.environments.webshop.reward import score
from dreamgym_integrations.environments.webshop.shop import Shop

PAGE = 10
BUY, SEARCH, RESULTS, NEXT, PREVIOUS = "buy now", "search", "back to search", "next >", "< prev"
SUB_PAGES = {"description": "Description", "features": "Features", "reviews": "Reviews"}
ATTRIBUTES = {"attributes": "Attributes"}
JOINT = " [SEP] "
RECEIPT = """\
Thank you for shopping with us!|Your code:|None|(Paste it in your MTurk interface.)|Purchased|asin|product|options|\
attrs|None|category|None|query|None|product category|None|Target|asin|options|attrs|price upper|instuction text|\
category|product category|query|Goal|None|Reward|Your score (min 0.0, max 1.0)"""
"""The texts of the last page, with one spelling mistake, as in the original. Most of them carry no information."""


class ShopVisit:
    """One visit. It begins on the search page and ends when something is bought."""

    def __init__(self, shop: Shop, goal: Goal, *, show_attributes: bool = False) -> None:
        """Start a visit for this goal."""
        self._shop = shop
        self._goal = goal
        self._sub_pages = SUB_PAGES | ATTRIBUTES if show_attributes else SUB_PAGES
        self._open: Literal["search", "results", "item", "sub", "done"] = "search"
        self._sub_page = ""
        self._query = ""
        self._hits: list[Product] = []
        self._page = 1
        self._product: Product | None = None
        self._options: dict[str, str] = {}
        self.score = 0.0
        """Score of the purchase."""
        self.parts: JsonObject = {}
        """Parts of the score."""

    @property
    def is_over(self) -> bool:
        """True if something was bought."""
        return self._open == "done"

    @property
    def has_search(self) -> bool:
        """True if the page has a search bar. The search itself works on every page."""
        return self._open == "search"

    def search(self, query: str) -> bool:
        """Search; returns False for an empty query."""
        if not query:
            return False
        self._query = query.lower()
        self._hits = self._shop.search(self._query)
        self._results(1)
        return True

    def click(self, element: str) -> bool:
        """Click an element. If the page does not have it, the page stays and the result is False."""
        element = element.lower()
        options = self._options_shown()
        if element not in self.elements() or element == SEARCH:
            return False
        if element == BUY:
            bought = self._opened
            self.score, self.parts = score(bought, self._goal, self._shop.prices[bought.asin], self._options)
            self._open = "done"
        elif element == RESULTS:
            self._open, self._product, self._options = "search", None, {}
        elif element in (NEXT, PREVIOUS) and self._open == "results":
            self._results(self._page + (1 if element == NEXT else -1))
        elif element == PREVIOUS and self._open == "item":
            self._results(self._page)
        elif element == PREVIOUS:
            self._open = "item"
        elif element in self._sub_pages:
            self._open, self._sub_page = "sub", element
        elif element in options:
            self._options[options[element]] = element
        else:
            product = next(one for one in self._shown if one.asin.lower() == element)
            self._open, self._product, self._options = "item", product, {}
        return True

    def elements(self) -> list[str]:
        """The elements that can be clicked, in lower case."""
        if self._open == "search":
            return [SEARCH]
        if self._open == "results":
            return [RESULTS, *([PREVIOUS] * (self._page > 1)), NEXT, *(product.asin.lower() for product in self._shown)]
        if self._open == "item":
            return list(dict.fromkeys([RESULTS, PREVIOUS, *self._sub_pages, BUY, *self._options_shown()]))
        return [RESULTS, PREVIOUS] if self._open == "sub" else []

    @property
    def observation(self) -> str:
        if self._open == "done":
            return self._receipt()
        if self._open == "search":
            return JOINT.join(["WebShop", "Instruction:", self._goal.instruction.strip(), "Search"])
        texts = ["Instruction:", self._goal.instruction, "Back to Search"]
        if self._open == "results":
            texts.append(f"Page {self._page} (Total results: {len(self._hits)})")
            texts += [*(["< Prev"] * (self._page > 1)), "Next >"]  # as in the original, even on the last page
            for product in self._shown:
                texts += [product.asin, product.title, product.price_tag]
        else:
            texts += ["< Prev", *(self._item() if self._open == "item" else self._sub())]
        # as a page shows them: an empty text, or one of only line breaks, is left out
        return JOINT.join(text.strip() for text in texts if text.strip() or (text and "\n" not in text))

    @property
    def state(self) -> str:
        """The page, and what it does not show: query, page of results, product and chosen options."""
        if self._open in ("search", "done"):
            return self.observation
        hidden = [f"query: {self._query}", f"page: {self._page}"]
        if self._product is not None:
            chosen = ", ".join(f"{name}: {value}" for name, value in sorted(self._options.items()))
            hidden += [f"product: {self._product.asin}", f"chosen: {chosen or 'nothing'}"]
        return JOINT.join([self.observation, *hidden])

    @property
    def _shown(self) -> list[Product]:
        return self._hits[(self._page - 1) * PAGE : self._page * PAGE]

    @property
    def _opened(self) -> Product:
        assert self._product is not None
        return self._product

    def _results(self, page: int) -> None:
        self._open, self._page, self._product, self._options = "results", page, None, {}

    def _options_shown(self) -> dict[str, str]:
        """The option of each value that can be chosen. A value of two options belongs to the last one."""
        if self._open != "item":
            return {}
        return {value: name for name, values in self._opened.options.items() for value in values}

    def _item(self) -> Iterator[str]:
        product = self._opened
        for name, values in product.options.items():
            yield from (name, *values)
        yield from (product.title, f"Price: {product.price_tag}", "Rating: N.A.", *self._sub_pages.values(), "Buy Now")

    def _sub(self) -> tuple[str, ...]:
        product = self._opened
        if self._sub_page == "description":
            return (product.description,)
        if self._sub_page == "features":
            return product.bullets
        if self._sub_page == "attributes":
            return (*product.attributes, product.category, product.query, product.product_category)
        return ()

    def _receipt(self) -> str:
        options = json.dumps(self._options, sort_keys=True)
        for sign in "<>&'":
            options = options.replace(sign, f"\\u{ord(sign):04x}")
        before, after = RECEIPT.split("|product|options|")
        texts = [*before.split("|"), self._opened.asin, "options", options, *after.split("|")]
        return JOINT.join([*texts, str(self.score), "Reward Details", "None"])
