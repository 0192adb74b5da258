"""Readiness: whether a server can answer calls now. Probes are frequent, so each result is reused for a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dreamgym.budget import check_budget
from dreamgym.errors import BudgetSpent, EnvironmentUnavailable, StoreError
from dreamgym.llm import Pingable
from dreamgym_server.sessions import Episodes

KEPT_S = 1.0
"""Time for which a result is reused."""
MODEL_LIMIT_S = 2.0
"""A model's endpoint that takes longer counts as unavailable."""


class Readiness:
    """`/readyz`: 200 if the database and the endpoints of all models answer and the budget is not spent, else 503.

    No token is needed, so the answer names neither the database nor the endpoint.
    """

    def __init__(self, episodes: Episodes, models: Sequence[Pingable]) -> None:
        self._episodes = episodes
        self._models = models
        self._checking: asyncio.Task[str | None] | None = None
        self._until = 0.0

    def route(self) -> Route:
        return Route("/readyz", self._answer, methods=["GET"])

    async def _answer(self, request: Request) -> Response:
        fault = await self._fault()
        if fault is not None:
            return JSONResponse({"status": "unavailable", "error": fault}, 503)
        return JSONResponse({"status": "ready"})

    async def _fault(self) -> str | None:
        """Why no call can be answered; None if calls can be answered. Concurrent requests share one check."""
        if self._checking is None or (self._checking.done() and time.monotonic() >= self._until):
            self._checking = asyncio.create_task(self._looked())
        return await asyncio.shield(self._checking)

    async def _looked(self) -> str | None:
        try:
            await self._episodes.check()
            check_budget()
        except StoreError:
            fault: str | None = "the database does not answer or takes no writes"
        except BudgetSpent:
            fault = "the budget allows no more calls of the experience model: the server's log says why"
        else:
            answers = await asyncio.gather(*map(_answers, self._models))
            fault = None if all(answers) else "the experience model's endpoint does not answer"
        self._until = time.monotonic() + KEPT_S
        return fault


async def _answers(model: Pingable) -> bool:
    try:
        async with asyncio.timeout(MODEL_LIMIT_S):
            await model.ping()
    except (EnvironmentUnavailable, TimeoutError):
        return False
    return True
