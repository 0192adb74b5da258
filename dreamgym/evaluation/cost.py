"""What a predicted step costs, beside a step of the real environment, and from when on the dream is worth it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from pydantic import Field

from dreamgym.environment import Environment
from dreamgym.evaluation.calls import Compared
from dreamgym.types import Frozen, JsonObject, StepResult, Task, Tier, ToolCall


class Prices(Frozen):
    """What is known of prices and of the real environment; None: not known."""

    prompt: float | None = Field(default=None, ge=0)
    """Money per million prompt tokens."""
    completion: float | None = Field(default=None, ge=0)
    """Money per million completion tokens."""
    real_seconds: float | None = Field(default=None, gt=0)
    """Of one step of the real environment."""
    real_price: float | None = Field(default=None, ge=0)
    """Money per step of the real environment."""
    real_parallel: int | None = Field(default=None, ge=1)
    """Sessions that the real environment can run at once; None: as many as one likes."""


class Cost(Frozen):
    """Per predicted step, those included that no model was asked for."""

    steps: int
    asked: int
    """Steps for which a model was asked."""
    prompt_tokens: float
    completion_tokens: float
    seconds: float
    """Of one step with nothing beside it, or beside as many as were asked for at a time."""
    at_a_time: int
    money: float | None
    """None where no prices are known, or where the model does not count its tokens."""
    real_seconds: float | None
    real_price: float | None
    real_parallel: int | None
    said: tuple[str, ...]
    """The comparison in sentences."""


def cost(calls: Sequence[Compared], prices: Prices, *, known_transitions: int, at_a_time: int = 1) -> Cost:
    """The mean cost of the steps that were answered.

    Args:
        known_transitions: how many real steps the dream was made of; they were paid for in reality.
        at_a_time: how many steps were asked for at a time.
    """
    answered = [call.predicted for call in calls if call.predicted is not None]
    n = max(1, len(answered))
    prompt = sum(one.provenance.prompt_tokens for one in answered) / n
    completion = sum(one.provenance.completion_tokens for one in answered) / n
    seconds = sum(call.seconds for call in calls if call.predicted is not None) / n
    money = None
    if prices.prompt is not None and prices.completion is not None:
        money = (prompt * prices.prompt + completion * prices.completion) / 1e6
    return Cost(
        steps=len(answered),
        asked=sum(one.provenance.tier in {Tier.MODEL, Tier.CACHE} for one in answered),
        prompt_tokens=prompt,
        completion_tokens=completion,
        seconds=seconds,
        at_a_time=at_a_time,
        money=money,
        real_seconds=prices.real_seconds,
        real_price=prices.real_price,
        real_parallel=prices.real_parallel,
        said=(
            *(_faster(seconds, prices) if answered else ()),
            *(_cheaper(money, prices, known_transitions) if answered else ()),
        ),
    )


def _faster(dream: float, prices: Prices) -> list[str]:
    real, limit = prices.real_seconds, prices.real_parallel
    if real is None:
        return ["Time: nothing is known of the real environment's; --real-seconds tells it."]
    each = f"a step takes {dream:.3g} s in the dream and {real:.3g} s in reality"
    if limit is None:
        if dream < real:
            return [f"Time: {each}: the dream is faster from the first session on."]
        return [f"Time: {each}: the dream is never faster, as long as reality runs as many sessions at once."]
    sessions = int(limit * dream / real) + 1
    if sessions <= 1:
        return [f"Time: {each}, at most {limit} sessions at once there: the dream is faster from the first session on."]
    return [
        f"Time: {each}, at most {limit} sessions at once there: the dream is faster from {sessions} parallel sessions "
        "on, if its steps take no longer then."
    ]


def _cheaper(dream: float | None, prices: Prices, known: int) -> list[str]:
    real = prices.real_price
    if dream is None or real is None:
        return ["Money: not compared; it takes --price-in, --price-out and --real-price."]
    each = f"a step costs {dream:.3g} in the dream and {real:.3g} in reality"
    if dream >= real:
        return [f"Money: {each}: the dream is never cheaper."]
    steps = int(known * real / (real - dream)) + 1
    return [
        f"Money: {each}. With the {known} real steps that the dream is made of, it is cheaper from {steps} dreamed "
        "steps on."
    ]


class Stopwatch:
    """Measures how long the steps of an environment take."""

    def __init__(self) -> None:
        self.steps = 0
        self.seconds = 0.0

    def timed(self, make: Callable[[], Environment]) -> Callable[[], Environment]:
        """The same environments, their steps on this watch."""
        return lambda: _Timed(make(), self)


class _Timed:
    def __init__(self, environment: Environment, watch: Stopwatch) -> None:
        self._environment, self._watch = environment, watch

    @property
    def tools(self) -> Sequence[JsonObject]:
        return self._environment.tools

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        return await self._environment.reset(task, seed=seed)

    async def step(self, action: ToolCall) -> StepResult:
        started = time.perf_counter()
        result = await self._environment.step(action)
        self._watch.steps += 1
        self._watch.seconds += time.perf_counter() - started
        return result

    async def close(self) -> None:
        await self._environment.close()
