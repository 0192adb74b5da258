"""A chat-completions endpoint that can send what a careful one never would, such as arguments that are not JSON."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count

from dreamgym_server.running import running
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from dreamgym.types import JsonObject

_numbers = count()


def says(text: str) -> JsonObject:
    """A final answer."""
    return {"role": "assistant", "content": text}


def calls(tool: str, arguments: str) -> JsonObject:
    """One tool call, with an id of its own: the OpenAI Agents SDK refuses one that a conversation has had before."""
    function: JsonObject = {"name": tool, "arguments": arguments}
    call: JsonObject = {"id": f"call-{next(_numbers)}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@asynccontextmanager
async def chat_endpoint(model: Callable[[JsonObject], JsonObject]) -> AsyncIterator[str]:
    """Answer each request with the message or the error that `model` makes from its body; yield the base URL."""

    async def complete(request: Request) -> JSONResponse:
        body = await request.json()
        message = model(body)
        if "error" in message:
            return JSONResponse(message)
        finish_reason = "tool_calls" if "tool_calls" in message else "stop"
        return JSONResponse(
            {
                "id": "scripted",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
                "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
            }
        )

    async with running(Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])) as url:
        yield f"{url}/v1"
