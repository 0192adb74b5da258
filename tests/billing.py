"""A model behind a real endpoint that keeps its own account of the requests and of what it bills."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from dreamgym_integrations.models.chat_server import serving
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dreamgym.prices import Price
from dreamgym.types import TokenUsage

PRICE = Price(prompt=2.0, completion=10.0, cached=0.5)
"""Prices of the endpoint, in dollars per million tokens."""
GIVEN = "2,10,0.5"
"""These prices as a value of the variable DREAMGYM_PRICE."""
CHARACTERS = 4
"""Characters per token."""
THINKING = 40
"""Thinking tokens of each answer."""

Answer = Callable[[str], str]
"""Returns the answer to a prompt."""


@dataclass
class Account:
    """Token usage that the endpoint has billed, and the number of running requests."""

    bills: list[TokenUsage] = field(default_factory=list)
    running: int = 0

    @property
    def dollars(self) -> float:
        return PRICE.of(TokenUsage.total(self.bills))

    @property
    def tokens(self) -> int:
        return sum(one.prompt_tokens + one.completion_tokens for one in self.bills)


@asynccontextmanager
async def billing(
    answer: Answer,
    *,
    thinking: int = THINKING,
    tells: bool = True,
    limited: bool = True,
    waits: asyncio.Event | None = None,
) -> AsyncIterator[tuple[str, Account]]:
    """Serve a model that bills; yield its base URL and its account.

    Args:
        answer: returns the text of an answer.
        thinking: number of thinking tokens of each answer.
        tells: True if an answer contains its usage. It is billed in any case.
        limited: False if it refuses every limit of the tokens of an answer.
        waits: an event for which each answer waits.
    """
    account = Account()

    async def complete(request: Request) -> Response:
        body: dict[str, Any] = await request.json()
        if not limited and (name := next((name for name in body if name.endswith("_tokens")), None)):
            return JSONResponse(
                {"error": {"message": f"Unsupported parameter: {name}", "param": name}}, status_code=400
            )
        account.running += 1
        if waits is not None:
            await waits.wait()
        await asyncio.sleep(0)
        prompt = "\n".join(str(message["content"]) for message in body["messages"])
        text = answer(prompt)
        sent = len(prompt) // CHARACTERS + 1
        bill = TokenUsage(
            prompt_tokens=sent,
            cached_tokens=sent // 2,
            completion_tokens=len(text) // CHARACTERS + 1 + thinking,
            thinking_tokens=thinking,
        )
        account.bills.append(bill)
        account.running -= 1
        usage = {
            "prompt_tokens": bill.prompt_tokens,
            "completion_tokens": bill.completion_tokens,
            "total_tokens": bill.prompt_tokens + bill.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": bill.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": bill.thinking_tokens},
        }
        return JSONResponse(
            {
                "id": "1",
                "object": "chat.completion",
                "created": 0,
                "model": "m",
                "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
                **({"usage": usage} if tells else {}),
            }
        )

    async def listed(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "m", "object": "model"}]})

    app = Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"]), Route("/v1/models", listed)])
    async with serving(app) as url:
        yield f"{url}/v1", account


def ok(_: str) -> str:
    """An answer that fits a schema with one boolean."""
    return json.dumps({"ok": True})
