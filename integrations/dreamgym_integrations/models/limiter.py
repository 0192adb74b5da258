"""A limiter of requests to an endpoint: it learns the highest rate and concurrency from answers and refusals.

All episodes of a process that ask one model share one limiter. It holds nothing back until the endpoint refuses a
request, or reports in its headers how much is left. After a refusal all requests wait as long as the endpoint asks.
From then on they are spread evenly at the rate that the endpoint accepted before. That rate grows like the window of
TCP CUBIC (RFC 9438): fast up to the rate of the last refusal, slow around it, and fast again if more is accepted.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Literal

PLACES = 64.0
"""Limit of concurrent requests to an endpoint of which nothing is known yet."""
WINDOW_S = 60.0
"""Length of the window over which accepted requests are counted. Most limits are per minute."""
FIRST_PLATEAU_S, LONGEST_PLATEAU_S = 10.0, 600.0
"""K of RFC 9438: waiting time until the rate of the last refusal is tried again. It grows with each refusal, unless the
rate is much higher than at the refusal before."""
LOWERED = 0.05
"""Fraction by which requests continue below the rate of the last refusal."""
BACK_OFF = 0.7
"""Factor on a rate that is refused, unless the endpoint accepted more than that in the last minute."""
LONGEST_PAUSE_S = 60.0
"""Longest pause after refusals without a waiting time. The first pause is one second; each further one doubles."""
NEWEST = 0.002
"""Weight of a new answer in the running means of seconds and tokens, once there are many answers."""
SLOW_GROWTH = 0.1
"""Growth of concurrent requests in the time of one answer, once it is known how many are too many."""
SHORTEST_WAIT_S = 0.001
"""Shortest wait; a shorter one is a rounding error."""
MEASURED_S = 1_800.0
"""Number of last seconds whose throughput is used for predictions."""
YEAR_2001 = 1e9
"""A number from this on is no duration but a time in seconds since 1970."""
TRUSTED_S = 1_000.0
"""A throughput that was measured for this long predicts better than what is known of the limits."""

Limit = Literal["requests", "tokens", "places"]
"""The kind of limit that a refusal is about: requests a minute, tokens a minute, or concurrent requests."""


@dataclass
class Pace:
    """A limit per time, as a bucket that fills evenly.

    A learned limit has no room for bursts. The headers of some endpoints show how much is left.
    """

    per_s: float = math.inf
    """Rate at which it fills: that of the last refusal, or the one that the endpoint reports."""
    capacity: float = 0.0
    level: float = 0.0
    at: float = 0.0
    is_told: bool = False
    plateau_s: float = FIRST_PLATEAU_S
    waited_s: float = 0.0
    """Time that requests were held back by it since the last refusal."""

    @property
    def current_per_s(self) -> float:
        if self.is_told or self.per_s == math.inf:
            return self.per_s
        return self.per_s * (1 + LOWERED * ((self.waited_s - self.plateau_s) / self.plateau_s) ** 3)

    def wait_s(self, cost: float, now: float) -> float:
        """Seconds until there is room for a request of this cost."""
        if self.per_s == math.inf:
            self.level, self.at = 0.0, now  # requests without a limit are no debt to a later one
            return 0.0
        self.level = min(self.capacity, self.level + (now - self.at) * self.current_per_s)
        self.at = now
        return max(0.0, min(cost, self.capacity) - self.level) / self.current_per_s

    def refuse(self, taken_per_s: float) -> None:
        """Slow down: the endpoint accepted `taken_per_s` in the last minute, and refuses more."""
        if self.is_told:
            return
        if self.per_s == math.inf:
            self.per_s = taken_per_s
        else:
            before = self.per_s
            self.per_s = max(taken_per_s, BACK_OFF * self.current_per_s)
            is_another = self.per_s > 2 * before
            self.plateau_s = FIRST_PLATEAU_S if is_another else min(4 * self.plateau_s, LONGEST_PLATEAU_S)
        self.level, self.waited_s = min(self.level, 0.0), 0.0

    def tell(self, most: float, left: float, full_in_s: float, now: float) -> None:
        """Adopt what the endpoint reports: its limit, how much of it is left, and when all of it is available again."""
        self.is_told = True
        self.per_s = (most - left) / full_in_s if full_in_s > 0 and most > left else most / WINDOW_S
        self.capacity, self.level, self.at = most, left, now


@dataclass
class Turn:
    """A request that may be sent now."""

    sent_at: float
    tokens: float
    """Expected cost; the true one after the answer."""
    is_refused: bool = False
    ended_at: float = math.inf


@dataclass
class Throughput:
    """The answers that came while others waited for their turn, in the last MEASURED_S seconds."""

    answers: deque[tuple[float, float]] = field(default_factory=deque)
    """For each answer: its time, and the total seconds in which others had waited by then."""
    since: float | None = None
    """When the current wait began; None if nobody waits."""
    waited_s: float = 0.0

    def waiting_s(self, now: float) -> float:
        """Seconds in which at least one request waited, up to now."""
        return self.waited_s + (now - self.since if self.since is not None else 0.0)

    def add(self, now: float) -> None:
        """Count an answer. The first minute is left out: a limit that is not used up yet accepts more."""
        if self.since is not None and self.waiting_s(now) > WINDOW_S:
            self.answers.append((now, self.waiting_s(now)))
        while self.answers and self.answers[0][0] < now - MEASURED_S:
            self.answers.popleft()

    @property
    def lasted_s(self) -> float:
        """Seconds of waiting between the first and the last of the answers."""
        return self.answers[-1][1] - self.answers[0][1] if self.answers else 0.0

    def per_s(self) -> float | None:
        """Answers a second; None if too little was measured."""
        return (len(self.answers) - 1) / self.lasted_s if self.lasted_s >= WINDOW_S else None


class Limiter:
    """Lets requests through one by one, in the order in which they came. It belongs to one event loop."""

    def __init__(self) -> None:
        self._head = asyncio.Lock()
        self._freed = asyncio.Event()
        self._paces: dict[Limit, Pace] = {"requests": Pace(), "tokens": Pace()}
        self._held_s: dict[Limit, float] = {"requests": 0.0, "tokens": 0.0, "places": 0.0}
        self._places, self._grows_fast = PLACES, True
        self._turns: deque[Turn] = deque()
        self._running, self._waiting = 0, 0
        self._open_at, self._slowed_at, self._pauses = 0.0, -math.inf, 0
        self._to_slow: Limit | None = None
        self._measured = Throughput()
        self._answered, self._latency_s, self._answer_tokens = 0, 0.0, 0.0
        self.answered_at = -math.inf
        """When the endpoint last answered."""

    @asynccontextmanager
    async def turn(self, tokens: float, patience_s: float = math.inf, since: float = 0.0) -> AsyncIterator[Turn]:
        """Wait until a request may be sent; send it inside the block.

        Args:
            tokens: tokens of the prompt. The average tokens of an answer are added.
            patience_s: raises TimeoutError if the endpoint answers nobody for this long, and at once, with the reason,
                if the limit that it reports asks for a longer wait.
            since: time at which the question was first asked; patience begins then at the earliest.
        """
        self._wait(+1)
        try:
            async with self._head:
                await self._admit(tokens + self._answer_tokens, patience_s, since)
        finally:
            self._wait(-1)
        turn = Turn(_now(), tokens + self._answer_tokens)
        self._turns.append(turn)
        self._running += 1
        for name, pace in self._paces.items():
            pace.level -= 1 if name == "requests" else turn.tokens
        try:
            yield turn
        finally:
            self._running -= 1
            turn.ended_at = _now()
            self._freed.set()

    def answered(self, turn: Turn, prompt_tokens: int, completion_tokens: int, headers: Mapping[str, str]) -> None:
        """Learn from an answer."""
        now, tokens = _now(), float(prompt_tokens + completion_tokens)
        self._answered += 1
        weight = max(1 / self._answered, NEWEST)
        self._latency_s += weight * (now - turn.sent_at - self._latency_s)
        self._answer_tokens += weight * (completion_tokens - self._answer_tokens)
        self._paces["tokens"].level += turn.tokens - tokens
        turn.tokens = tokens
        self.answered_at, self._pauses = now, 0
        self._measured.add(now)
        self._places += 1 if self._grows_fast else SLOW_GROWTH / self._places
        for name, pace in self._paces.items():
            if (told := _told(headers, name)) is not None:
                pace.tell(*told, now)
        self._freed.set()

    def rejected(self, turn: Turn) -> None:
        """Give back the tokens of a request that the endpoint rejected as it was: it has not used any."""
        self._paces["tokens"].level += turn.tokens
        turn.tokens = 0.0

    def refused(self, turn: Turn, limit: Limit, retry_after_s: float | None, headers: Mapping[str, str]) -> None:
        """Learn from a refusal. Refusals of requests that were sent before the last slow-down count as part of it."""
        now = _now()
        turn.is_refused = True
        for name, pace in self._paces.items():
            if (told := _told(headers, name)) is not None:
                pace.tell(*told, now)
        if retry_after_s is not None or turn.sent_at > self._slowed_at:
            self._pause(retry_after_s)
        if turn.sent_at <= self._slowed_at:
            return
        # how much was accepted is known only after the pause, when the other refusals have come
        self._slowed_at, self._to_slow = now, limit

    def overloaded(self, turn: Turn, retry_after_s: float | None) -> None:
        """Learn from a server that is overloaded or cannot be reached: pause, then send half as much at once."""
        turn.is_refused = True
        if turn.sent_at > self._slowed_at:
            self._slowed_at, self._grows_fast = _now(), True
            self._places = max(1.0, min(self._places, self._running + 1) / 2)
            self._pause(retry_after_s)

    def _pause(self, retry_after_s: float | None) -> None:
        if retry_after_s is None:
            retry_after_s = min(2.0 ** min(self._pauses, 10), LONGEST_PAUSE_S)  # a higher power may be no float
            self._pauses += 1
        self._open_at = max(self._open_at, _now() + retry_after_s)

    def seconds_for(self, calls: int, tokens_each: float, at_once: int) -> float:
        """Predicted seconds that `calls` more calls will take, from the endpoint's answers so far.

        Args:
            calls: number of questions that are left.
            tokens_each: average tokens of one question with its answer.
            at_once: number of questions that are asked at the same time.
        """
        unlimited_s = calls * self._latency_s / max(1.0, min(at_once, self._places))
        by_limits_s = max(calls / self._paces["requests"].per_s, calls * tokens_each / self._paces["tokens"].per_s)
        measured = self._measured.per_s()
        if measured is None:
            return max(unlimited_s, by_limits_s)
        if self._measured.lasted_s >= TRUSTED_S:
            return max(unlimited_s, calls / measured)
        is_by_places = max(self._held_s, key=lambda limit: self._held_s[limit]) == "places"
        return max(unlimited_s, by_limits_s, calls / measured if is_by_places else 0.0)

    def _wait(self, more: int) -> None:
        now = _now()
        self._waiting += more
        if self._waiting == 0:
            self._measured.waited_s, self._measured.since = self._measured.waiting_s(now), None
        elif self._measured.since is None:
            self._measured.since = now

    async def _admit(self, tokens: float, patience_s: float, since: float) -> None:
        while True:
            now = _now()
            left_s = max(since, self.answered_at) + patience_s - now
            if left_s <= 0:
                raise TimeoutError
            if now < self._open_at:
                await asyncio.sleep(max(min(self._open_at - now, left_s), SHORTEST_WAIT_S))
                continue
            self._slow_down()
            waits: dict[Limit, float] = {
                "requests": self._paces["requests"].wait_s(1, now),
                "tokens": self._paces["tokens"].wait_s(tokens, now),
            }
            limit = max(waits, key=lambda name: waits[name])
            if waits[limit] > 0:
                if waits[limit] > patience_s and self._paces[limit].is_told:
                    raise TimeoutError(f"has a limit of {limit} that allows the next one only in {waits[limit]:.0f} s")
                await asyncio.sleep(max(min(waits[limit], left_s), SHORTEST_WAIT_S))
            elif self._running >= int(self._places):
                limit = "places"
                self._freed.clear()
                await self._freed.wait()
            else:
                return
            self._held_s[limit] += _now() - now
            if limit != "places":
                self._paces[limit].waited_s += _now() - now

    def _slow_down(self) -> None:
        """After a pause, continue at the rate or concurrency that the endpoint accepted before it.

        If at most one was accepted in the last minute, no rate is known. Then half as many requests are sent at once.
        """
        limit, self._to_slow = self._to_slow, None
        window_ends = _now() if limit is None else self._slowed_at
        while self._turns and self._turns[0].sent_at < window_ends - WINDOW_S:
            self._turns.popleft()
        if limit is None:
            return
        taken = [turn for turn in self._turns if turn.sent_at <= self._slowed_at and not turn.is_refused]
        if limit == "places":
            at_once = sum(turn.ended_at > self._slowed_at for turn in taken)
            self._places, self._grows_fast = max(1.0, min(self._places, at_once)), False
            return
        worth = len(taken) if limit == "requests" else sum(turn.tokens for turn in taken)
        if worth <= 1 and self._paces[limit].per_s == math.inf:
            # too few answers to know a rate: send half as much at once, as after an overload
            sent = sum(turn.sent_at <= self._slowed_at for turn in self._turns)
            self._places, self._grows_fast = max(1.0, min(self._places, sent) / 2), True
        else:
            self._paces[limit].refuse(max(1.0, worth) / WINDOW_S)


def limit_of(message: str) -> Limit:
    """The kind of limit that a refusal is about, found by its words; requests if none match."""
    if re.search(r"concurren|at once|in flight|simultaneous|parallel", message, re.IGNORECASE):
        return "places"
    if re.search(r"\btokens? per|\bTPM\b|token.{0,20}limit|token.{0,20}quota", message, re.IGNORECASE):
        return "tokens"
    return "requests"


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from the headers of a refusal; None if they contain none."""
    for header, unit in (("retry-after-ms", 1_000), ("retry-after", 1)):
        value = headers.get(header, "")
        try:
            seconds = float(value) / unit
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
        return max(0.0, date.timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _told(headers: Mapping[str, str], limit: Limit) -> tuple[float, float, float] | None:
    """Limit, remainder, and seconds until all of it is available again, from the headers of OpenAI or Anthropic."""
    for words in (f"x-ratelimit-{{}}-{limit}", f"anthropic-ratelimit-{limit}-{{}}"):
        most, left = (_number(headers.get(words.format(word), "")) for word in ("limit", "remaining"))
        full_in_s = _duration_s(headers.get(words.format("reset"), ""))
        if most and left is not None and full_in_s is not None:
            return most, left, full_in_s
    return None


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{1,15}(?:\.\d{1,9})?", text) else None


_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def _duration_s(text: str) -> float | None:
    """Seconds of a duration such as `6m0s`, `120ms` or `1.5`, or until a time in RFC 3339 format or of Unix."""
    if (seconds := _number(text)) is not None:
        return seconds if seconds < YEAR_2001 else max(0.0, seconds - time.time())
    if len(text) <= 32 and re.fullmatch(r"(?:\d+(?:\.\d+)?(?:ms|[smhd]))+", text):
        parts = re.findall(r"([\d.]+)(ms|[smhd])", text)
        return math.fsum(float(number) * _UNITS_S[unit] for number, unit in parts)
    try:
        return max(0.0, datetime.fromisoformat(text).timestamp() - time.time())
    except ValueError:
        return None


def _now() -> float:
    return asyncio.get_running_loop().time()
