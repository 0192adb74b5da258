"""The shop's parts: the terms of a text, the ranking, the goals and the score of a purchase."""

import json
import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("rapidfuzz", reason="the shop needs the extra dreamgym[webshop]")
pytest.importorskip("snowballstemmer", reason="the shop needs the extra dreamgym[webshop]")

from dreamgym_integrations.environments.webshop import TOOLS
from dreamgym_integrations.environments.webshop.catalogue import SMALL, Product, draw_prices, load
from dreamgym_integrations.environments.webshop.goals import NO_LIMIT, Goal, goals
from dreamgym_integrations.environments.webshop.reader import WebShopReader
from dreamgym_integrations.environments.webshop.reward import nouns, score
from dreamgym_integrations.environments.webshop.search import Analyzer, SearchIndex, _one_byte
from dreamgym_integrations.environments.webshop.shop import Shop, shop
from dreamgym_integrations.environments.webshop.visit import ShopVisit
from dreamgym_integrations.environments.webshop.wishes import WebShopGoals

from dreamgym.types import StepResult, Task, ToolCall

CATALOGUE = load(None)
ANALYZER = Analyzer()


def product(asin: str, title: str, **changed: object) -> Product:
    usual: dict[str, object] = {
        "description": "",
        "bullets": ("",),
        "category": "garden",
        "query": title.lower(),
        "product_category": title,
        "prices": (9.0,),
        "options": {},
        "attributes": (),
        "demand": None,
        "demanded": (),
    }
    return Product(asin=asin, title=title, **{**usual, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("Men's T-Shirts are soft", ["men", "t", "shirt", "soft"]),
        ("gender:mens waist:70cm", ["gender:men", "waist", "70cm"]),
        ("9.5 1,000 1.a a_b", ["9.5", "1,000", "1", "a_b"]),
        ("1\u20442 x \u00bd m\u00b2", ["1\u20442", "x", "m"]),
        ("\u2764\ufe0f sale\U0001f493\U0001f493", ["\u2764\ufe0f", "sale", "\U0001f493", "\U0001f493"]),
        ("\u96f6\u98df 6s plus", ["\u96f6", "\u98df", "6s", "plu"]),
        ("assembly technology technological", ["assembl", "technolog", "technolog"]),
        ("the \u2605 \u2013 !", ["\u2605"]),
        ("_a __b__ ___", ["_a", "__b__"]),
        ("", []),
    ],
)
def test_words_are_found_as_lucene_finds_them(text: str, terms: list[str]) -> None:
    assert ANALYZER.terms(text) == terms


@given(st.text(max_size=60))
def test_any_text_has_terms_which_do_not_depend_on_its_capitals(text: str) -> None:
    terms = ANALYZER.terms(text)
    assert all(term and not term.isspace() for term in terms)
    assert ANALYZER.terms(text.lower()) == terms


@pytest.mark.parametrize("text", ["_" * 10**6, "a" * 10**6 + "bly", "a_" * 10**5, "1." * 10**5, "\u2764\u200d" * 10**5])
def test_a_text_of_any_length_has_terms_of_bounded_length(text: str) -> None:
    assert all(len(term) <= 255 for term in ANALYZER.terms(text))


@given(st.integers(0, 10**6))
def test_a_length_in_one_byte_is_never_longer_and_at_most_an_eighth_shorter(length: int) -> None:
    kept = _one_byte(length)
    assert kept <= length
    assert length - kept <= max(length - 24, 0) / 8
    assert _one_byte(kept) == kept
    assert _one_byte(length + 1) >= kept


def test_scores_are_those_of_bm25() -> None:
    texts = {"a": "red lamp", "b": "red red lamp shade", "c": "blue chair"}
    index = SearchIndex(texts.items())

    def bm25(text: str) -> float:
        words, rarity = text.split(), math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
        norm = 0.9 * (1 - 0.4 + 0.4 * len(words) / (8 / 3))
        return rarity * words.count("red") / (words.count("red") + norm)

    assert index.search("red", 5) == sorted(["a", "b"], key=lambda name: -bm25(texts[name]))
    assert index.search("red lamp red", 5) == ["b", "a"]
    assert index.search("red lamp", 1) == ["b"]
    assert index.search("green the", 5) == []


def test_equally_good_documents_come_in_the_order_of_their_names() -> None:
    index = SearchIndex((name, "red lamp") for name in ("c", "a", "b"))
    assert index.search("lamp", 5) == ["a", "b", "c"]


@given(st.lists(st.sampled_from(["lamp", "red", "soft", "wool", "cable", "tea", "zebra"]), max_size=6))
def test_every_found_product_contains_a_word_of_the_query(words: list[str]) -> None:
    found = shop(None, 0).search(" ".join(words))
    wanted = set(ANALYZER.terms(" ".join(words)))
    assert len({product.asin for product in found}) == len(found)
    assert all(wanted & set(ANALYZER.terms(product.document)) for product in found)


def test_every_product_is_found_first_by_its_title() -> None:
    found = {product.asin: shop(None, 0).search(product.title)[0].asin for product in CATALOGUE}
    assert found == {asin: asin for asin in found}


def test_goals_and_prices_are_drawn_by_the_seed_alone() -> None:
    one, again, other = Shop(CATALOGUE, 7), Shop(CATALOGUE, 7), Shop(CATALOGUE, 8)
    assert (one.goals, one.prices) == (again.goals, again.prices)
    assert one.prices != other.prices
    assert [goal.price_limit for goal in one.goals] != [goal.price_limit for goal in other.goals]


def test_each_choice_of_all_options_is_a_goal_with_a_limit_above_the_products_price() -> None:
    cup = product("c", "Cup", demand="Find me a cup", options={"size": ("s", "m"), "color": ("red", "blue")})
    pin = product("p", "Pin", demand="Find me a pin", prices=(2000.0,))
    nobody = product("n", "Nothing")
    made = goals([cup, pin, nobody], draw_prices([cup, pin, nobody], Random(1)), Random(1))
    wishes = sorted(goal.instruction.partition(", and price")[0] for goal in made)
    assert wishes == [
        "Find me a cup with color: blue, and size: m",
        "Find me a cup with color: blue, and size: s",
        "Find me a cup with color: red, and size: m",
        "Find me a cup with color: red, and size: s",
        "Find me a pin",
    ]
    assert {goal.price_limit for goal in made if goal.product is cup} <= {20.0, 30.0, 40.0}
    assert [goal.price_limit for goal in made if goal.product is pin] == [NO_LIMIT]


def test_a_range_of_prices_is_drawn_within_it() -> None:
    ranged = next(product for product in CATALOGUE if len(product.prices) == 2)
    assert ranged.price_tag == f"${ranged.prices[0]} to ${ranged.prices[1]}"
    assert ranged.prices[0] <= shop(None, 0).prices[ranged.asin] <= ranged.prices[1]


LAMP = product(
    "l",
    "Brass Floor Lamp",
    bullets=("Easy to clean",),
    attributes=("energy efficient",),
    demanded=("energy efficient", "easy to clean"),
    options={"color": ("black", "white"), "size": ("small",)},
)
WISH = Goal(LAMP, {"color": "black", "size": "small"}, 10.0)


@pytest.mark.parametrize(
    ("options", "price", "share"),
    [
        ({"color": "black", "size": "small"}, 9.0, 1.0),
        ({"color": "white", "size": "small"}, 9.0, 4 / 5),
        ({"size": "small"}, 11.0, 3 / 5),
        ({}, 11.0, 2 / 5),
        ({"color": "jet black", "size": "small"}, 9.0, 1.0),
    ],
)
def test_the_score_is_the_fulfilled_share_of_the_wish(options: dict[str, str], price: float, share: float) -> None:
    assert score(LAMP, WISH, price, options)[0] == share


@pytest.mark.parametrize(
    ("bought", "kind"),
    [
        (product("a", "Iron Floor Lamp"), 1.0),
        (product("b", "Lamp", query=LAMP.query), 1.0),
        (product("c", "Spoon", query=LAMP.query), 0.0),
        (product("d", "Spoon"), 0.0),
    ],
)
def test_the_kind_of_product_weighs_the_score(bought: Product, kind: float) -> None:
    total, parts = score(bought, WISH, 9.0, {})
    assert parts["kind"] == kind
    assert total == pytest.approx(kind / 5)  # of the five parts of the wish, only the price is fulfilled


def test_one_shared_noun_of_many_is_a_tenth_or_a_half_unless_query_or_categories_agree() -> None:
    long = product("x", "Cedar Oak Birch Maple Walnut Pine Elm Ash Beech Larch Teak")
    six = product("y", "Cedar Oak Birch Maple Walnut Pine")
    cedar, home = product("z", "Cedar"), "Home › Wood › Cedar"
    assert score(cedar, Goal(long, {}, 10.0), 9.0, {})[1]["kind"] == 0.1
    assert score(cedar, Goal(six, {}, 10.0), 9.0, {})[1]["kind"] == 0.5
    near = product("z", "Cedar", product_category=home)
    six_at_home = product("y", six.title, product_category="Home › Wood › Oak")
    assert score(near, Goal(six_at_home, {}, 10.0), 9.0, {})[1]["kind"] == 1.0


def test_a_colour_inside_of_another_word_counts_as_the_original_counts_it() -> None:
    rug = product("r", "Rug", demanded=("soft",), attributes=("soft",), options={"shape": ("rectangular",)})
    total, parts = score(rug, Goal(rug, {"shape": "rectangular"}, 10.0), 9.0, {"shape": "rectangular"})
    assert (total, parts["options"]) == (2 / 3, 0)


def test_no_new_wish_has_options_that_the_score_does_not_count_as_fulfilled() -> None:
    colours = ("red", "r.brown2060", "rectangular")  # with `brown` and `tan` inside
    mug = product("B000000001", "Mug", demand="Find me a mug", options={"color": colours})
    wish = Goal(mug, {"color": "red"}, 30.0)
    visit, reader = ShopVisit(Shop([mug], 0), wish), WebShopReader(TOOLS)
    state = reader.start(Task(id="mug", env="webshop", instruction=wish.instruction), StepResult(observation=""))
    for call in (
        ToolCall(name="search", arguments={"query": "mug"}),
        ToolCall(name="click", arguments={"element": "b000000001"}),
    ):
        ((_, value),) = call.arguments.items()
        assert (visit.search if call.name == "search" else visit.click)(str(value))
        state = reader.after(state, call, reader.result(call, StepResult(observation=visit.observation)))
    proposed = [goal.instruction for goal in WebShopGoals().proposals(wish.instruction, state, Random(0))]
    assert len(proposed) == 3, "the other price limits"
    assert all(" with color: red, " in instruction for instruction in proposed)


def test_nouns_are_all_words_except_numbers_and_listed_other_words() -> None:
    assert nouns("The Brass Lamp with 3 Shades, 40cm (for Living Room)") == (
        "brass",
        "lamp",
        "shades",
        "living",
        "room",
    )
    assert nouns("") == ()


def test_of_two_options_with_the_same_value_the_last_one_is_chosen() -> None:
    both = product("B000000001", "Mug", demand="Find me a mug", options={"cup": ("red",), "lid": ("red",)})
    visit = ShopVisit(Shop([both], 0), Goal(both, {}, 10.0))
    assert visit.search("mug")
    assert visit.click("b000000001")
    assert visit.click("red")
    assert visit.state.endswith("chosen: lid: red")


def test_the_small_catalogue_is_of_our_own_making() -> None:
    rows = json.loads(SMALL.joinpath("items_shuffle.json").read_text(encoding="utf-8"))
    assert all(row["asin"].startswith("DG") for row in rows)
    assert len({row["query"] for row in rows}) == 8
    assert len(shop(None, 0).goals) >= 150


def test_a_catalogue_is_loaded_once_for_all() -> None:
    assert shop(None, 0) is shop(None, 0)
    assert shop(None, 1) is not shop(None, 0)
