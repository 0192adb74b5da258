"""The page for a browser, and the JSON that it shows. The page only reads data, unless it was given a `Hand`.

The page's own files contain no secrets and need no token. Its requests below `/view/api/` need a bearer token. The page
takes the token from the part of its URL after `#`, which browsers do not send. Recorded data is shown as text: the
content security policy allows only the page's own files to run, and no text is inserted as HTML.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import resources

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from dreamgym.types import JsonObject
from dreamgym_server.auth import PAGE
from dreamgym_server.doors.trainer import parsed
from dreamgym_server.running import stopping_of
from dreamgym_server.view.answers import Answer, Answers
from dreamgym_server.view.hand import CallWanted, ForkWanted

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "txt": "text/plain"}


class ViewDoor:
    """The routes of the page."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._files = files()

    def routes(self) -> list[Route]:
        return [
            Route(PAGE.rstrip("/"), self._redirected, methods=["GET"]),
            Route(f"{PAGE}api/events", self._events, methods=["GET"]),
            *(
                Route(f"{PAGE}api/{name}", _answered_by(answer), methods=["GET"])
                for name, answer in self._answers.by_name().items()
            ),
            *self._changing(),
            Route(f"{PAGE}{{name:path}}", self._file, methods=["GET"]),
        ]

    def _changing(self) -> list[Route]:
        """The two routes that change something; none if the page only reads."""
        hand = self._answers.hand
        if hand is None:
            return []

        async def fork(request: Request) -> Response:
            return JSONResponse(await hand.fork(parsed(ForkWanted, await request.body())), 201, HEADERS)

        async def call(request: Request) -> Response:
            return JSONResponse(await hand.call(parsed(CallWanted, await request.body())), headers=HEADERS)

        return [
            Route(f"{PAGE}api/fork", fork, methods=["POST"]),
            Route(f"{PAGE}api/call", call, methods=["POST"]),
        ]

    async def _redirected(self, request: Request) -> Response:
        return RedirectResponse(PAGE)

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"] or "index.html"
        if name not in self._files:
            return JSONResponse({"error": f"there is no file {name[:100]!r}: open {PAGE}"}, 404, HEADERS)
        return Response(
            self._files[name], headers=HEADERS, media_type=f"{KINDS[name.rpartition('.')[2]]}; charset=utf-8"
        )

    async def _events(self, request: Request) -> Response:
        return StreamingResponse(
            _as_events(self._answers.events(request.query_params.get("id", ""), stopping_of(request))),
            media_type="text/event-stream",
            headers=HEADERS,
        )


def files() -> dict[str, bytes]:
    """The files of the page, by their names."""
    folder = resources.files("dreamgym_server.view").joinpath("static")
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.rpartition(".")[2] in KINDS}


def _answered_by(answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        return JSONResponse(await answer(request.query_params), headers=HEADERS)

    return respond


async def _as_events(changes: AsyncIterator[JsonObject]) -> AsyncIterator[str]:
    async for change in changes:
        yield f"data: {json.dumps(change)}\n\n"
