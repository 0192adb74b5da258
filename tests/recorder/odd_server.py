"""A hand-written stdio MCP server that does what careful servers never do: `python odd_server.py`.

Each tool is named after what it does. Answers have odd spacing, unknown fields and an unusual order of keys, so that
a test notices if they are rewritten.
"""

import json
import os
import sys
from typing import Any

TOOLS: list[dict[str, Any]] = [
    {
        "x-vendor": {"z": 1, "a": [None, 2.50]},
        "name": name,
        "inputSchema": {"type": "object"},
        "description": os.environ.get("ODD_DESCRIPTION", "Odd."),
    }
    for name in ("echo", "count", "ask", "progress", "grow", "garbage", "die", "hang", "environment", "mutter")
]
state = {"count": 0}


def out(message: dict[str, Any]) -> None:
    print(json.dumps(message, separators=(" ,", " : "), ensure_ascii=False), flush=True)


def result(value: object) -> dict[str, Any]:
    return {"x-odd": 1e-7, "structuredContent": {"value": value}, "content": [{"type": "text", "text": str(value)}]}


def call(name: str, arguments: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any] | None:
    """The answer to a call; None if the server gives none."""
    if name == "echo":
        return result(arguments)
    if name == "count":
        state["count"] += 1
        return result(state["count"])
    if name == "ask":
        out({"jsonrpc": "2.0", "id": "q-1", "method": "elicitation/create", "params": {"message": "Really?"}})
        return result(json.loads(sys.stdin.readline())["result"])
    if name == "progress":
        for step in range(3):
            params = {"progressToken": meta["progressToken"], "progress": step, "message": f"step {step}"}
            out({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        return result("done")
    if name == "grow":
        TOOLS.append({"name": f"grown-{len(TOOLS)}", "inputSchema": {"type": "object"}})
        return result(len(TOOLS))
    if name == "garbage":
        print("Debug: the cat sat on the mat", flush=True)
        return result("after the garbage")
    if name == "die":
        sys.exit(3)
    if name == "hang":
        return None
    if name == "environment":
        return result(os.environ.get(arguments["name"], "not set"))
    if name == "mutter":
        print(arguments["text"], file=sys.stderr, flush=True)
        return result("muttered")
    raise KeyError(name)


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        number, params = message.get("id"), message.get("params") or {}
        if number is None or "method" not in message:
            continue
        try:
            if message["method"] == "initialize":
                answer: dict[str, Any] | None = {
                    "protocolVersion": params["protocolVersion"],
                    "serverInfo": {"version": "1", "name": "odd"},
                    "capabilities": {"tools": {}, "x-seen": params["capabilities"]},
                    "instructions": "Be odd.",
                }
            elif message["method"] == "tools/list":
                answer = {"tools": TOOLS, "x-note": "kept"}
            elif message["method"] == "tools/call":
                answer = call(params["name"], params.get("arguments", {}), params.get("_meta", {}))
            else:
                raise KeyError(message["method"])
        except KeyError as error:
            problem = {"code": -32601, "message": f"no such thing: {error} {json.dumps(params)}"}
            out({"id": number, "error": problem, "jsonrpc": "2.0"})
            continue
        if answer is not None:
            out({"result": answer, "id": number, "jsonrpc": "2.0"})


main()
