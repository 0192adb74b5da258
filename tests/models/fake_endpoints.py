"""Fake chat-completions servers of every kind that is in use: on real sockets, in the event loop of their clients."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Body = dict[str, Any]
Before = Callable[["FakeEndpoint", Body], web.Response | None]

CHARACTERS_PER_TOKEN = 4


@dataclass
class FakeEndpoint:
    """One model behind one address. By default it accepts every parameter and answers after half a second."""

    refuses: frozenset[str] = frozenset()
    """Parameters that it refuses with status 400, in OpenAI's wording."""
    formats: frozenset[str] = frozenset({"json_schema", "json_object"})
    """Values of `response_format.type` that it accepts."""
    thinks: Callable[[int], int] = lambda number: 0
    """Tokens of thoughts before the answer with this number. If they take all the room, the answer is empty."""
    most_tokens: int = 1_000_000
    """Most tokens of an answer that a request may ask for."""
    seconds: float = 0.5
    """Duration of an answer."""
    before: Before = lambda endpoint, body: None
    """Called first with every request. If it returns a response, that is the answer."""
    asked: list[Body] = field(default_factory=list)
    """All requests, including refused ones."""
    answered: int = 0
    """Number of answered questions."""
    running: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of the next answer."""

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def complete(self, request: web.Request) -> web.Response:
        """Handle one request."""
        body = await request.json()
        self.asked.append(body)
        self.running += 1
        try:
            refusal = self.before(self, body) or self._refusal(body)
            if refusal is not None:
                return refusal
            await asyncio.sleep(self.seconds)
        finally:
            self.running -= 1
        self.answered += 1
        return self._answer(body)

    def _refusal(self, body: Body) -> web.Response | None:
        for name in sorted(self.refuses & body.keys()):
            instead = " Use 'max_completion_tokens' instead." if name == "max_tokens" else ""
            return refused(
                400, f"Unsupported parameter: '{name}' is not supported with this model.{instead}", param=name
            )
        if (wanted := body.get("response_format")) and wanted["type"] not in self.formats:
            return refused(400, f"response_format of type '{wanted['type']}' is not known", param="response_format")
        if room_of(body) > self.most_tokens:
            return refused(400, f"max_tokens is too large: this model supports at most {self.most_tokens} tokens")
        return None

    def _answer(self, body: Body) -> web.Response:
        thoughts = min(self.thinks(self.answered), room_of(body))
        text = simulated(body)
        spoken = min(len(text) // CHARACTERS_PER_TOKEN + 1, room_of(body) - thoughts)
        cut = spoken * CHARACTERS_PER_TOKEN < len(text)
        answer: dict[str, Any] = {"index": 0, "finish_reason": "length" if cut else "stop"}
        answer["message"] = {"role": "assistant", "content": text[: spoken * CHARACTERS_PER_TOKEN] if cut else text}
        usage = {"prompt_tokens": prompt_tokens(body), "completion_tokens": thoughts + spoken}
        usage["total_tokens"] = sum(usage.values())
        if thoughts:
            usage["completion_tokens_details"] = {"reasoning_tokens": thoughts}  # type: ignore[assignment]
        told = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [answer], "usage": usage}
        return web.json_response(told, headers=self.headers)


def room_of(body: Body) -> int:
    """Return the most tokens that the answer may have."""
    return int(body.get("max_completion_tokens") or body.get("max_tokens") or 1_000_000)


def prompt_tokens(body: Body) -> int:
    return sum(len(message["content"]) for message in body["messages"]) // CHARACTERS_PER_TOKEN


def refused(status: int, message: str, *, headers: dict[str, str] | None = None, **error: str) -> web.Response:
    """Return an error in OpenAI's wording."""
    kind = "invalid_request_error" if status < 429 else "server_error"
    return web.json_response({"error": {"message": message, "type": kind, **error}}, status=status, headers=headers)


def simulated(body: Body) -> str:
    """Return an answer that repeats the argument of a simulated step, or the answer to a probe."""
    found = re.search(r"<action>\n(.*)\n</action>", body["messages"][-1]["content"])
    if found is None:
        return '{"ok": true}'
    said = f"noted {json.loads(found[1])['arguments']['text']}"
    answer = {"reasoning": "", "observation": said, "state": None, "error": False}
    return json.dumps({**answer, "terminated": False, "success": False})


@asynccontextmanager
async def serving(endpoint: FakeEndpoint) -> AsyncIterator[str]:
    """Serve an endpoint on a free port of this machine; yields the base URL, which ends in /v1."""

    async def listed(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    app = web.Application(client_max_size=2**24)
    app.router.add_post("/v1/chat/completions", endpoint.complete)
    app.router.add_get("/v1/models", listed)
    async with running(app) as url:
        yield f"{url}/v1"


@asynccontextmanager
async def running(app: web.Application) -> AsyncIterator[str]:
    """Serve an app on a free port of this machine; yields its URL."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        await web.SockSite(runner, listener).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            await runner.cleanup()


class Windows:
    """A limit of requests in each window of time; further ones are refused with status 429.

    Args:
        most: number of requests in a window.
        retry_after_s: the `Retry-After` of a refusal; None leaves it out.
        every_s: length of a window, by default a minute.
    """

    def __init__(
        self,
        most: int,
        *,
        retry_after_s: float | None = None,
        every_s: float = 60,
    ) -> None:
        self._every_s = every_s
        self._most, self._retry_after_s = most, retry_after_s
        self._used = (0, 0)

    def __call__(self, endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        window = int(endpoint.now // self._every_s)
        used = self._used[1] if self._used[0] == window else 0
        if used == self._most:
            headers = {} if self._retry_after_s is None else {"Retry-After": f"{self._retry_after_s:g}"}
            return refused(429, "Rate limit reached for requests", headers=headers)
        self._used = (window, used + 1)
        return None


class Bucket:
    """A limit per minute that refills continuously, as at OpenAI and Anthropic; what exceeds it is refused with 429.

    A refusal contains the milliseconds until there is room, and a text that shows which limit it was.

    Args:
        per_minute: number of requests or tokens.
        counts: number of requests or tokens that one request counts as.
        reason: the text of the refusal.
        told_as: `requests` or `tokens`, if each answer reports in OpenAI's headers how many are left.
    """

    def __init__(self, per_minute: int, *, counts: Callable[[Body], int], reason: str, told_as: str = "") -> None:
        self._told_as = told_as
        self._per_s, self._most, self._level, self._at = per_minute / 60, per_minute, float(per_minute), 0.0
        self._counts, self._reason = counts, reason

    def __call__(self, endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        self._level = min(self._most, self._level + (endpoint.now - self._at) * self._per_s)
        self._at = endpoint.now
        worth = self._counts(body)
        if worth > self._level:
            wait_ms = (worth - self._level) / self._per_s * 1_000
            return refused(429, self._reason, headers={"retry-after-ms": f"{wait_ms:.0f}"})
        self._level -= worth
        if self._told_as:
            left = {"limit": self._most, "remaining": self._level}
            told = {f"x-ratelimit-{word}-{self._told_as}": f"{int(value)}" for word, value in left.items()}
            full_in_s = (self._most - self._level) / self._per_s
            endpoint.headers = {**told, f"x-ratelimit-reset-{self._told_as}": f"{full_in_s * 1_000:.0f}ms"}
        return None


def bursts_of_503(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
    """Refuse with 503 in the first 6 of every 20 seconds."""
    return refused(503, "The server is overloaded") if endpoint.now % 20 < 6 else None


def at_most_at_once(most: int) -> Before:
    """Refuse more than this number of requests at the same time, without a `Retry-After`."""

    def before(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        return refused(429, "too many concurrent requests") if endpoint.running > most else None

    return before


def rubbish_first(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
    """Answer each question about a step with a page, then with half a stream, and only then with a completion."""
    before = endpoint.asked.count(body) - 1
    if "<action>" not in body["messages"][-1]["content"] or before > 1:
        return None
    if before == 0:
        return web.Response(text="<html><h1>Please wait</h1></html>", content_type="text/html")
    return web.Response(text='data: {"choices": [{"delta": {"content', content_type="text/event-stream")


def changes_its_mind(after: int) -> Before:
    """Accept everything at first; after this number of answers, refuse schemas, the temperature and the seed."""

    def before(endpoint: FakeEndpoint, body: Body) -> web.Response | None:
        if endpoint.answered >= after:
            endpoint.refuses, endpoint.formats = frozenset({"temperature", "seed"}), frozenset()
        return None

    return before


REASONING = frozenset({"temperature", "max_tokens", "seed", "logprobs"})
"""Parameters that OpenAI's reasoning models refuse."""

KINDS: dict[str, Callable[[], FakeEndpoint]] = {
    "takes everything": FakeEndpoint,
    "reasoning model, 900 to 5,900 tokens of thoughts": lambda: FakeEndpoint(
        refuses=REASONING, thinks=lambda number: 900 + number * 1_700 % 5_000, seconds=20
    ),
    "reasoning model with room for 4,096 tokens at most": lambda: FakeEndpoint(
        refuses=REASONING, thinks=lambda number: 2_000, most_tokens=4_096, seconds=20
    ),
    "max_completion_tokens only": lambda: FakeEndpoint(refuses=frozenset({"max_tokens"})),
    "no response formats": lambda: FakeEndpoint(formats=frozenset()),
    "20 requests a minute, 429 with Retry-After 15 s": lambda: FakeEndpoint(before=Windows(20, retry_after_s=15)),
    "4 requests a minute, 429 with Retry-After 15 s": lambda: FakeEndpoint(before=Windows(4, retry_after_s=15)),
    "20 requests a minute, 429 without Retry-After": lambda: FakeEndpoint(before=Windows(20)),
    "30,000 tokens a minute, 429 with retry-after-ms": lambda: FakeEndpoint(
        before=Bucket(
            30_000,
            counts=lambda body: prompt_tokens(body) + 500,
            reason="Rate limit reached on tokens per min (TPM): Limit 30000. Please try again later.",
        )
    ),
    "60 requests a minute, told in OpenAI's headers": lambda: FakeEndpoint(
        before=Bucket(60, counts=lambda body: 1, reason="Rate limit reached for requests", told_as="requests")
    ),
    "at most 4 requests at once, 429": lambda: FakeEndpoint(before=at_most_at_once(4), seconds=2),
    "503 for 6 of 20 seconds": lambda: FakeEndpoint(before=bursts_of_503),
    "a page and half a stream before each answer": lambda: FakeEndpoint(before=rubbish_first),
    "refuses schemas and temperature after 20 answers": lambda: FakeEndpoint(before=changes_its_mind(20)),
    "slow, 150 s an answer": lambda: FakeEndpoint(seconds=150),
}
"""Endpoints by the description that the benchmark prints."""
