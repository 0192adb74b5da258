"""Recordings as the recorder writes them, line by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dreamgym.environment import read_jsonl
from dreamgym.recordings.folder import start_folder
from dreamgym.types import JsonObject, Trajectory

GET: JsonObject = {
    "name": "get",
    "inputSchema": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
    "x-own": {"b": 1, "a": [1.0, None]},
}
FIND: JsonObject = {"name": "find", "inputSchema": {"type": "object"}}
SERVER: JsonObject = {
    "protocolVersion": "2025-06-18",
    "serverInfo": {"name": "crm-server", "title": "The CRM", "version": "1"},
    "instructions": "Ask for ids first.",
    "capabilities": {"tools": {}},
}


class Tape:
    """A recording of one run; each line is one second later than the line before."""

    def __init__(self, folder: Path, run: str, at: float = 1000.0) -> None:
        self.file = folder / "recordings" / f"{run}.jsonl"
        self.run, self.at = run, at

    def exchange(self, method: str, params: JsonObject, **answer: Any) -> Tape:
        event = {"kind": "exchange", "session": "s", "method": method, "params": params, **answer}
        return self.write({**event, "started_at": self.at, "ended_at": self.at + 0.5})

    def hello(self, *tools: JsonObject, server: JsonObject = SERVER) -> Tape:
        self.exchange("initialize", {}, result=server)
        return self.exchange("tools/list", {}, result={"tools": list(tools or (GET, FIND))})

    def call(self, name: str, says: str = "", is_error: bool = False, **arguments: Any) -> Tape:
        result = {"content": [{"type": "text", "text": says}], "isError": is_error}
        return self.exchange("tools/call", {"name": name, "arguments": arguments}, result=result)

    def told(self, name: str, says: str, before: JsonObject | None, after: JsonObject | None, **arguments: Any) -> Tape:
        """A call whose answer reports the states before and after it."""
        told = {"dreamgym/before": before, "dreamgym/state": after}
        meta = {key: state for key, state in told.items() if state is not None}
        result = {"content": [{"type": "text", "text": says}], "_meta": meta}
        return self.exchange("tools/call", {"name": name, "arguments": arguments}, result=result)

    def note(self, **said: Any) -> Tape:
        return self.write({"kind": "note", "at": self.at, **said})

    def write(self, event: JsonObject) -> Tape:
        return self.raw(json.dumps({"run": self.run, **event}) + "\n")

    def raw(self, text: str) -> Tape:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as file:
            file.write(text)
        self.at += 1
        return self


def crm(tmp_path: Path) -> Path:
    """A new environment folder."""
    folder = tmp_path / "crm"
    start_folder(folder, "crm", {"adapter": "mcp", "command": ["npx", "crm"]})
    return folder


def trajectories(folder: Path) -> dict[str, Trajectory]:
    """The trajectories of a built folder, by id."""
    return {one.id: one for one in read_jsonl(folder / "trajectories.jsonl", Trajectory)}


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder except the recordings."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
