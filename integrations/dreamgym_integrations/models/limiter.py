"""How often and how often at once an endpoint is asked: as much as it takes, learned from its answers and refusals.

All episodes of a process that ask one model share one limiter. Nothing is held back until the endpoint refuses, or says
in its headers what is left. After a refusal everybody waits as long as it says. From then on requests are spread evenly
at the rate that the endpoint took before, which then grows like the window of TCP CUBIC (RFC 9438): fast up to the rate
of the last refusal, slow around it, and fast again where it turns out that more is taken.
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
"""Requests at once to an endpoint of which nothing is known yet."""
WINDOW_S = 60.0
"""Most limits are per minute."""
FIRST_PLATEAU_S, LONGEST_PLATEAU_S = 10.0, 600.0
"""K of RFC 9438: waiting time until the rate of the last refusal is tried again. It grows with each refusal
that is not at a much higher rate than the one before."""
LOWERED = 0.05
"""How far below the rate of the last refusal one goes on."""
BACK_OFF = 0.7
"""What is left of a rate that is refused, unless more than that was taken in the last minute."""
LONGEST_PAUSE_S = 60.0
"""Longest pause after refusals that do not say how long to wait. It begins with one second and doubles."""
NEWEST = 0.002
"""Weight of one answer in the means of seconds and tokens, once there were many."""
SLOW_GROWTH = 0.1
"""By how much requests at once grow in the time of one answer, once it is known how many are too many."""
SHORTEST_WAIT_S = 0.001
"""Less than that is a rounding error."""
MEASURED_S = 600.0
"""The throughput that predictions are made from is that of the last so many seconds."""

Limit = Literal["requests", "tokens", "places"]
"""What a refusal is about: requests a minute, tokens a minute, or requests at once."""


@dataclass
class Pace:
    """A limit per time, as a bucket that fills evenly.

    A limit that was learned has no room for bursts. The headers of some endpoints tell how much is left.
    """

    per_s: float = math.inf
    """How fast it fills at the last refusal, or as the endpoint tells."""
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
            return 0.0
        self.level = min(self.capacity, self.level + (now - self.at) * self.current_per_s)
        self.at = now
        return max(0.0, min(cost, self.capacity) - self.level) / self.current_per_s

    def refuse(self, taken_per_s: float) -> None:
        """Slow down: so much was taken in the last minute, and the endpoint refuses more."""
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
        """Take over what the endpoint says: its limit, what is left of it, and when all of it is there again."""
        self.is_told = True
        self.per_s = (most - left) / full_in_s if full_in_s > 0 and most > left else most / WINDOW_S
        self.capacity, self.level, self.at = most, left, now


@dataclass
class Turn:
    """A request that may be sent now."""

    sent_at: float
    tokens: float
    """What it was thought to cost."""
    is_refused: bool = False
    ended_at: float = math.inf


@dataclass
class Throughput:
    """What was answered while others waited for their turn, in the last MEASURED_S seconds."""

    answers: deque[tuple[float, float]] = field(default_factory=deque)
    """For each answer: the time, and how long others had been waiting in all."""
    since: float | None = None
    """When somebody began to wait; None: nobody does."""
    waited_s: float = 0.0

    def waiting_s(self, now: float) -> float:
        """Seconds in which anybody waited, up to now."""
        return self.waited_s + (now - self.since if self.since is not None else 0.0)

    def add(self, now: float) -> None:
        """Note an answer. The first minute does not count: a limit that had not been used up took more then."""
        if self.since is not None and self.waiting_s(now) > WINDOW_S:
            self.answers.append((now, self.waiting_s(now)))
        while self.answers and self.answers[0][0] < now - MEASURED_S:
            self.answers.popleft()

    def per_s(self) -> float | None:
        """Answers a second; None if too little was seen."""
        lasted = self.answers[-1][1] - self.answers[0][1] if self.answers else 0.0
        return (len(self.answers) - 1) / lasted if lasted >= WINDOW_S else None


class Limiter:
    """Lets requests through, one after the other in the order in which they came. It belongs to one event loop."""

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
        """Wait until a request may be sent; it runs inside.

        Args:
            tokens: of the prompt. What answers had on average is added.
            patience_s: if the endpoint answers nobody for so long, this raises TimeoutError.
            since: when the question was first asked. What was answered before that does not count.
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

    def refused(self, turn: Turn, limit: Limit, retry_after_s: float | None, headers: Mapping[str, str]) -> None:
        """Learn from a refusal. Those of requests that were sent before the last one was learned from count as one."""
        now = _now()
        turn.is_refused = True
        for name, pace in self._paces.items():
            if (told := _told(headers, name)) is not None:
                pace.tell(*told, now)
        if retry_after_s is not None or turn.sent_at > self._slowed_at:
            self._pause(retry_after_s)
        if turn.sent_at <= self._slowed_at:
            return
        # how much was taken shows when the pause is over, and the other refusals have come
        self._slowed_at, self._to_slow = now, limit

    def overloaded(self, turn: Turn, retry_after_s: float | None) -> None:
        """Learn from a server that is overloaded or cannot be reached: half as much at once, after a pause."""
        turn.is_refused = True
        if turn.sent_at > self._slowed_at:
            self._slowed_at, self._grows_fast = _now(), True
            self._places = max(1.0, min(self._places, self._running + 1) / 2)
            self._pause(retry_after_s)

    def _pause(self, retry_after_s: float | None) -> None:
        if retry_after_s is None:
            retry_after_s = min(2.0**self._pauses, LONGEST_PAUSE_S)
            self._pauses += 1
        self._open_at = max(self._open_at, _now() + retry_after_s)

    def seconds_for(self, calls: int, tokens_each: float, at_once: int) -> float:
        """How long so many more calls will take, as the endpoint has answered so far.

        Args:
            calls: number of questions that are left.
            tokens_each: tokens of one question and its answer on average.
            at_once: number of questions that are asked at the same time.
        """
        seconds = [calls * self._latency_s / max(1.0, min(at_once, self._places))]
        seconds += [
            calls / self._paces["requests"].per_s,
            calls * tokens_each / self._paces["tokens"].per_s,
        ]
        measured = self._measured.per_s()
        if measured is not None and max(self._held_s, key=lambda limit: self._held_s[limit]) == "places":
            seconds.append(calls / measured)
        return max(seconds)

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
            if now >= max(since, self.answered_at) + patience_s:
                raise TimeoutError
            if now < self._open_at:
                await asyncio.sleep(self._open_at - now)
                continue
            self._slow_down()
            waits: dict[Limit, float] = {
                "requests": self._paces["requests"].wait_s(1, now),
                "tokens": self._paces["tokens"].wait_s(tokens, now),
            }
            limit = max(waits, key=lambda name: waits[name])
            if waits[limit] > 0:
                await asyncio.sleep(max(waits[limit], SHORTEST_WAIT_S))
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
        """After a pause, go on at what the endpoint took before it."""
        while self._turns and self._turns[0].sent_at < self._slowed_at - WINDOW_S:
            self._turns.popleft()
        limit, self._to_slow = self._to_slow, None
        if limit is None:
            return
        taken = [turn for turn in self._turns if turn.sent_at <= self._slowed_at and not turn.is_refused]
        if limit == "places":
            at_once = sum(turn.ended_at > self._slowed_at for turn in taken)
            self._places, self._grows_fast = max(1.0, min(self._places, at_once)), False
        else:
            worth = len(taken) if limit == "requests" else sum(turn.tokens for turn in taken)
            self._paces[limit].refuse(max(1.0, worth) / WINDOW_S)


def limit_of(message: str) -> Limit:
    """What a refusal is about, by its words; requests if it does not say."""
    if re.search(r"concurren|at once|in flight|simultaneous|parallel", message, re.IGNORECASE):
        return "places"
    return (
        "tokens"
        if re.search(r"\btokens? per|\bTPM\b|token.{0,20}limit|token.{0,20}quota", message, re.I)
        else "requests"
    )


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait as the headers of a refusal say; None if they do not."""
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
    except ValueError:
        return None
    return max(0.0, date.timestamp() - time.time())


def _told(headers: Mapping[str, str], limit: Limit) -> tuple[float, float, float] | None:
    """What is allowed, what is left and in how many seconds all of it is there again, as OpenAI or Anthropic say it."""
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
    """Seconds of `6m0s`, `120ms`, `1.5`, or until a time of RFC 3339."""
    if (seconds := _number(text)) is not None:
        return seconds
    if len(text) <= 32 and re.fullmatch(r"(?:\d+(?:\.\d+)?(?:ms|[smhd]))+", text):
        parts = re.findall(r"([\d.]+)(ms|[smhd])", text)
        return math.fsum(float(number) * _UNITS_S[unit] for number, unit in parts)
    try:
        return max(0.0, datetime.fromisoformat(text).timestamp() - time.time())
    except ValueError:
        return None


def _now() -> float:
    return asyncio.get_running_loop().time()
