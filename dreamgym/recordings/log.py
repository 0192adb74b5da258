"""The recorder's log: one JSON line per event, with the raw answers, redacted before they reach the disk.

A run is one episode of one agent. Its file is `recordings/{run}.jsonl` in the environment folder, appended to line by
line, so that a crash costs at most the last line.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dreamgym.types import Frozen, JsonObject


class Exchange(Frozen):
    """One request to the real server and its answer, as they went over the wire."""

    kind: Literal["exchange"] = "exchange"
    run: str
    session: str
    """Id of the connection to the real server. Its answers are true of that server process or session only."""
    method: str
    params: JsonObject = Field(default_factory=dict)
    result: JsonObject | None = None
    error: JsonObject | None = None
    """The JSON-RPC error if there is no result."""
    protocol: str | None = None
    """The protocol revision in use."""
    started_at: float
    """Seconds since the epoch."""
    ended_at: float


class Note(Frozen):
    """Facts that the traffic does not contain: the task, the final answer, and whether it was right."""

    kind: Literal["note"] = "note"
    run: str
    task: str | None = None
    task_id: str | None = None
    answer: str | None = None
    success: bool | None = None
    proposed: bool = False
    """True if a model worded the task afterwards. A task that somebody gave takes precedence."""
    at: float


class Loss(Frozen):
    """Something that could not be recorded; the agent got its answer all the same."""

    kind: Literal["loss"] = "loss"
    run: str
    reason: str
    at: float


Event = Annotated[Exchange | Note | Loss, Field(discriminator="kind")]
