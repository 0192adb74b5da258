"""Reads the pages of WebShop: which page is open, what can be clicked on it, and what of it the wish asks for.

The wish is the task's instruction. It is on every page and differs between tasks, so a structured answer contains only
the other texts of a page. The open page has an address: its kind, and the query, the number, the product and the part
that led there. The receipt is read without its score, which the agent must not see.

The wording of this shop is known here: its buttons, the names of its products' options, and how a wish states options
and the highest price. What a click leads to is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from dreamgym.reading import PageContent, read_as
from dreamgym.state import StateSchema, as_object
from dreamgym.types import JsonObject, StepResult, Task, ToolCall
from dreamgym_integrations.environments.webshop.visit import BUY, JOINT, SUB_PAGES

SEARCH_PAGE, RESULTS, ITEM, PART, RECEIPT = "search", "results", "item", "part", "receipt"
"""Kinds of pages."""
OPTIONS = frozenset(
    ("color", "size", "style", "flavor name", "fit type", "scent", "flavor", "pattern name", "item shape")
) | {"number of items"}
"""Names of options in the authors' catalogue."""
THANKS = "Thank you for shopping with us!"
SCHEMA = StateSchema.model_validate(
    {
        "links": {
            "key": "link",
            "fields": {
                "text": "string",
                "kind": "string",
                "first": "boolean",
                "dear": "boolean",
                "chosen": "boolean",
            },
            "complete": False,
        },
        "queries": {"key": "query", "fields": {"kind": "string"}, "complete": False},
        "products": {
            "key": "product",
            "fields": {"text": "string", "dear": "boolean", "price": "number"},
            "complete": False,
        },
        "open": "object",
        "chosen": "object",
        "bought": "string?",
        "wish": "string",
    }
)
_ASIN = re.compile(r"[A-Z0-9]{10}")
_NUMBER = re.compile(r"Page (\d{1,9}) \(Total results: \d{1,9}\)")
_LIMIT = re.compile(r", and price lower than (\d{1,9}\.\d\d) dollars$")
_WORD = re.compile(r"\w+")
_PRICE = re.compile(r"\$(\d[\d,]{0,11}(?:\.\d{1,9})?)(?![\d,.]*\d)")


class WebShopReader:
    """WebShop's reader, see `dreamgym.reading.PageReader`."""

    schema = SCHEMA
    address = "open"
    counts = ("bought", "chosen")

    def __init__(self, tools: Sequence[JsonObject]) -> None:
        self.tools = tools

    def call(self, action: ToolCall) -> ToolCall:
        return ToolCall(
            name=action.name,
            arguments={n: v.lower() if isinstance(v, str) else v for n, v in action.arguments.items()},
        )

    def action(self, call: ToolCall) -> ToolCall:
        return call

    def result(self, call: ToolCall, result: StepResult) -> StepResult:
        texts = result.observation.split(JOINT)
        if texts[0] == THANKS:
            return read_as(result, {"kind": RECEIPT, "texts": [THANKS]})
        if "Instruction:" not in texts[:2]:
            return read_as(result, None)
        rest = texts[texts.index("Instruction:") + 2 :]
        return read_as(result, {"kind": _kind(rest), "texts": [*rest]})

    def observation(self, call: ToolCall, answer: JsonObject, instruction: str) -> str | None:
        kind, texts = answer.get("kind"), answer.get("texts")
        if not isinstance(texts, list):
            return None
        before = {SEARCH_PAGE: ["WebShop", "Instruction:", instruction.strip()], RECEIPT: []}
        return JOINT.join([*before.get(str(kind), ["Instruction:", instruction.strip()]), *map(str, texts)])

    def start(self, task: Task, first: StepResult) -> JsonObject:
        return _start(task.instruction.strip())

    def after(self, state: JsonObject, call: ToolCall, result: StepResult) -> JsonObject:
        if result.is_error or result.structured is None:
            return state
        kind, texts = _page(result.structured)
        wish, before = str(state["wish"]), as_object(state["open"])
        if kind == SEARCH_PAGE:
            return {**_start(wish), "bought": state["bought"]}
        if kind == RECEIPT:
            return {**state, "links": {}, "open": {"kind": kind}, "bought": before.get("product")}
        clicked = as_object(as_object(state["links"]).get(str(call.arguments.get("element"))))
        address = _address(kind, texts, call, before, is_product=clicked.get("kind") == "product")
        chosen = {} if kind == RESULTS or clicked.get("kind") == "product" else as_object(state["chosen"])
        if clicked.get("kind") == "option":
            name, _, _ = str(clicked["text"]).partition(": ")
            chosen = {**chosen, name: clicked["link"]}
        return {
            **state,
            "links": {str(link["link"]): link for link in _links(kind, texts, chosen, wish)},
            "queries": {},
            "products": _product(str(address["product"]), texts, wish) if kind == ITEM else {},
            "open": address,
            "chosen": chosen,
        }

    def words(self, observation: str, state: JsonObject) -> str:
        address, chosen = as_object(state["open"]), as_object(state["chosen"])
        if address["kind"] in (SEARCH_PAGE, RECEIPT):
            return observation
        hidden = [f"query: {address.get('query')}", f"page: {address.get('number')}"]
        if address.get("product") is not None:
            names = ", ".join(f"{name}: {value}" for name, value in sorted(chosen.items()))
            hidden += [f"product: {str(address['product']).upper()}", f"chosen: {names or 'nothing'}"]
        return JOINT.join([observation, *hidden])

    def previews(self, content: JsonObject) -> Iterator[PageContent]:
        """The item pages of the products on a page of results, with what it shows of them: title and price."""
        kind, texts = _page(content)
        if kind == RESULTS:
            for asin, title, price in _products(texts):
                item = ["Back to Search", "< Prev", title, f"Price: {price}", "Rating: N.A.", *SUB_PAGES.values()]
                address: JsonObject = {"kind": ITEM, "product": asin.lower()}
                yield PageContent(address, {"kind": ITEM, "texts": [*item, "Buy Now"]})


def _kind(texts: Sequence[str]) -> str:
    if texts == ["Search"]:
        return SEARCH_PAGE
    if "Buy Now" in texts:
        return ITEM
    return RESULTS if any(map(_NUMBER.fullmatch, texts[:2])) else PART


def _page(content: JsonObject) -> tuple[str, list[str]]:
    """Kind and texts of a page."""
    texts = content["texts"]
    assert isinstance(texts, list)
    return str(content["kind"]), [*map(str, texts)]


def _start(wish: str) -> JsonObject:
    """The state on the search page, with nothing chosen."""
    return {
        "links": {},
        "queries": {query: {"query": query, "kind": kind} for query, kind in _queries(wish)},
        "products": {},
        "open": {"kind": SEARCH_PAGE},
        "chosen": {},
        "bought": None,
        "wish": wish,
    }


def _address(kind: str, texts: Sequence[str], call: ToolCall, before: JsonObject, *, is_product: bool) -> JsonObject:
    """The address of a page of results, of a product, or of a part of one.

    Args:
        kind: kind of the page.
        texts: texts on the page.
        call: the call that led there.
        before: the address before the call.
        is_product: True if a product was clicked.
    """
    query = call.arguments.get("query") if call.name == "search" else before.get("query")
    if kind == RESULTS:
        return {"kind": kind, "query": query, "number": _number(texts)}
    product = call.arguments.get("element") if is_product else before.get("product")
    address: JsonObject = {"kind": kind, "query": query, "number": before.get("number"), "product": product}
    return {**address, "part": call.arguments.get("element")} if kind == PART else address


def _product(asin: str, texts: Sequence[str], wish: str) -> JsonObject:
    """The product of an item page by its id, with what the page shows of it besides its options."""
    price = _dollars(next((text for text in texts if text.startswith("Price: ")), ""))
    limit = _limit(wish)
    dear = limit is not None and price > limit
    return {asin: {"product": asin, "text": _shared(_title(texts), wish), "dear": dear, "price": price}}


def _queries(wish: str) -> Iterator[tuple[str, str]]:
    """(query, kind) of the searches that the wish suggests, the longest first, each once."""
    whole = wish.lower()
    priceless = _LIMIT.sub("", whole)
    thing = priceless.partition(" with ")[0].removeprefix("find me ")
    known: dict[str, str] = {}
    for kind, query in (("whole", whole), ("priceless", priceless), ("thing", thing)):
        known.setdefault(query, kind)
    yield from known.items()


def _links(kind: str, texts: Sequence[str], chosen: Mapping[str, object], wish: str) -> Iterator[JsonObject]:
    """The elements of a page that can be clicked."""
    limit = _limit(wish)

    def button(text: str) -> JsonObject:
        return {"link": text.lower(), "text": text, "kind": text.lower()}

    yield from (button(text) for text in ("Back to Search", "< Prev", "Next >") if text in texts[:4])
    if kind == RESULTS:
        for place, (asin, title, price) in enumerate(_products(texts)):
            dear = limit is not None and _dollars(price) > limit
            text = _shared(title, wish)
            yield {"link": asin.lower(), "text": text, "kind": "product", "first": place == 0, "dear": dear}
    if kind == ITEM:
        yield from (button(text) for text in texts[-5:] if text.lower() in (*SUB_PAGES, "attributes", BUY))
        name = ""
        for text in _options(texts):
            if text in OPTIONS:
                name = text
            elif name:
                is_chosen = chosen.get(name) == text.lower()
                yield {"link": text.lower(), "text": f"{name}: {text}", "kind": "option", "chosen": is_chosen}


def _shared(title: str, wish: str) -> str:
    """The words of a title that are also in the wish."""
    wished = set(_WORD.findall(wish.lower()))
    return " ".join(word for word in _WORD.findall(title.lower()) if word in wished)


def _options(texts: Sequence[str]) -> Sequence[str]:
    """The texts of an item page between its upper buttons and its title: names of options, and their values."""
    price = next((place for place, text in enumerate(texts) if text.startswith("Price: ")), 3)
    return texts[2 : price - 1]


def _title(texts: Sequence[str]) -> str:
    price = next((place for place, text in enumerate(texts) if text.startswith("Price: ")), 1)
    return texts[price - 1]


def _products(texts: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Id, title and price of each product on a page of results."""
    for place, text in enumerate(texts):
        if _ASIN.fullmatch(text):
            title, price, *_ = *texts[place + 1 : place + 3], "", ""
            yield (text, "", title) if title.startswith("$") else (text, title, price)  # one product has no title


def _number(texts: Sequence[str]) -> int | None:
    return next((int(found[1]) for found in map(_NUMBER.fullmatch, texts) if found), None)


def _limit(wish: str) -> float | None:
    found = _LIMIT.search(wish)
    return None if found is None else float(found[1])


def _dollars(price: str) -> float:
    """The highest price in a text; 0 if there is none."""
    return max((float(found.replace(",", "")) for found in _PRICE.findall(price)), default=0.0)
