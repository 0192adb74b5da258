"""Times the parts of a step: as spans of OpenTelemetry, and as numbers for a listener.

A `TimedSpan` costs about a microsecond if nobody listens. OpenTelemetry is used only if this process has set a tracer
provider. It is never imported here: code that sets a provider has imported it. An attribute is a name, a size or an
id. It is never a text that was played or recorded, and never the message of an error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from functools import lru_cache, wraps
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Span as OpenSpan
    from opentelemetry.trace import Tracer, TracerProvider

Value = str | int | float | bool | None
P = ParamSpec("P")
R = TypeVar("R")

_IS_NAMED = "OTEL_PYTHON_TRACER_PROVIDER" in os.environ
"""True if OpenTelemetry loads a provider by its name when one is first requested."""
_CONVENTIONS = {
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
}
"""Attributes that OpenTelemetry has names for. All others are `dreamgym.NAME`."""


class TimedSpan:
    """One part of a step, from `with` to its end."""

    __slots__ = ("_began", "_manager", "_open", "attributes", "error", "name", "seconds")

    def __init__(self, name: str, **attributes: Value) -> None:
        self.name = name
        self.attributes = attributes
        self.seconds = 0.0
        """Duration, set when the span ends."""
        self.error: BaseException | None = None
        """The exception that ended the span."""
        self._manager: AbstractContextManager[OpenSpan] | None = None
        self._open: OpenSpan | None = None

    def note(self, **attributes: Value) -> None:
        """Add attributes. Those that are None are left out of the trace."""
        self.attributes.update(attributes)

    def __enter__(self) -> TimedSpan:
        if (tracer := _tracer()) is not None:
            self._manager = tracer.start_as_current_span(
                f"dreamgym.{self.name}", record_exception=False, set_status_on_exception=False
            )
            self._open = self._manager.__enter__()
        self._began = perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.seconds, self.error = perf_counter() - self._began, error
        if self._open is not None and self._manager is not None:
            self._describe(self._open)
            self._manager.__exit__(kind, error, traceback)
        if (listener := _listener.get()) is not None:
            listener(self)

    def _describe(self, opened: OpenSpan) -> None:
        said = {name: value for name, value in self.attributes.items() if value is not None}
        opened.set_attributes({_CONVENTIONS.get(name, f"dreamgym.{name}"): value for name, value in said.items()})
        if self.error is not None:
            from opentelemetry.trace import StatusCode

            opened.set_status(StatusCode.ERROR)
            opened.set_attribute("error.type", type(self.error).__name__)


Listener = Callable[[TimedSpan], None]
_listener: ContextVar[Listener | None] = ContextVar("_listener", default=None)


def listen(listener: Listener) -> None:
    """Pass every span to `listener` when it ends, for the rest of this task and in the tasks that it starts."""
    _listener.set(listener)


def timed(
    name: str, **attributes: Value
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Decorator: each call of a coroutine function is a span."""

    def decorate(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        @wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with TimedSpan(name, **attributes):
                return await function(*args, **kwargs)

        return call

    return decorate


def join_trace(carrier: Mapping[str, object]) -> None:
    """Add the spans of the rest of this task to the trace of `traceparent` in a request's headers or `_meta`.

    Without a `traceparent`, or if nothing is traced, nothing changes.
    """
    if _tracer() is None or not isinstance(carrier.get("traceparent"), str):
        return
    from opentelemetry import context, propagate

    context.attach(propagate.extract({name: text for name, text in carrier.items() if isinstance(text, str)}))


def _tracer() -> Tracer | None:
    trace = sys.modules.get("opentelemetry.trace")
    # while no provider is set, the public function reads the environment at each call: 3 % of a step's CPU time
    if trace is None or (getattr(trace, "_TRACER_PROVIDER", trace) is None and not _IS_NAMED):
        return None
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider) else _tracer_of(provider)


@lru_cache(maxsize=1)
def _tracer_of(provider: TracerProvider) -> Tracer:
    return provider.get_tracer("dreamgym")
