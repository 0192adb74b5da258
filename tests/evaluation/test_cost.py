"""The cost of a step, and the point from which a dream is faster or cheaper than reality."""

import pytest
from cases import case
from desk import START, Desk, call, task

from dreamgym.errors import EnvironmentUnavailable, InvalidInput
from dreamgym.evaluation.cost import Cost, Prices, cost
from dreamgym.evaluation.report.text import cost_notes, plain
from dreamgym.evaluation.stopwatch import Stopwatch
from dreamgym.prices import Price
from dreamgym.types import Tier

pytestmark = pytest.mark.anyio

CALLS = [
    case("a", "b", "b", seconds=3.0, prompt_tokens=3000, completion_tokens=100),
    case("a", "b", "b", seconds=1.0, prompt_tokens=1000, completion_tokens=100),
    case("a", "b", "b", tier=Tier.RECORDED),
    case("a", "b", "b", tier=Tier.CHECK),
    case("a", "b", None, seconds=9.0),
]


PRICE = Price(prompt=1.0, completion=10.0, cached=0.5)


def found(prices: Prices, known: int = 100, price: Price | None = None) -> Cost:
    return cost(CALLS, prices, known_transitions=known, price=price)


def test_costs_are_means_over_all_answered_steps_those_without_a_model_included() -> None:
    one = found(Prices(), price=PRICE)
    assert (one.steps, one.asked, one.prompt_tokens, one.completion_tokens) == (4, 2, 1000.0, 50.0)
    assert one.seconds == 1.0
    assert one.money == pytest.approx(0.0015)


def test_unknown_costs_are_reported_and_not_guessed() -> None:
    one = found(Prices())
    assert (one.money, one.faster_from_sessions, one.cheaper_from_steps) == (None, None, None)
    time, money = map(plain, cost_notes(one))
    assert "not known; give them with --cost real_seconds" in time
    assert "not compared; give the price of the model (DREAMGYM_PRICE)" in money


def test_the_break_even_in_sessions_is_where_the_dream_does_more_steps_a_second() -> None:
    # Reality: 4 sessions at 0.5 s a step, so 8 steps a second. The dream: n sessions at 1 s a step.
    assert found(Prices(real_seconds=0.5, real_parallel=4)).faster_from_sessions == 9
    assert found(Prices(real_seconds=5.0, real_parallel=4)).faster_from_sessions == 1
    assert found(Prices(real_seconds=4.0, real_parallel=4)).faster_from_sessions == 2
    assert found(Prices(real_seconds=0.5)).faster_from_sessions is None
    assert found(Prices(real_seconds=2.0)).faster_from_sessions == 1


def test_the_report_words_the_break_even_in_sessions() -> None:
    def words(prices: Prices) -> str:
        return plain(cost_notes(found(prices))[0])

    nine = "faster from 9 parallel sessions on, if its steps take no longer then and all of reality's are in use."
    assert nine in words(Prices(real_seconds=0.5, real_parallel=4))
    assert "faster from the first session on" in words(Prices(real_seconds=5.0, real_parallel=4))
    assert "never faster" in words(Prices(real_seconds=0.5))
    assert "faster from the first session on" in words(Prices(real_seconds=2.0))


def test_the_break_even_in_steps_counts_what_the_recordings_cost() -> None:
    prices = Prices(real_price=0.0065)  # a step of the dream costs 0.0015
    # 3 real steps cost 0.0195, each dreamed step saves 0.005
    assert found(prices, known=3, price=PRICE).cheaper_from_steps == 4
    assert found(prices, known=0, price=PRICE).cheaper_from_steps == 1
    as_dear = prices.model_copy(update={"real_price": 0.0015})
    assert found(as_dear, price=PRICE).cheaper_from_steps is None
    assert "cheaper from 4 dreamed steps on" in plain(cost_notes(found(prices, known=3, price=PRICE))[1])
    assert "never cheaper" in plain(cost_notes(found(as_dear, price=PRICE))[1])


def test_nothing_is_compared_if_nothing_was_answered() -> None:
    prices = Prices(real_seconds=1.0, real_price=1.0)
    one = cost([case("a", "b", None)], prices, known_transitions=3)
    assert (one.steps, one.seconds, one.faster_from_sessions, one.cheaper_from_steps) == (0, 0.0, None, None)
    assert cost_notes(one) == []


@pytest.mark.parametrize("pair", ["real_price", "price=1", "real_price=dear", "real_seconds=0", "prompt=1"])
def test_an_invalid_cost_is_refused_and_named(pair: str) -> None:
    with pytest.raises(InvalidInput, match=f"--cost.*{pair.partition('=')[0]}"):
        Prices.of([pair])
    assert Prices.of(["real_price=0.5", "real_parallel=4"]) == Prices(real_price=0.5, real_parallel=4)


async def test_a_stopwatch_counts_the_steps_that_were_answered_and_changes_nothing() -> None:
    environment = Stopwatch(Desk(fails_at="O-2"))
    first = await environment.reset(task(1))
    assert first.state == task(1).initial_state
    result = await environment.step(call("get", "O-1"))
    assert result.structured == START["orders"]["O-1"]  # type: ignore[index, call-overload]
    with pytest.raises(EnvironmentUnavailable):
        await environment.step(call("get", "O-2"))
    assert len(environment.steps_s) == 1
    assert environment.steps_s[0] > 0
    assert list(environment.tools) == list(Desk.tools)
