"""MCP for agents: every environment and every episode through one server, with and without protocol sessions.

The URL or a header identifies the episode, not the protocol's session, because common clients open a session per call
and the newest revision has no sessions. The bare URL of an environment is the exception: there a handshake opens a
session for one episode of the environment's first task, which begins with the session's first call. The environment's
mirror answers all requests except tool calls, without the database.

Answers are plain JSON, not event streams: nothing is sent while a step runs, a step must survive its client anyway, and
a stream costs twice the CPU time. Progress and log messages of a tool are in the `info` of a step (`notices`). Only an
answer with such messages is sent as a stream, in which they precede the result. Questions of a tool to the client
(`asks`) exist in the newest revision only: there the question is itself an answer, and the client calls again with its
replies. A server that keeps no connection cannot ask in any other way.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.runner import modern_error_data
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    MCP_PROTOCOL_VERSION_HEADER,
    InboundLadderRejection,
    classify_inbound_request,
    x_mcp_header_map,
)
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    LOG_LEVEL_META_KEY,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    PROTOCOL_VERSION_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
    JSONRPCRequest,
)
from mcp_types.methods import validate_client_request
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from pydantic_core import from_json, to_json
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import dreamgym
from dreamgym.content import tool_result
from dreamgym.errors import (
    DreamGymError,
    EnvironmentUnavailable,
    EpisodeError,
    InvalidInput,
    UnknownEpisode,
    in_one_line,
)
from dreamgym.spans import TimedSpan, join_trace
from dreamgym.state import as_object
from dreamgym.types import JsonObject, StepResult, StopReason, ToolCall
from dreamgym_server.auth import EPISODE_HEADER, MCP_PATH, headers_of
from dreamgym_server.connections import CLIENT
from dreamgym_server.doors.presentation import Presentation, as_error
from dreamgym_server.doors.trainer import refuse, status_of
from dreamgym_server.live import Client, EpisodeAnswer, is_unrewarded, outcome_of
from dreamgym_server.sessions import UNAVAILABLE, Episodes

logger = logging.getLogger(__name__)

SESSION_HEADER = "mcp-session-id"
REMEMBERED_SESSIONS = 4096
TELL_HEADER = "x-dreamgym-tell"
"""Request header of trainers. With the value `reward`, each answer contains the reward and the end flags."""

_SESSION = re.compile(r"session-[0-9a-f]{32}")
_CAPABILITY = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}
_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
Context = ServerRequestContext[Any, Request]

_schemas: ContextVar[Mapping[str, Any]] = ContextVar("_schemas")


@dataclass
class Visit:
    """One HTTP request to MCP."""

    env: str
    mirror: Presentation
    client: Client
    episode: str | None
    is_session: bool = False
    """True if `initialize` at the environment's bare URL created the episode."""
    is_told: bool = False
    """True if the answer contains the reward and the end flags."""
    status: int | None = None
    """Overrides the HTTP status of the answer."""
    minted: str | None = None
    takes_streams: bool = False
    notices: list[JsonObject] = field(default_factory=list)
    """Notifications to send before the answer."""


class AgentDoor:
    """Answers MCP at `/envs/{env}/mcp` and `/envs/{env}/episodes/{episode}/mcp`; passes other requests on to the app.

    It is not a route of the app: Starlette's routes and handlers of errors take 3 % of the server's CPU time on a step.
    """

    def __init__(self, episodes: Episodes, app: ASGIApp) -> None:
        self._episodes = episodes
        self._app = app
        self._closed_sessions: dict[str, None] = {}
        """The last closed sessions. For sessions that have called a tool, the store has their end too."""
        self._mirrors = {name: Presentation(worlds.spec) for name, worlds in episodes.worlds.items()}
        self._schemas_of = {
            name: {
                str(tool["name"]): tool["inputSchema"]
                for tool in worlds.spec.tools
                if x_mcp_header_map(tool.get("inputSchema"))  # the SDK would search the other schemas at each call
            }
            for name, worlds in episodes.worlds.items()
        }
        self._server: Server[Any] = Server(
            "dreamgym",
            version=dreamgym.__version__,
            get_tool_input_schema=lambda tool: _schemas.get({}).get(tool),
        )
        self._server.middleware = [self._as_environment]
        self._manager = StreamableHTTPSessionManager(self._server, json_response=True, stateless=True)

    def running(self) -> AbstractAsyncContextManager[None]:
        """Context manager inside which requests are served."""
        return self._manager.run()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find the episode of the request, then answer a tool call, or let the SDK handle the protocol."""
        path = MCP_PATH.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if path is None:
            await self._app(scope, receive, send)
            return
        headers = headers_of(scope)
        try:
            visit = self._visit(path, headers, scope.get(CLIENT) or Request(scope, receive), scope)
            refusal = await self._refusal(visit, scope["method"])
        except DreamGymError as error:
            refusal = await refuse(Request(scope), error)
        if refusal is not None:
            await refusal(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start" and (visit.status or visit.minted):
                session = [(SESSION_HEADER.encode(), visit.minted.encode())] if visit.minted else []
                status = visit.status or message["status"]
                message = {**message, "status": status, "headers": [*message["headers"], *session]}
            await send(in_a_stream(message, visit.notices) if visit.notices else message)

        whole = await receive()
        has_headers_once = len(headers) == len(scope["headers"])  # else it depends on the header, which the SDK knows
        is_common = has_headers_once and not visit.is_session and not self._schemas_of[visit.env]
        if is_common and (call := plain_call(headers, whole["body"])) is not None:
            status, said = await self._answer_plainly(visit, call)
            about = [(b"content-type", b"application/json"), (b"content-length", str(len(said)).encode())]
            await answer({"type": "http.response.start", "status": status, "headers": about})
            await answer({"type": "http.response.body", "body": said})
            return
        scope["dreamgym.visit"] = visit
        scope["headers"] = [(name, value.rstrip(b" \t")) for name, value in scope["headers"]]
        _schemas.set(self._schemas_of[visit.env])
        unread: list[Message] = [whole]

        async def again() -> Message:
            return unread.pop() if unread else await receive()

        await self._manager.handle_request(scope, again, answer)

    def _visit(self, path: re.Match[str], headers: Mapping[str, str], client: Client, scope: Scope) -> Visit:
        """The visit of a request. Raises UnknownName if there is no such environment."""
        env = self._episodes.world(path["env"]).spec.name
        named = scope.get("dreamgym.episode") or path["episode"] or headers.get(EPISODE_HEADER)
        return Visit(
            env,
            self._mirrors[env],
            client,
            headers.get(SESSION_HEADER) if named is None else named,
            is_session=named is None,
            # a server without a token has no control token either: every client may ask for rewards
            is_told=headers.get(TELL_HEADER) == "reward" and scope.get("dreamgym.control", True),
            takes_streams="text/event-stream" in headers.get("accept", ""),
        )

    async def _answer_plainly(self, visit: Visit, call: JSONRPCRequest) -> tuple[int, bytes]:
        """Status and body of the response to a tool call that passed the checks of `plain_call`."""
        params, status = call.params or {}, 200
        said: JsonObject = {"jsonrpc": "2.0", "id": call.id}
        try:
            said["result"] = await self._call_tool(visit, params, call.id, _meta(params)[PROTOCOL_VERSION_META_KEY])
        except Exception as raised:  # noqa: BLE001  # as in the SDK, its text does not reach the agent
            error = modern_error_data(raised)
            said["error"] = error.model_dump(mode="json", by_alias=True, exclude_none=True)
            status = ERROR_CODE_HTTP_STATUS.get(error.code, status)
        # a fifth of the time of `json`. It rejects lone surrogates, but neither stored text nor a plain call has any
        return status, to_json(said, inf_nan_mode="constants")

    async def _refusal(self, visit: Visit, method: str) -> Response | None:
        """The response to a request that is not for the SDK, such as the end of a session; None for all others."""
        if visit.is_session and visit.episode is not None:
            if visit.episode in self._closed_sessions or not _SESSION.fullmatch(visit.episode):
                return JSONResponse({"error": str(UnknownEpisode(visit.episode))}, 404)
            if method == "DELETE":
                while len(self._closed_sessions) >= REMEMBERED_SESSIONS:
                    del self._closed_sessions[next(iter(self._closed_sessions))]
                self._closed_sessions[visit.episode] = None
                with suppress(UnknownEpisode):  # it never called a tool
                    await self._episodes.finish(visit.env, visit.episode, StopReason.CLOSED)
                return Response(status_code=200)
        if method != "POST":  # no stream to open, nothing to delete
            return Response(status_code=405, headers={"Allow": "POST"})
        return None

    async def _as_environment(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Answer as the environment, not as this server.

        This is a middleware, because the SDK drops unknown fields of a handler's result and reorders its schemas, but
        passes on a middleware's result unchanged. The SDK does not validate a request before a middleware.
        """
        assert ctx.request is not None, "this server speaks HTTP only"
        visit: Visit = ctx.request.scope["dreamgym.visit"]
        if ctx.request_id is None and not ctx.method.startswith("notifications/"):
            return None  # the protocol has no request without an id: nothing is done
        if visit.is_session and ctx.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
            visit.status = 400
            raise _needs_handshake(ctx.protocol_version)
        if ctx.method == "tools/call":
            _validate(ctx)
            return await self._call_tool(visit, ctx.params or {}, ctx.request_id, ctx.protocol_version)
        if ctx.method in visit.mirror.methods:
            _validate(ctx)
            return visit.mirror.answer(ctx.method, ctx.params, ctx.protocol_version)
        if ctx.method == "notifications/cancelled" and visit.episode and ctx.params and "requestId" in ctx.params:
            await self._episodes.cancel(visit.episode, ctx.params["requestId"])
        result = await call_next(ctx)
        if isinstance(result, dict) and ctx.method == "initialize":
            if visit.is_session:
                visit.minted = f"session-{secrets.token_hex(16)}"
            return visit.mirror.initialized(result)
        if isinstance(result, dict) and ctx.method == "server/discover":
            return visit.mirror.discovered(result)
        return result

    async def _call_tool(
        self, visit: Visit, params: Mapping[str, Any], request_id: str | int | None, version: str
    ) -> JsonObject:
        if visit.episode is None:
            visit.status = 404
            raise MCPError(INVALID_PARAMS, "no episode: create one and use its URL, or send initialize first")
        action = ToolCall(name=params["name"], arguments=params.get("arguments") or {}, answers=answers_in(params))
        try:
            join_trace(_meta(params))
            with TimedSpan("call", env=visit.env, episode=visit.episode) as calling:
                answer = await self._episodes.call(
                    visit.env, visit.episode, action, visit.client, request_id, is_session=visit.is_session
                )
                calling.note(**outcome_of(answer))
            if visit.is_session and answer.uncounted == "closed":  # tells the client to open another session
                raise UnknownEpisode(visit.episode)
        except EnvironmentUnavailable as error:  # the episode of a session did not start; the reason is for the log
            logger.warning("environment %s: no episode could be started: %s", visit.env, in_one_line(error))
            visit.status = status_of(error)
            raise MCPError(INTERNAL_ERROR, UNAVAILABLE) from error
        except DreamGymError as error:
            visit.status = status_of(error)
            is_theirs = isinstance(error, EpisodeError | InvalidInput)
            raise MCPError(INVALID_PARAMS if is_theirs else INTERNAL_ERROR, str(error)) from error
        given = answer.result
        if given.is_error and not visit.is_told:  # a trainer needs the result, since an error has no `_meta`
            is_refused = answer.uncounted == "refused"
            if raised := visit.mirror.tool_error(action.name, given.observation, is_refused=is_refused):
                raise as_error(raised)
        result = self._result(answer, visit, params, version)
        if version in HANDSHAKE_PROTOCOL_VERSIONS:
            return result
        return visit.mirror.enveloped("tools/call", result)

    def _result(self, answer: EpisodeAnswer, visit: Visit, params: Mapping[str, Any], version: str) -> JsonObject:
        """The answer as a tool result. Only trainers get reward and end, since agents can read `_meta`."""
        said = as_object(answer.result.info.get("meta"))
        # a recording that somebody wrote by hand may have keys of ours, such as that a step did not count
        own = {key: value for key, value in said.items() if not key.startswith("dreamgym/")}
        meta: JsonObject = {**own, "dreamgym/episode": visit.episode, "dreamgym/step": answer.step}
        if answer.uncounted:
            meta["dreamgym/uncounted"] = answer.uncounted
        if visit.is_told:
            meta["dreamgym/terminated"] = answer.result.terminated
            meta["dreamgym/truncated"] = answer.result.truncated
            if not answer.uncounted:
                meta["dreamgym/reward"] = answer.result.reward
                meta["dreamgym/open_end"] = is_unrewarded(answer.result)
                if answer.confidence is not None:
                    meta["dreamgym/confidence"] = answer.confidence
        if visit.takes_streams:
            visit.notices = notices(answer.result, params, version)
        try:
            asked = questions(answer.result, params, version)
        except MCPError:
            if not visit.is_told:
                raise
            asked = None  # an error has no `_meta`, and a trainer must get the progress of a step that was counted
        result = tool_result(answer.result) if asked is None else asked
        if version in HANDSHAKE_PROTOCOL_VERSIONS and not isinstance(result.get("structuredContent"), dict):
            result.pop(
                "structuredContent", None
            )  # older clients refuse an answer whose structured content is no object
        return {**result, "_meta": meta}


def plain_call(headers: Mapping[str, str], body: bytes) -> JSONRPCRequest | None:
    """The tool call in a request that passes all checks of the newest revision; None if the SDK has to answer.

    These are the SDK's own checks, in its order. The SDK would then set up a connection, a session and a context, which
    a tool call does not use. That took as long as all the rest of HTTP and protocol. All refusals are left to the SDK.
    """
    is_newest = headers.get(MCP_PROTOCOL_VERSION_HEADER) in MODERN_PROTOCOL_VERSIONS
    takes = [kind.partition(";")[0].strip() for kind in headers.get("accept", "").split(",")]
    is_json = headers.get("content-type", "").startswith("application/json") and "application/json" in takes
    if not is_newest or not is_json:
        return None
    try:
        # a quarter of the time of `json`. Text that only `json` accepts, such as a lone surrogate, is for the SDK
        decoded = from_json(body)
        call = JSONRPCRequest.model_validate(decoded)
        verdict = classify_inbound_request(decoded, headers=headers)
        if call.method != "tools/call" or isinstance(verdict, InboundLadderRejection):
            return None
        validate_client_request(call.method, verdict.protocol_version, call.params)
    except (ValueError, RecursionError):  # ValidationError and what json raises are ValueErrors
        return None
    return call


def _validate(ctx: Context) -> None:
    """Raises MCPError for a method that the revision lacks, ValidationError for parameters that it forbids."""
    try:
        validate_client_request(ctx.method, ctx.protocol_version, ctx.params)
    except KeyError:
        raise MCPError(METHOD_NOT_FOUND, "Method not found", ctx.method) from None


def _needs_handshake(version: str) -> MCPError:
    """The error for a call at the bare URL without a handshake. Clients that can make a handshake retry with one."""
    supported = list(HANDSHAKE_PROTOCOL_VERSIONS)
    message = (
        "this URL contains no episode: send the header X-DreamGym-Episode, or use one of the protocol versions "
        f"{', '.join(supported)}"
    )
    return MCPError(UNSUPPORTED_PROTOCOL_VERSION, message, {"supported": supported, "requested": version})


def answers_in(params: Mapping[str, Any]) -> JsonObject:
    """The client's replies in a call to the questions of an earlier answer; empty if there are none."""
    return {key: params[key] for key in ("inputResponses", "requestState") if params.get(key) is not None}


def questions(result: StepResult, params: Mapping[str, Any], version: str) -> JsonObject | None:
    """The result with the tool's questions to the client; None if the tool asks nothing.

    Raises:
        MCPError: the tool refused with an error of the protocol, or the client cannot answer any of the questions.
    """
    error = result.info.get("error")
    if isinstance(error, dict):
        raise as_error(error)
    asks = result.info.get("asks")
    if not isinstance(asks, dict):
        return None
    requests = as_object(asks.get("inputRequests"))
    wanted = {key: request for key, request in requests.items() if isinstance(request, dict)}
    methods = {key: str(request.get("method")) for key, request in wanted.items()}
    needed = {key: _CAPABILITY.get(method, method) for key, method in methods.items()}
    if version in HANDSHAKE_PROTOCOL_VERSIONS:
        said = f"This tool asks the client for {', '.join(needed.values())}, which needs revision 2026-07-28."
        return {"content": [{"type": "text", "text": said}], "isError": True}
    has = _meta(params).get(CLIENT_CAPABILITIES_META_KEY) or {}
    answerable: JsonObject = {key: wanted[key] for key, capability in needed.items() if capability in has}
    if wanted and not answerable:
        required: JsonObject = {capability: {} for capability in needed.values()}
        raise MCPError(
            MISSING_REQUIRED_CLIENT_CAPABILITY,
            f"this tool needs a client with {', '.join(required)}",
            {"requiredCapabilities": required},
        )
    return {"resultType": "input_required", **asks, "inputRequests": answerable}


def notices(result: StepResult, params: Mapping[str, Any], version: str) -> list[JsonObject]:
    """The notifications of a step that the client asked for."""
    said = result.info.get("notices")
    meta = _meta(params)
    heard: list[JsonObject] = []
    for notice in said if isinstance(said, list) else ():
        if not isinstance(notice, dict) or not isinstance(given := notice.get("params"), dict):
            continue
        if notice.get("method") == "notifications/progress" and meta.get("progressToken") is not None:
            heard.append({**notice, "params": {**given, "progressToken": meta["progressToken"]}})
        elif notice.get("method") == "notifications/message" and _is_wanted(given.get("level"), meta, version):
            heard.append(notice)
    return heard


def in_a_stream(message: Message, before: Sequence[JsonObject]) -> Message:
    """One ASGI message of a JSON response, changed to a part of an event stream that begins with these notices."""
    if message["type"] == "http.response.start":
        kept = [header for header in message["headers"] if header[0] not in {b"content-type", b"content-length"}]
        return {**message, "headers": [*kept, (b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]}
    said = [json.dumps({"jsonrpc": "2.0", **notice}, ensure_ascii=False).encode() for notice in before]
    events = b"".join(b"event: message\ndata: " + data + b"\n\n" for data in [*said, message["body"]])
    return {**message, "body": events}


def _meta(params: Mapping[str, Any]) -> Mapping[str, Any]:
    meta = params.get("_meta")
    return meta if isinstance(meta, dict) else {}


def _is_wanted(level: object, meta: Mapping[str, Any], version: str) -> bool:
    if version in HANDSHAKE_PROTOCOL_VERSIONS:  # the level that a session asked for is not known here
        return True
    least = meta.get(LOG_LEVEL_META_KEY)
    return level in _LEVELS and least in _LEVELS and _LEVELS.index(str(level)) >= _LEVELS.index(str(least))
