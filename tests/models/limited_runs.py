"""Runs of hours at limited endpoints, without HTTP: the limiter's predictions and the true durations."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from dreamgym_integrations.models.limiter import Limiter, limit_of, retry_after_s
from fake_endpoints import Before, Bucket, FakeEndpoint, Windows, at_most_at_once
from virtual_time import VirtualTimeLoop

AT_ONCE = 16
"""Questions that are asked at the same time."""


@dataclass(frozen=True)
class Run:
    """A run of two hours at an endpoint with one limit."""

    before: Callable[[], Before]
    calls: int


RUNS = {
    "60 requests a minute, Retry-After 15 s": Run(lambda: Windows(60, retry_after_s=15), 7_200),
    "60 requests a minute, no Retry-After": Run(lambda: Windows(60), 7_200),
    "60 requests a minute in a bucket": Run(
        lambda: Bucket(60, counts=lambda body: 1, reason="Rate limit reached for requests"), 7_200
    ),
    "100,000 tokens a minute": Run(
        lambda: Bucket(100_000, counts=lambda body: int(body["tokens"]), reason="tokens per min (TPM) reached"), 5_000
    ),
    "8 requests at once": Run(lambda: at_most_at_once(8), 14_000),
    "no limit": Run(lambda: lambda endpoint, body: None, 28_000),
}


@dataclass
class Outcome:
    """The duration of a run, its refusals, and the errors of the predictions during it."""

    hours: float = 0.0
    refused: int = 0
    errors: dict[int, float] = field(default_factory=dict)
    """Relative error of the predicted remaining time (predicted / true - 1), by minutes since the start."""


def outcome(run: Run, seed: int, looks: tuple[int, ...]) -> Outcome:
    """Ask all questions, and at the minutes `looks` predict how long the remaining ones will take."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(_outcome(run, seed, looks))


async def _outcome(run: Run, seed: int, looks: tuple[int, ...]) -> Outcome:
    chance, limiter, before, found = random.Random(seed), Limiter(), run.before(), Outcome()
    endpoint = FakeEndpoint()
    left = [int(chance.lognormvariate(7.6, 0.5)) for _ in range(run.calls)]
    mean, done = sum(left) / len(left), 0
    predicted: dict[int, float] = {}

    async def ask(tokens: int) -> bool:
        async with limiter.turn(tokens * 0.8) as turn:
            endpoint.running += 1
            refusal = before(endpoint, {"tokens": tokens})
            if refusal is None:
                await asyncio.sleep(chance.lognormvariate(1.2, 0.6))
                limiter.answered(turn, int(tokens * 0.8), tokens - int(tokens * 0.8), {})
            endpoint.running -= 1
            if refusal is None:
                return True
        found.refused += 1
        reason = json.loads(str(refusal.text))["error"]["message"]
        limiter.refused(turn, limit_of(reason), retry_after_s(refusal.headers), refusal.headers)
        return False

    async def worker() -> None:
        nonlocal done
        while left:
            tokens = left.pop()
            while not await ask(tokens):
                pass
            done += 1

    async def look() -> None:
        for minutes in looks:
            await asyncio.sleep(60 * minutes - endpoint.now)
            predicted[minutes] = limiter.seconds_for(run.calls - done, mean, AT_ONCE)

    looking = asyncio.create_task(look())
    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    looking.cancel()
    found.hours = endpoint.now / 3_600
    found.errors = {at: seconds / (endpoint.now - 60 * at) - 1 for at, seconds in predicted.items()}
    return found
