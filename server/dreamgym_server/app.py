"""The app of a server: its parts, its routes, its start and its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from dreamgym.errors import DreamGymError, InvalidInput
from dreamgym.llm import Pingable
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.episode_store import EpisodeStore
from dreamgym_server.auth import LOOPBACK, PAGE, Guard, Keys
from dreamgym_server.connections import BoundedBody
from dreamgym_server.doors.agent import AgentDoor
from dreamgym_server.doors.openenv import OpenEnvDoor
from dreamgym_server.doors.trainer import TrainerDoor, refuse
from dreamgym_server.doors.view import ViewDoor
from dreamgym_server.limits import Limits
from dreamgym_server.metrics import Metrics, Observed
from dreamgym_server.readiness import Readiness
from dreamgym_server.sessions import Episodes
from dreamgym_server.sources import DreamWorlds, Worlds
from dreamgym_server.view.answers import Answers


def build(
    worlds: Sequence[Worlds],
    buffer: ReplayBuffer,
    store: EpisodeStore,
    *,
    token: str | None = None,
    hosts: Iterable[str] = LOOPBACK,
    limits: Limits | None = None,
    answers: Answers | None = None,
) -> ASGIApp:
    """The ASGI app of a server with these environments: MCP, the control API and OpenEnv's API over the same episodes.

    The caller closes buffer, store and models. A server other than `running` must be told that this is an ASGI 3 app,
    for instance by `uvicorn --interface asgi3`, since it is a callable but no coroutine function.

    Args:
        worlds: one DreamWorlds or RealWorlds per environment.
        buffer: takes the finished episodes.
        store: stores the running episodes.
        token: the bearer token that every request must carry; None lets everyone in.
        hosts: host names by which the server may be addressed.
        limits: bounds on episodes and steps.
        answers: answers the requests of the page at `/view/`; None: there is no page.

    Raises:
        InvalidInput: two environments have the same name, or a tool schema cannot be used.
    """
    by_name = {world.spec.name: world for world in worlds}
    if len(by_name) != len(worlds):
        raise InvalidInput(f"two environments have the same name: {[world.spec.name for world in worlds]}")
    episodes = Episodes(by_name, store, buffer, limits)
    keys = Keys(token) if token else None
    metrics = Metrics(episodes)
    models = {id(world.model): world.model for world in worlds if isinstance(world, DreamWorlds)}
    readiness = Readiness(episodes, [model for model in models.values() if isinstance(model, Pingable)])

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with episodes.running(), agents.running():
            yield

    others = Starlette(
        routes=[
            readiness.route(),
            metrics.route(),
            *TrainerDoor(episodes, keys).routes(),
            *OpenEnvDoor(episodes).routes(),
            *(ViewDoor(answers).routes() if answers is not None else ()),
        ],
        exception_handlers={DreamGymError: refuse},
        lifespan=lifespan,
    )
    agents = AgentDoor(episodes, others)
    return Guard(BoundedBody(Observed(agents, metrics=metrics)), keys=keys, hosts=hosts)


def build_view(answers: Answers, token: str, code: str | None = None) -> Starlette:
    """The ASGI app of `dreamgym view`: the page alone, protected by a token.

    Args:
        answers: answers the page's requests.
        token: the bearer token that every request for data must carry.
        code: `/view/open/CODE` leads to the page with its token, but only once. This address may stand on the command
            line of a browser, which every user of the machine can read.
    """
    unused = [] if code is None else [code]

    async def opened(request: Request) -> Response:
        if request.path_params["code"] not in unused:
            told = "this address was opened before: use the address that `dreamgym view` printed"
            return JSONResponse({"error": told}, 404)
        unused.clear()
        return RedirectResponse(f"{PAGE}#token={token}", headers={"Cache-Control": "no-store"})

    return Starlette(
        routes=[
            Route("/", _to_the_page, methods=["GET"]),
            Route(f"{PAGE}open/{{code}}", opened, methods=["GET"]),
            *ViewDoor(answers).routes(),
        ],
        middleware=[Middleware(Guard, keys=Keys(token), hosts=LOOPBACK), Middleware(BoundedBody)],
        exception_handlers={DreamGymError: refuse},
    )


async def _to_the_page(request: Request) -> Response:
    return RedirectResponse(PAGE)
