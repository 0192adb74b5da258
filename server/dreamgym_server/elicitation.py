"""Elicitation, progress and logging: messages of a tool to the client besides its result.

All three come in the `info` of a step (`asks`, `notices`) and are sent with its answer. Notices precede the answer in
one event stream when the step is over; a call without them is answered in plain JSON. Questions exist in the newest
revision only. There a question is an answer too, and the client calls again with its replies: a server that keeps no
connection cannot ask in any other way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    INVALID_PARAMS,
    LOG_LEVEL_META_KEY,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.types import Message

from dreamgym.types import JsonObject, StepResult

_CAPABILITY = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}
_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


def answers_in(params: Mapping[str, Any]) -> JsonObject:
    """The client's replies in a call to the questions of an earlier answer; empty if there are none."""
    return {key: params[key] for key in ("inputResponses", "requestState") if params.get(key) is not None}


def questions(result: StepResult, params: Mapping[str, Any], version: str) -> JsonObject | None:
    """The result that asks the client; None if the tool asks nothing.

    Raises:
        MCPError: the tool refused with an error of the protocol, or the client cannot answer any of the questions.
    """
    error = result.info.get("error")
    if isinstance(error, dict):
        code = error.get("code")
        raise MCPError(code if isinstance(code, int) else INVALID_PARAMS, str(error.get("message")), error.get("data"))
    asks = result.info.get("asks")
    if not isinstance(asks, dict):
        return None
    requests = asks.get("inputRequests")
    wanted = (
        {key: request for key, request in requests.items() if isinstance(request, dict)}
        if isinstance(requests, dict)
        else {}
    )
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
    if version in HANDSHAKE_PROTOCOL_VERSIONS:  # whatever level a session asked for is not known here
        return True
    least = meta.get(LOG_LEVEL_META_KEY)
    return level in _LEVELS and least in _LEVELS and _LEVELS.index(str(level)) >= _LEVELS.index(str(least))
