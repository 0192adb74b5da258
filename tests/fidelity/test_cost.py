"""What a step costs, and from when on a dream is worth it."""

import pytest
from cases import case
from desk import START, Desk, call, task

from dreamgym.errors import EnvironmentUnavailable
from dreamgym.evaluation.cost import Prices, Stopwatch, cost
from dreamgym.types import Tier

pytestmark = pytest.mark.anyio

CALLS = [
    case("a", "b", "b", seconds=3.0, prompt_tokens=3000, completion_tokens=100),
    case("a", "b", "b", seconds=1.0, prompt_tokens=1000, completion_tokens=100),
    case("a", "b", "b", tier=Tier.RECORDED),
    case("a", "b", "b", tier=Tier.CHECK),
    case("a", "b", None, seconds=9.0),
]


def said(prices: Prices, known: int = 100) -> tuple[str, ...]:
    return cost(CALLS, prices, known_transitions=known).said


def test_costs_are_means_over_all_answered_steps_those_without_a_model_included() -> None:
    found = cost(CALLS, Prices(prompt=1.0, completion=10.0), known_transitions=0)
    assert (found.steps, found.asked, found.prompt_tokens, found.completion_tokens) == (4, 2, 1000.0, 50.0)
    assert found.seconds == 1.0
    assert found.money == pytest.approx(0.0015)


def test_what_is_not_known_is_said_and_not_guessed() -> None:
    found = cost(CALLS, Prices(), known_transitions=0)
    assert (found.money, found.real_seconds, found.real_price) == (None, None, None)
    assert "nothing is known" in found.said[0]
    assert "--price-in" in found.said[1]


def test_the_break_even_in_sessions_is_where_the_dream_does_more_steps_a_second() -> None:
    # reality: 4 sessions at 0.5 s, 8 steps a second; the dream: n at 1 s
    assert "faster from 9 parallel sessions on" in said(Prices(real_seconds=0.5, real_parallel=4))[0]
    assert "faster from the first session on" in said(Prices(real_seconds=5.0, real_parallel=4))[0]
    assert "faster from 2 parallel sessions on" in said(Prices(real_seconds=4.0, real_parallel=4))[0]
    assert "never faster" in said(Prices(real_seconds=0.5))[0]
    assert "faster from the first session on" in said(Prices(real_seconds=2.0))[0]


def test_the_break_even_in_steps_counts_what_the_recordings_cost() -> None:
    prices = Prices(prompt=1.0, completion=10.0, real_price=0.0065)  # the dream's step: 0.0015
    # 3 real steps cost 0.0195, each dreamed step saves 0.005
    assert "cheaper from 4 dreamed steps on" in said(prices, known=3)[1]
    assert "never cheaper" in said(prices.model_copy(update={"real_price": 0.0015}))[1]
    assert "cheaper from 1 dreamed steps on" in said(prices, known=0)[1]


def test_nothing_is_compared_where_nothing_was_answered() -> None:
    found = cost([case("a", "b", None)], Prices(real_seconds=1.0, real_price=1.0), known_transitions=3)
    assert (found.steps, found.seconds, found.said) == (0, 0.0, ())


async def test_a_stopwatch_counts_the_steps_that_were_answered_and_changes_nothing() -> None:
    watch = Stopwatch()
    environment = watch.timed(lambda: Desk(fails_at="O-2"))()
    first = await environment.reset(task(1))
    assert first.state == task(1).initial_state
    result = await environment.step(call("get", "O-1"))
    assert result.structured == START["orders"]["O-1"]  # type: ignore[index, call-overload]
    with pytest.raises(EnvironmentUnavailable):
        await environment.step(call("get", "O-2"))
    assert watch.steps == 1
    assert watch.seconds > 0
    assert list(environment.tools) == list(Desk.tools)
