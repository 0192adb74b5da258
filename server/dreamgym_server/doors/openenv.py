"""OpenEnv's API for the episodes of a server, at the base URL `/envs/{env}/openenv`.

`GenericEnvClient` sends reset, step and state over the websocket `…/ws`. `MCPToolClient` opens a session at `…/mcp`,
lists and calls tools there, and shares the session with a websocket. That endpoint has MCP's name, but its protocol is
OpenEnv's own. This API is for trainers: observation messages contain rewards. A reset starts another episode and closes
the previous one. A session that was never reset plays the environment's first task, as at the agent's bare URL. Only
this process knows to which episode a session was reset, so an OpenEnv client must stay with one replica, and a session
that is not known any more is refused.
"""

from __future__ import annotations

import json
import re
import secrets
from contextlib import suppress
from typing import TypeVar

from pydantic import Field, JsonValue, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from dreamgym.content import tool_result
from dreamgym.environment import first_reason
from dreamgym.errors import DreamGymError, InvalidInput, UnknownEpisode
from dreamgym.spans import TimedSpan
from dreamgym.types import Frozen, JsonObject, StopReason, ToolCall
from dreamgym_server.archive import trajectory_of
from dreamgym_server.connections import MAX_BODY_BYTES, is_too_deep
from dreamgym_server.live import Client, EpisodeAnswer, is_unrewarded, outcome_of
from dreamgym_server.requests import NewEpisode
from dreamgym_server.sessions import Episodes

REMEMBERED_SESSIONS = 4096
INVALID_PARAMS, METHOD_NOT_FOUND, SERVER_ERROR = -32602, -32601, -32000

Sent = TypeVar("Sent", bound=Frozen)

_SESSION = re.compile(r"openenv-[0-9a-f]{32}")


class OpenEnvMessage(Frozen):
    """A message of a client over the websocket."""

    type: str
    data: JsonObject = Field(default_factory=dict)


class Rpc(Frozen):
    """A JSON-RPC request of a client."""

    jsonrpc: str
    method: str
    params: JsonObject = Field(default_factory=dict)
    id: str | int | None = None


class Waiting:
    """The client at the other end of a websocket."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def is_disconnected(self) -> bool:
        """True once a disconnect message was read; before that, a lost client is not noticed."""
        return self._websocket.client_state is not WebSocketState.CONNECTED


class OpenEnvDoor:
    """The routes below `/envs/{env}/openenv`."""

    def __init__(self, episodes: Episodes) -> None:
        self._episodes = episodes
        self._episode_of: dict[str, str] = {}
        """Session id to episode id, for sessions that were reset. Other sessions play the episode of the same id."""
        self._unused: dict[str, None] = {}
        """Ids of sessions that were given out and not used yet. Only their first call may start an episode."""

    def routes(self) -> list[BaseRoute]:
        return [
            WebSocketRoute("/envs/{env}/openenv/ws", self._converse),
            Route("/envs/{env}/openenv/mcp", self._rpc, methods=["POST"]),
        ]

    async def _converse(self, websocket: WebSocket) -> None:
        await websocket.accept()
        env = websocket.path_params["env"]
        given = websocket.query_params.get("session_id")
        session = given or self._new_session()
        with suppress(WebSocketDisconnect):
            while True:
                received = await websocket.receive()
                if received["type"] == "websocket.disconnect":
                    break
                try:
                    raw = received.get("text")
                    if raw is None:
                        raise InvalidInput("expected a message as text, got bytes")
                    if given and not _SESSION.fullmatch(given):
                        raise UnknownEpisode(given)
                    message = _read(OpenEnvMessage, raw)
                    if message.type == "close":
                        break
                    answer = await self._answered(env, session, message, Waiting(websocket))
                except DreamGymError as error:
                    code = "VALIDATION_ERROR" if isinstance(error, InvalidInput) else "EXECUTION_ERROR"
                    answer = {"type": "error", "data": {"message": str(error), "code": code}}
                await websocket.send_text(json.dumps(answer, ensure_ascii=False))
        if given is None:
            await self._close(env, session)

    async def _answered(self, env: str, session: str, message: OpenEnvMessage, client: Client) -> JsonObject:
        if message.type == "reset":
            return {"type": "observation", "data": await self._reset(env, session, message.data)}
        if message.type == "state":
            return {"type": "state", "data": await self._state(env, session)}
        if message.type != "step":
            raise InvalidInput(f"expected a message of type reset, step, state or close, got {message.type!r}")
        if message.data.get("type") == "list_tools":
            data: JsonObject = {
                "observation": {"tools": self._tools(env), "metadata": {}},
                "reward": None,
                "done": False,
            }
            return {"type": "observation", "data": data}
        action = _action(message.data.get("tool_name"), message.data.get("arguments"))
        answer = await self._call(env, session, action, client)
        return {"type": "observation", "data": _observed(action, answer)}

    async def _reset(self, env: str, session: str, asked: JsonObject) -> JsonObject:
        """Start an episode. Clients pass rows of a data set unchanged, so keys that are not settings are ignored."""
        known = {key: asked[key] for key in ("task_id", "task", "seed", "max_steps") if asked.get(key) is not None}
        order = _read(NewEpisode, json.dumps(known))
        episode = await self._episodes.create(env, order)
        await self._close(env, session)
        while len(self._episode_of) >= REMEMBERED_SESSIONS:
            del self._episode_of[next(iter(self._episode_of))]
        self._episode_of[session] = episode.id
        metadata: JsonObject = {"episode_id": episode.id, "task_id": episode.task.id}
        observation: JsonObject = {
            "text": episode.initial.observation,
            "task": episode.task.instruction,
            "metadata": metadata,
        }
        return {"observation": observation, "reward": None, "done": False, "metadata": metadata}

    async def _state(self, env: str, session: str) -> JsonObject:
        try:
            episode = await self._episodes.read(env, self._episode(session))
        except UnknownEpisode:  # nothing was played yet
            return {"episode_id": None, "step_count": 0}
        trajectory = trajectory_of(episode, self._episodes.world(env).spec)
        so_far = sum(transition.result.reward for transition in episode.transitions)
        return {
            "episode_id": episode.id,
            "step_count": episode.version,
            "task_id": episode.task.id,
            "reward": trajectory.reward if trajectory else so_far,
            "stop_reason": episode.stop_reason,
        }

    async def _call(self, env: str, session: str, action: ToolCall, client: Client) -> EpisodeAnswer:
        self._episodes.world(env)  # a name that is not served must not become a label of the metrics
        episode = self._episode(session)
        with TimedSpan("call", env=env, episode=episode) as calling:
            answer = await self._episodes.call(env, episode, action, client, is_session=session in self._unused)
            self._unused.pop(session, None)
            calling.note(**outcome_of(answer))
            return answer

    async def _close(self, env: str, session: str) -> None:
        """End the episode of the session, if it has one."""
        self._unused.pop(session, None)
        with suppress(UnknownEpisode):
            await self._episodes.finish(env, self._episode_of.pop(session, session), StopReason.CLOSED)

    async def _rpc(self, request: Request) -> Response:
        rpc_id: str | int | None = None
        try:
            rpc = _read(Rpc, (await request.body()).decode())
            rpc_id = rpc.id
            result = await self._method(request.path_params["env"], rpc, request)
        except (DreamGymError, UnicodeDecodeError) as error:
            code = INVALID_PARAMS if isinstance(error, (InvalidInput, UnknownEpisode)) else SERVER_ERROR
            return JSONResponse({"jsonrpc": "2.0", "id": rpc_id, "error": {"code": code, "message": str(error)}})
        if result is None:
            said = f"method {rpc.method!r} does not belong to OpenEnv's API; MCP is served at /envs/{{env}}/mcp"
            return JSONResponse({"jsonrpc": "2.0", "id": rpc_id, "error": {"code": METHOD_NOT_FOUND, "message": said}})
        return JSONResponse({"jsonrpc": "2.0", "id": rpc_id, "result": result})

    async def _method(self, env: str, rpc: Rpc, client: Client) -> JsonObject | None:
        if rpc.method == "tools/list":
            return {"tools": self._tools(env)}
        if rpc.method == "openenv/session/create":
            self._episodes.world(env)
            return {"session_id": self._new_session()}
        session = str(rpc.params.get("session_id"))
        if rpc.method not in {"tools/call", "openenv/session/close"}:
            return None
        if not _SESSION.fullmatch(session):
            raise UnknownEpisode(session)
        if rpc.method == "openenv/session/close":
            await self._close(env, session)
            return {"session_id": session, "closed": True}
        answer = await self._call(env, session, _action(rpc.params.get("name"), rpc.params.get("arguments")), client)
        return _tool_result(answer)

    def _new_session(self) -> str:
        session = f"openenv-{secrets.token_hex(16)}"
        while len(self._unused) >= REMEMBERED_SESSIONS:
            del self._unused[next(iter(self._unused))]
        self._unused[session] = None
        return session

    def _episode(self, session: str) -> str:
        return self._episode_of.get(session, session)

    def _tools(self, env: str) -> list[JsonValue]:
        return [
            {
                "name": tool["name"],
                "description": tool.get("description", ""),
                "input_schema": tool.get("inputSchema", {}),
            }
            for tool in self._episodes.world(env).spec.tools
        ]


def _action(tool: object, arguments: object) -> ToolCall:
    if not isinstance(tool, str) or not tool or not isinstance(arguments, (dict, type(None))):
        raise InvalidInput(f"expected a tool's name and an object of arguments, got {tool!r} and {arguments!r}"[:500])
    return ToolCall(name=tool, arguments=arguments or {})


def _observed(action: ToolCall, answer: EpisodeAnswer) -> JsonObject:
    """A step as OpenEnv's `CallToolObservation`. An unknown reward, and that of a call that was no step, is null."""
    result = answer.result
    error: JsonObject | None = None
    if answer.uncounted == "unavailable":
        error = {"error_type": "execution_error", "message": answer.text}
    metadata: JsonObject = {"step": answer.step, "terminated": result.terminated, "truncated": result.truncated}
    observation: JsonObject = {
        "tool_name": action.name,
        "result": _tool_result(answer),
        "error": error,
        "metadata": metadata,
    }
    reward = None if answer.uncounted or is_unrewarded(result) else result.reward
    return {"observation": observation, "reward": reward, "done": result.done, "metadata": metadata}


def _tool_result(answer: EpisodeAnswer) -> JsonObject:
    """A tool result in OpenEnv's spelling; `data` is what its `call_tool` returns."""
    raw, structured = tool_result(answer.result), answer.result.structured
    return {
        "content": raw["content"],
        "structured_content": structured,
        "data": answer.text if structured is None else structured,
        "is_error": answer.result.is_error,
    }


def _read(model: type[Sent], raw: str) -> Sent:
    if len(raw) > MAX_BODY_BYTES or is_too_deep(raw.encode()):
        raise InvalidInput("the message is too large or nested too deeply")
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        raise InvalidInput(f"message: {first_reason(error)}") from error
