"""Compares the cost of a predicted step with that of a real one, and finds where the dream breaks even."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError

from dreamgym.environment import first_reason
from dreamgym.errors import InvalidInput
from dreamgym.prices import EXPECTED, PRICE_VARIABLE, Price
from dreamgym.types import Frozen, Tier, TokenUsage

if TYPE_CHECKING:
    from dreamgym.evaluation.calls import Compared


class Prices(Frozen):
    """Costs of the real environment; None: not known."""

    real_seconds: float | None = Field(default=None, gt=0)
    """Seconds per step of the real environment."""
    real_price: float | None = Field(default=None, ge=0)
    """Dollars per step of the real environment."""
    real_parallel: int | None = Field(default=None, ge=1)
    """Sessions that the real environment can run at once; None: any number."""

    @classmethod
    def of(cls, pairs: Iterable[str]) -> Prices:
        """The prices given by pairs such as `real_price=0.01`.

        Raises:
            InvalidInput: a text is not such a pair, or its key or number is not valid.
        """
        given: dict[str, str] = {}
        for pair in pairs:
            key, equals, number = pair.partition("=")
            if key in ("prompt", "completion"):
                raise InvalidInput(
                    f"--cost {pair}: give the model's price in the variable {PRICE_VARIABLE}, as for --budget: "
                    f"{EXPECTED}"
                )
            if not equals or key not in cls.model_fields:
                raise InvalidInput(f"--cost {pair}: expected KEY=NUMBER with one of {', '.join(cls.model_fields)}")
            given[key] = number
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise InvalidInput(f"--cost {first_reason(error)}") from error


class Cost(Frozen):
    """Mean cost per predicted step, including the steps for which no model was asked."""

    steps: int
    asked: int
    """Steps for which a model was asked."""
    prompt_tokens: float
    cached_tokens: float = 0.0
    """Part of the prompt tokens that the endpoint had in its cache."""
    completion_tokens: float
    thinking_tokens: float = 0.0
    """Part of the completion tokens that are thinking."""
    seconds: float
    """Time until an answer while `at_a_time` steps are asked for together."""
    at_a_time: int | None
    """None: not always the same number, as some steps were predicted in an earlier run."""
    money: float | None
    """Dollars; None if the price of tokens is not known."""
    prices: Prices
    known_transitions: int
    """Recorded real steps that the dream knows; they were paid for in reality."""
    faster_from_sessions: int | None
    """Number of parallel sessions from which the dream makes more steps a second than reality, if its steps take no
    longer then. Reality uses as many, or all of its `prices.real_parallel` if that is given. None: never, or
    `prices.real_seconds` is not known, or nothing was answered."""
    cheaper_from_steps: int | None
    """Number of dreamed steps from which the dream costs less than reality, recordings included. None: never, or
    `money` or `prices.real_price` is not known, or nothing was answered."""


def cost(
    calls: Sequence[Compared],
    prices: Prices,
    *,
    known_transitions: int,
    price: Price | None = None,
    at_a_time: int | None = 1,
) -> Cost:
    """The mean cost of the steps that were answered.

    Args:
        calls: the predicted calls, answered or not.
        prices: costs of the real environment.
        known_transitions: number of recorded real steps that the dream knows; they were paid for in reality.
        price: price of the model's tokens; None: not known.
        at_a_time: number of steps that were asked for at a time; None: not always the same.
    """
    answered = [call.predicted for call in calls if call.predicted is not None]
    n = max(1, len(answered))
    used = TokenUsage.total(one.provenance for one in answered)
    seconds = sum(call.seconds for call in calls if call.predicted is not None) / n
    money = None if price is None else price.of(used) / n
    faster = cheaper = None
    if answered and prices.real_seconds is not None:
        if prices.real_parallel is not None:
            faster = int(prices.real_parallel * seconds / prices.real_seconds) + 1
        elif seconds < prices.real_seconds:
            faster = 1
    if answered and money is not None and prices.real_price is not None and money < prices.real_price:
        cheaper = int(known_transitions * prices.real_price / (prices.real_price - money)) + 1
    return Cost(
        steps=len(answered),
        asked=sum(one.provenance.tier in {Tier.MODEL, Tier.CACHE} for one in answered),
        prompt_tokens=used.prompt_tokens / n,
        cached_tokens=used.cached_tokens / n,
        completion_tokens=used.completion_tokens / n,
        thinking_tokens=used.thinking_tokens / n,
        seconds=seconds,
        at_a_time=at_a_time,
        money=money,
        prices=prices,
        known_transitions=known_transitions,
        faster_from_sessions=faster,
        cheaper_from_steps=cheaper,
    )
