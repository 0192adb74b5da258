"""Our own JSONL: one Trajectory per line. It keeps its id and its source, since it says where it was played."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import JsonValue, ValidationError

from dreamgym.environment import first_reason
from dreamgym.recordings.importers.base import Document, Found, Importer, Skipped, each
from dreamgym.types import Trajectory


def matches(value: JsonValue) -> bool:
    """An object with a task and a stop reason."""
    return isinstance(value, dict) and "stop_reason" in value and isinstance(value.get("task"), dict)


def read(document: Document) -> Iterator[Found]:
    """The trajectory, or the first fault of it."""
    try:
        yield Trajectory.model_validate(document.value)
    except (ValidationError, RecursionError) as error:
        yield Skipped(document.where, f"is no trajectory: {first_reason(error)}")


DREAMGYM = Importer("dreamgym", "trajectories of this project, one per line", matches, each(read))
