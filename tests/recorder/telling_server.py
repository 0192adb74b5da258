"""An MCP server that reports its state: `python telling_server.py` over stdio, `telling_app()` over HTTP.

The `_meta` of every answer to a call contains the state before and after the call. The texts do not show the stock.
"""

import copy
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

STRING: dict[str, Any] = {"type": "string"}
TOOLS: list[dict[str, Any]] = [
    {"name": "look", "inputSchema": {"type": "object", "properties": {"sku": STRING}}},
    {"name": "buy", "inputSchema": {"type": "object", "properties": {"sku": STRING}}},
    {"name": "forget", "inputSchema": {"type": "object"}},
]


class Shop:
    """Items with a stock, and orders."""

    def __init__(self) -> None:
        self.world: dict[str, Any] = {
            "items": {
                "S-1": {"sku": "S-1", "title": "Lamp", "stock": 2, "price": 12.5},
                "S-2": {"sku": "S-2", "title": "Chair", "stock": 0, "price": 40},
            },
            "orders": {},
            "clock": 0,
        }

    def answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """The response to a request, None for a notification."""
        number, method, params = message.get("id"), message.get("method"), message.get("params") or {}
        if number is None:
            return None
        if method == "initialize":
            info = {"name": "telling", "version": "1"}
            result: dict[str, Any] = {
                "protocolVersion": "2025-06-18",
                "serverInfo": info,
                "capabilities": {"tools": {}},
            }
        elif method == "tools/list":
            result = {"tools": TOOLS}
        elif method == "tools/call" and params["name"] in {tool["name"] for tool in TOOLS}:
            result = self._call(params["name"], params.get("arguments") or {})
        else:
            error = {"code": -32602, "message": f"Unknown tool: {params.get('name')}"}
            return {"jsonrpc": "2.0", "id": number, "error": error}
        return {"jsonrpc": "2.0", "id": number, "result": result}

    def _call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        before = copy.deepcopy(self.world)
        said, is_error = self._do(name, arguments)
        meta = {"dreamgym/before": before, "dreamgym/state": self.world, "shop/own": 1}
        content = [{"type": "text", "text": said}]
        return {"_meta": copy.deepcopy(meta), "content": content, "isError": is_error, "x-price": 2.50}

    def _do(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        item = self.world["items"].get(arguments.get("sku"))
        if name == "forget":
            self.world["orders"] = {}
            return "forgotten", False
        if item is None:
            return f"no item {arguments.get('sku')}", True
        if name == "look":
            return item["title"], False
        if not item["stock"]:
            return "sold out", True
        item["stock"] -= 1
        self.world["clock"] += 1
        order = f"O-{self.world['clock']}"
        self.world["orders"][order] = {"order_id": order, "sku": item["sku"], "note": None}
        return order, False


def telling_app(form: str) -> Starlette:
    """The server over HTTP, with one shop for all clients; `form` is json or events."""
    shop = Shop()

    async def endpoint(request: Request) -> Response:
        if request.method != "POST":
            return Response(status_code=405)
        answer = shop.answer(await request.json())
        if answer is None:
            return Response(status_code=202)
        text = json.dumps(answer)
        if form == "json":
            return Response(text.replace("dreamgym/", "dreamgym\\/"), media_type="application/json")
        return StreamingResponse(_cut(text), media_type="text/event-stream")

    return Starlette(routes=[Route("/mcp", endpoint, methods=["GET", "POST", "DELETE"])])


async def _cut(text: str) -> AsyncIterator[bytes]:
    """An event in four chunks, cut inside the key of a state and inside the last line end."""
    event = f": hello\r\n\r\nid: 7\r\ndata: {text}\r\n\r\n".encode()
    middle = event.find(b"dreamgym") + 4
    for part in (event[:middle], event[middle : middle + 40], event[middle + 40 : -1], event[-1:]):
        yield part


if __name__ == "__main__":
    own = Shop()
    for line in sys.stdin:
        answered = own.answer(json.loads(line))
        if answered is not None:
            print(json.dumps(answered), flush=True)
