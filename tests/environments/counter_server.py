"""A counter as an MCP server over stdio, written without the SDK: `python counter_server.py [FAULT]`.

It behaves like mcp_counter.py, and starts in a tenth of the time that importing the SDK takes.

FAULT is what happens in a call of `add`: the server `dies`, `hangs`, `overflows` (answers NaN), or `interrupts` its
parent process and hangs. With `chats`, it instead writes a line that is not a message when it starts. With `hides`, it
refuses to list its tools. With `tires`, it lists an argument that belongs in a header, and then answers no listing.
"""

import json
import os
import signal
import sys
from typing import Any

PAGES: dict[str | None, dict[str, Any]] = {
    None: {
        "tools": [
            {
                "name": "add",
                "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
                "outputSchema": {
                    "type": "object",
                    "properties": {"count": {"type": "integer"}},
                    "required": ["count"],
                },
            }
        ],
        "nextCursor": "2",
    },
    "2": {"tools": [{"name": "secret", "inputSchema": {"type": "object"}}]},
}


class Counter:
    """A counter at 0."""

    def __init__(self, fault: str) -> None:
        self._fault = fault
        self._count = 0
        self._listings = 0

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        """Return the result of a request, or None for no answer. Raises KeyError for an unknown method or tool."""
        if method == "initialize":
            server = {"name": "counter", "version": "1"}
            return {
                "protocolVersion": params["protocolVersion"],
                "serverInfo": server,
                "capabilities": {"tools": {}},
            }
        if method == "tools/list":
            self._listings += 1
            if self._fault == "hides":
                raise KeyError("no method\ntools/list")
            if self._fault == "tires":
                schema = {"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "N"}}}
                return None if self._listings > 1 else {"tools": [{"name": "add", "inputSchema": schema}]}
            return PAGES[params.get("cursor")]
        if method != "tools/call":
            raise KeyError(f"no method {method}")
        if params["name"] == "secret":
            return said(os.environ.get("COUNTER_SECRET", "not set"))
        if params["name"] != "add":
            raise KeyError(f"no tool {params['name']}")
        return self._add(params["arguments"]["n"])

    def _add(self, n: int) -> dict[str, Any] | None:
        if self._fault == "dies":
            print("out of paper", file=sys.stderr, flush=True)
            os._exit(3)
        if self._fault == "interrupts":
            os.kill(os.getppid(), signal.SIGINT)
        if self._fault in {"hangs", "interrupts"}:
            return None
        if self._fault == "overflows":
            return {**said("count NaN"), "structuredContent": {"count": float("nan")}}
        if n < 0:
            return {**said("only up"), "isError": True}
        self._count += n
        return {**said(f"count {self._count}"), "structuredContent": {"count": self._count}}


def said(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def main(fault: str) -> None:
    if fault == "chats":
        print("the counter is ready", flush=True)
    counter = Counter(fault)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            result = counter.answer(message["method"], message.get("params") or {})
        except KeyError as error:
            answer["error"] = {"code": -32602, "message": error.args[0]}
        else:
            if result is None:
                continue
            answer["result"] = result
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:2] or [""])
