"""Metrics of one server for Prometheus, counted from the spans of its requests and background tasks.

No label has a value that an agent or a trainer can choose, so the number of time series stays small.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from dreamgym.errors import BudgetSpent, StoreError
from dreamgym.spans import TimedSpan, join_trace, listen
from dreamgym_server.auth import headers_of
from dreamgym_server.sessions import Episodes

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the histogram buckets, from a recorded answer to a slow step."""


class Metrics:
    """The metrics of one server. Each server has a registry of its own, since tests run several in one process."""

    def __init__(self, episodes: Episodes) -> None:
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        calls = Counter(
            "dreamgym_tool_calls",
            "Tool calls of agents. The tier is the part of the system that answered; it is empty if no step was taken.",
            ("env", "tier", "outcome"),
            registry=registry,
        )
        call_seconds = Histogram(
            "dreamgym_tool_call_seconds",
            "Time of a tool call, including the wait for earlier calls of its episode.",
            ("env", "tier"),
            buckets=BUCKETS_S,
            registry=registry,
        )
        self._model_calls = Counter(
            "dreamgym_model_calls",
            "Requests to the language model, including those of the judge: answered, cached, failed, or refused by the "
            "budget.",
            ("outcome",),
            registry=registry,
        )
        self._model_seconds = Histogram(
            "dreamgym_model_call_seconds",
            "Time of a request that the model answered.",
            buckets=BUCKETS_S,
            registry=registry,
        )
        self._tokens = Counter(
            "dreamgym_model_tokens", "Tokens of the language model, as it reported them.", ("kind",), registry=registry
        )
        store_seconds = Histogram(
            "dreamgym_store_seconds",
            "Time of an operation of the store.",
            ("operation",),
            buckets=BUCKETS_S,
            registry=registry,
        )
        self._store_failures = Counter(
            "dreamgym_store_failures",
            "Operations that failed because the database did.",
            ("operation",),
            registry=registry,
        )
        self._gauge("dreamgym_open_episodes", "Running episodes in this process.", lambda: episodes.running_here)
        self._gauge(
            "dreamgym_archive_backlog",
            "Finished episodes of this process that are not in the replay buffer, including those that it refused.",
            lambda: episodes.unarchived,
        )
        # the counters of a step are looked up once, because a lookup takes as long as counting
        self._calls, self._call_seconds = cache(calls.labels), cache(call_seconds.labels)
        self._store_seconds = cache(store_seconds.labels)
        self._handlers = {"call": self._call, "model_call": self._model_call, "store": self._store}

    def hear(self, span: TimedSpan) -> None:
        """Count a span that has ended. A listener of dreamgym.spans."""
        handler = self._handlers.get(span.name)
        if handler is not None:
            handler(span)

    def route(self) -> Route:
        """`/metrics`. If the server has a token, the request needs it, since the numbers reveal details of training."""
        return Route("/metrics", self._text, methods=["GET"])

    async def _text(self, request: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    def _gauge(self, name: str, help_text: str, value: Callable[[], float]) -> None:
        Gauge(name, help_text, registry=self._registry).set_function(value)

    def _call(self, span: TimedSpan) -> None:
        env, tier = str(span.attributes["env"]), str(span.attributes.get("tier") or "")
        outcome = "error" if span.error is not None else str(span.attributes.get("outcome"))
        self._calls(env, tier, outcome).inc()
        self._call_seconds(env, tier).observe(span.seconds)

    def _model_call(self, span: TimedSpan) -> None:
        if span.error is not None:
            self._model_calls.labels("refused" if isinstance(span.error, BudgetSpent) else "failed").inc()
            return
        cached = bool(span.attributes["cached"])
        self._model_calls.labels("cached" if cached else "answered").inc()
        if not cached:
            self._model_seconds.observe(span.seconds)
            for kind in ("prompt", "completion"):
                self._tokens.labels(kind).inc(int(span.attributes[f"{kind}_tokens"] or 0))

    def _store(self, span: TimedSpan) -> None:
        operation = str(span.attributes["operation"])
        self._store_seconds(operation).observe(span.seconds)
        if isinstance(span.error, StoreError):
            self._store_failures.labels(operation).inc()


class Observed:
    """ASGI wrapper: counts the spans of the app below it, and joins the trace in the request's headers.

    It returns the app's awaitable instead of awaiting it. Each request is a task of its own, so nothing must be undone.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        listen(self._metrics.hear)
        if scope["type"] != "lifespan":
            join_trace(headers_of(scope))
        return self._app(scope, receive, send)
