"""The routes of the server, its start and its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from dreamgym.errors import DreamGymError
from dreamgym_server.auth import Guard, Keys
from dreamgym_server.body_limits import BoundedBody
from dreamgym_server.control import TrainerDoor, refuse
from dreamgym_server.mcp import AgentDoor
from dreamgym_server.openenv import OpenEnvDoor
from dreamgym_server.sessions import Episodes


def create_app(episodes: Episodes, *, token: str | None, hosts: Iterable[str]) -> Starlette:
    """The ASGI app: MCP, the control API and OpenEnv's API over the same episodes."""
    agents = AgentDoor(episodes)
    keys = Keys(token) if token else None

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with episodes.running(), agents.running():
            yield

    return Starlette(
        routes=[
            Route("/envs/{env}/episodes/{episode}/mcp", agents),
            Route("/envs/{env}/mcp", agents),
            *TrainerDoor(episodes, keys).routes(),
            *OpenEnvDoor(episodes).routes(),
        ],
        middleware=[Middleware(Guard, keys=keys, hosts=hosts), Middleware(BoundedBody)],
        exception_handlers={DreamGymError: refuse},
        lifespan=lifespan,
    )
