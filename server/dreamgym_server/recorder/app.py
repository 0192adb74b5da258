"""The recorder's HTTP front: the agent's URLs, and the control API beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Protocol

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from dreamgym.environment import first_reason
from dreamgym.errors import DreamGymError, InvalidInput, StoreError
from dreamgym.types import Frozen
from dreamgym_server.auth import Guard, Keys
from dreamgym_server.connections import CLIENT, BoundedBody
from dreamgym_server.recorder.http_to_http import refuse
from dreamgym_server.recorder.runs import RUN_HEADER, Runs, checked
from dreamgym_server.recorder.writer import StderrLine, Tape


class Upstream(Protocol):
    """The real server, behind an HTTP front."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """Context manager inside which requests are served."""

    async def serve(self, run: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request of the agent."""

    async def finish(self, run: str) -> None:
        """Release what a finished run holds."""

    def stop(self) -> None:
        """End the streams that would never end by themselves, because the recording ends."""


class Label(Frozen):
    """Facts about a run that are not in its traffic."""

    task: str | None = None
    task_id: str | None = None
    answer: str | None = None
    success: bool | None = None


class RecorderDoor:
    """The endpoints `/mcp` and `/record/{run}/mcp`."""

    def __init__(self, upstream: Upstream, runs: Runs, tape: Tape) -> None:
        self._upstream, self._runs, self._tape = upstream, runs, tape
        self._bare: str | None = None
        self._ending: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find the run of a request, and pass the request on."""
        named = scope["path_params"].get("run") or Headers(scope=scope).get(RUN_HEADER)
        run = checked(named) if named else self._current()
        # an open stream is not a sign of life
        asking = self._runs.asking(run) if scope["method"] == "POST" else nullcontext()
        try:
            with asking:
                await self._upstream.serve(run, scope, receive, send)
        except asyncio.CancelledError:  # uvicorn gives up a request that delays the shutdown too long
            cycle = scope[CLIENT].cycle
            if not cycle.response_started:
                await refuse(send, 503, "the recording has ended, and the server had not answered yet")
            elif not cycle.response_complete:
                await send({"type": "http.response.body"})

    def _current(self) -> str:
        run, before = self._runs.current, self._bare
        if run != before:
            self._bare = run
            self._tape.put(StderrLine(f"dreamgym record: calls at the bare URL now belong to run {run}"))
            if before is not None:
                ending = asyncio.create_task(self._upstream.finish(before))
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)
        return run


class ControlDoor:
    """`/record/{run}`: sets task, final answer and success, shows what was recorded. Agents do not need these URLs."""

    def __init__(self, upstream: Upstream, runs: Runs, tape: Tape, build: Callable[[], object]) -> None:
        self._upstream, self._runs, self._tape, self._build = upstream, runs, tape, build

    def routes(self) -> list[Route]:
        bounded = [Middleware(BoundedBody)]
        return [
            Route("/healthz", self._health),
            Route("/record", self._list, methods=["GET"]),
            Route("/record/{run}", self._read, methods=["GET"]),
            Route("/record/{run}", self._describe, methods=["POST"], middleware=bounded),
            Route("/record/{run}/finish", self._finish, methods=["POST"], middleware=bounded),
        ]

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _list(self, request: Request) -> Response:
        return JSONResponse({"runs": dict(self._tape.summary.calls), "finished": sorted(self._runs.finished)})

    async def _read(self, request: Request) -> Response:
        return self._state(request, checked(request.path_params["run"]))

    async def _describe(self, request: Request) -> Response:
        return self._state(request, await self._note(request))

    async def _finish(self, request: Request) -> Response:
        run = await self._note(request)
        self._runs.finish(run)
        await self._upstream.finish(run)
        await asyncio.to_thread(self._build)
        return self._state(request, run)

    async def _note(self, request: Request) -> str:
        """Put the label in the request on the tape, and wait until it is on disk; return the run.

        Raises:
            StoreError: it could not be written.
        """
        run = checked(request.path_params["run"])
        try:
            said = Label.model_validate_json(await request.body() or b"{}")
        except ValidationError as error:
            raise InvalidInput(f"request body: {first_reason(error)}") from error
        written = self._tape.note(run, **said.model_dump(exclude_none=True))
        try:
            is_written = await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(written)), 60)
        except TimeoutError:
            is_written = False
        if not is_written:
            raise StoreError(f"the label of run {run!r} is not on disk: the recorder's stderr says why; send it again")
        return run

    def _state(self, request: Request, run: str) -> Response:
        url = f"{request.url.scheme}://{request.url.netloc}/record/{run}/mcp"
        calls, finished = self._tape.summary.calls.get(run, 0), run in self._runs.finished
        return JSONResponse({"run": run, "mcp_url": url, "calls": calls, "finished": finished})


async def _refuse(request: Request, error: Exception) -> Response:
    """400 for a request that the sender must change, 503 if the recorder cannot write."""
    return JSONResponse({"error": str(error)}, 400 if isinstance(error, InvalidInput) else 503)


async def _gone(request: Request, error: Exception) -> Response:
    """A response for a client that has left; nobody reads it."""
    return Response(status_code=400)


def create_app(
    upstream: Upstream,
    runs: Runs,
    tape: Tape,
    *,
    token: str | None,
    hosts: Iterable[str],
    build: Callable[[], object] = lambda: None,
) -> Starlette:
    """The recorder's ASGI app.

    `build` brings the environment folder up to date after a run is finished. It raises StoreError if it cannot.
    """
    agents = RecorderDoor(upstream, runs, tape)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with upstream.running():
            yield

    return Starlette(
        routes=[
            Route("/mcp", agents),
            Route("/record/{run}/mcp", agents),
            *ControlDoor(upstream, runs, tape, build).routes(),
        ],
        middleware=[Middleware(Guard, keys=Keys(token) if token else None, hosts=hosts)],
        exception_handlers={DreamGymError: _refuse, ClientDisconnect: _gone},
        lifespan=lifespan,
    )
