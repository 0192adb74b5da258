"""The control API for trainers: create, fork, read, finish and watch episodes. Agents are never given these URLs.

A finished episode is returned as its whole trajectory, provenance included. The rewards here are authoritative.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from http import HTTPStatus
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from dreamgym import __version__
from dreamgym.environment import first_reason
from dreamgym.errors import (
    BudgetSpent,
    DreamGymError,
    EnvironmentUnavailable,
    EpisodeFinished,
    InvalidInput,
    StoreError,
    UnknownEpisode,
    UnknownName,
)
from dreamgym.replay.episode_store import Episode
from dreamgym.types import JsonObject, StopReason
from dreamgym_server.archive import trajectory_of
from dreamgym_server.auth import Keys
from dreamgym_server.requests import FinalAnswer, Fork, NewEpisode, TooManyEpisodes
from dreamgym_server.running import stopping_of
from dreamgym_server.sessions import Episodes
from dreamgym_server.sources import WorldChanged, Worlds

WATCH_INTERVAL_S = 0.5

Body = TypeVar("Body", bound=BaseModel)


class TrainerDoor:
    """The routes below `/envs`, except those of MCP."""

    def __init__(self, episodes: Episodes, keys: Keys | None) -> None:
        self._episodes = episodes
        self._keys = keys

    def routes(self) -> list[Route]:
        episode = "/envs/{env}/episodes/{episode}"
        return [
            Route("/healthz", self._alive),
            Route("/", self._index),
            Route("/envs", self._environments),
            Route("/envs/{env}", self._environment),
            Route("/envs/{env}/episodes", self._create, methods=["POST"]),
            Route(episode, self._read, methods=["GET"]),
            Route(episode, self._delete, methods=["DELETE"]),
            Route(f"{episode}/fork", self._fork, methods=["POST"]),
            Route(f"{episode}/finish", self._finish, methods=["POST"]),
            Route(f"{episode}/events", self._events, methods=["GET"]),
        ]

    async def _alive(self, request: Request) -> Response:
        """Liveness: the process answers. `/readyz` shows whether it can answer calls."""
        return JSONResponse({"status": "alive", "see": "/readyz"})

    async def _environments(self, request: Request) -> Response:
        return JSONResponse({"environments": [await self._described(one) for one in self._episodes.worlds.values()]})

    async def _environment(self, request: Request) -> Response:
        worlds = self._episodes.world(request.path_params["env"])
        url = f"{_base(request)}/envs/{worlds.spec.name}"
        tools = [str(tool["name"]) for tool in worlds.spec.tools]
        links = {"mcp_url": f"{url}/mcp", "episodes_url": f"{url}/episodes"}
        return JSONResponse({**await self._described(worlds), "tools": tools, **links})

    async def _described(self, worlds: Worlds) -> JsonObject:
        spec, tasks = worlds.spec, await self._episodes.tasks(worlds.spec.name)
        return {
            "name": spec.name,
            "description": spec.description,
            "source": worlds.source,
            "max_steps": spec.max_steps,
            "tasks": len(tasks),
            "first_task": tasks[0].model_dump(mode="json") if tasks else None,
        }

    async def _index(self, request: Request) -> Response:
        """List the environments, for a client that opens the server's address."""
        names = [worlds.spec.name for worlds in self._episodes.worlds.values()]
        urls = {name: f"{_base(request)}/envs/{name}" for name in names}
        if "text/html" in request.headers.get("accept", ""):
            lines = [f"{name}: MCP at {url}/mcp, described at {url}" for name, url in urls.items()]
            return PlainTextResponse("\n".join([f"DreamGym {__version__} serves", "", *lines, ""]))
        return JSONResponse({"dreamgym": __version__, "environments": urls, "ready": f"{_base(request)}/readyz"})

    async def _create(self, request: Request) -> Response:
        env = request.path_params["env"]
        self._episodes.world(env)
        return self._started(request, await self._episodes.create(env, parsed(NewEpisode, await request.body())))

    async def _fork(self, request: Request) -> Response:
        return self._started(request, await self._episodes.fork(*_path(request), parsed(Fork, await request.body())))

    def _started(self, request: Request, episode: Episode) -> Response:
        last = episode.transitions[-1].result if episode.transitions else episode.initial
        token = {"token": self._keys.episode_token(episode.env, episode.id)} if self._keys else {}
        path = f"/envs/{episode.env}/episodes/{token.get('token', episode.id)}/mcp"
        return JSONResponse(
            {
                "episode": episode.id,
                "mcp_url": f"{_base(request)}{path}",
                **token,
                "task": episode.task.model_dump(mode="json"),
                "observation": last.observation,
                "expires_at": episode.expires_at.isoformat(),
            },
            status_code=201,
        )

    async def _read(self, request: Request) -> Response:
        return self._state(await self._episodes.read(*_path(request)))

    async def _finish(self, request: Request) -> Response:
        final = parsed(FinalAnswer, await request.body())
        env, name = _path(request)
        episode = await self._episodes.finish(env, name, answer=final.answer, success=final.success)
        if episode.stop_reason is StopReason.FINISHED:
            given = None if final.answer is None else self._episodes.world(env).admission.text(final.answer)
            other_answer = given is not None and given != episode.answer
            other_verdict = final.success is not None and float(final.success) != episode.final_reward
            if other_answer or other_verdict:
                raise EpisodeFinished(
                    f"episode {name!r} is already finished with another answer or verdict, "
                    "which cannot be changed: read them with GET"
                )
        return self._state(episode)

    async def _delete(self, request: Request) -> Response:
        await self._episodes.delete(*_path(request))
        return Response(status_code=204)

    async def _events(self, request: Request) -> Response:
        first = await self._episodes.read(*_path(request))
        return StreamingResponse(self._watch(request, first), media_type="text/event-stream")

    async def _watch(self, request: Request, episode: Episode) -> AsyncIterator[str]:
        """The steps so far, then each new one, read from the store because another replica may take the steps."""
        shown, stopping = 0, stopping_of(request)
        while not stopping.is_set():
            for transition in episode.transitions[shown:]:
                shown += 1
                result = transition.result.model_dump(mode="json", exclude={"info"})
                provenance = transition.provenance.model_dump(mode="json", include={"tier", "confidence"})
                action = transition.action.model_dump(mode="json")
                yield _event("step", {"step": shown, "action": action, **result, **provenance})
            if episode.stop_reason is not None:
                yield _event("end", {"step": shown, "stop_reason": episode.stop_reason})
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), WATCH_INTERVAL_S)
            try:
                episode = await self._episodes.read(*_path(request))
            except UnknownEpisode:
                yield _event("end", {"step": shown, "stop_reason": StopReason.CLOSED})
                return
            except StoreError:  # the database may come back
                continue

    def _state(self, episode: Episode) -> Response:
        last = episode.transitions[-1].result if episode.transitions else episode.initial
        trajectory = trajectory_of(episode, self._episodes.world(episode.env).spec)
        so_far = sum(transition.result.reward for transition in episode.transitions)
        return JSONResponse(
            {
                "episode": episode.id,
                "step": episode.version,
                "reward": trajectory.reward if trajectory else so_far,
                "terminated": last.terminated,
                "truncated": last.truncated,
                "stop_reason": episode.stop_reason,
                "error": episode.error,
                "trajectory": trajectory.model_dump(mode="json") if trajectory else None,
            }
        )


async def refuse(request: Request, error: Exception) -> Response:
    """Translate a DreamGymError to an HTTP response, for the control API and for invalid MCP URLs."""
    assert isinstance(error, DreamGymError)
    status = status_of(error)
    headers = {"Retry-After": "5"} if status == HTTPStatus.TOO_MANY_REQUESTS else None
    return JSONResponse({"error": str(error)}, status, headers)


def status_of(error: DreamGymError) -> HTTPStatus:
    """The HTTP status of an error, which shows who has to act."""
    return next(status for kind, status in _STATUS if isinstance(error, kind))


_STATUS = (
    (UnknownName, HTTPStatus.NOT_FOUND),
    (UnknownEpisode, HTTPStatus.NOT_FOUND),
    (TooManyEpisodes, HTTPStatus.TOO_MANY_REQUESTS),
    (InvalidInput, HTTPStatus.BAD_REQUEST),
    (WorldChanged, HTTPStatus.CONFLICT),
    (EnvironmentUnavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    (BudgetSpent, HTTPStatus.SERVICE_UNAVAILABLE),
    (StoreError, HTTPStatus.SERVICE_UNAVAILABLE),
    (DreamGymError, HTTPStatus.CONFLICT),
)


def parsed(model: type[Body], body: bytes) -> Body:
    """The body of a request; an empty one counts as `{}`. Raises InvalidInput."""
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise InvalidInput(f"request body: {first_reason(error, model.model_fields)}") from error


def _base(request: Request) -> str:
    return f"{request.url.scheme}://{request.url.netloc}"


def _path(request: Request) -> tuple[str, str]:
    return request.path_params["env"], request.path_params["episode"]


def _event(kind: str, data: JsonObject) -> str:
    return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
