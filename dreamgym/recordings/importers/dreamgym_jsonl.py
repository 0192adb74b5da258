"""Importer for our own JSONL: one Trajectory per line, which keeps its id and source.

Missing fields that only our own recorder can know are filled in: states, provenance, source and stop reason.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import JsonValue, ValidationError

from dreamgym.environment import first_reason
from dreamgym.recordings.importers.base import Document, Found, Importer, Skipped, each
from dreamgym.types import JsonObject, Source, StopReason, Tier, Trajectory


def matches(value: JsonValue) -> bool:
    """True for an object with transitions, or with a task and a stop reason."""
    if not isinstance(value, dict):
        return False
    return isinstance(value.get("transitions"), list) or (
        "stop_reason" in value and isinstance(value.get("task"), dict)
    )


def read(document: Document) -> Iterator[Found]:
    """The trajectory, or its first fault."""
    try:
        yield Trajectory.model_validate(_completed(document.value))
    except (ValidationError, RecursionError) as error:
        yield Skipped(
            document.where, f"is not a trajectory: {first_reason(error)}; docs/importing.md shows one in full"
        )


def _completed(value: JsonValue) -> JsonValue:
    """The line with defaults for everything that it may leave out."""
    if not isinstance(value, dict):
        return value
    task, rows = value.get("task"), value.get("transitions")
    state = task.get("initial_state") if isinstance(task, dict) else None
    transitions: list[JsonValue] = []
    for row in rows if isinstance(rows, list) else []:
        if not isinstance(row, dict):
            transitions.append(row)
            continue
        whole: JsonObject = {"state": state or "", "provenance": {"tier": Tier.REAL.value}, **row}
        result = row.get("result")
        if isinstance(result, dict) and "next_state" not in row and "observation" in result:
            info = result.get("info")
            whole["next_state"] = info["state"] if isinstance(info, dict) and "state" in info else result["observation"]
        state = whole.get("next_state")
        transitions.append(whole)
    defaults: JsonObject = {"source": Source.IMPORTED.value, "stop_reason": StopReason.CLOSED.value}
    return {**defaults, **value, **({"transitions": transitions} if isinstance(rows, list) else {})}


DREAMGYM = Importer("dreamgym", "trajectories of this project, one per line", matches, each(read))
