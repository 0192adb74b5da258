"""Redacts a task, and a whole trajectory as one value."""

from __future__ import annotations

from dreamgym.redaction.redactor import Redact
from dreamgym.types import Task, Trajectory


def redacted_task(task: Task, redact: Redact | None) -> Task:
    """The task with its texts redacted; its id and its environment stay. Without a function, it is unchanged."""
    if redact is None:
        return task
    said = task.model_dump(mode="json", include={"instruction", "initial_state", "metadata"})
    return Task.model_validate({**task.model_dump(), **{key: redact(said[key]) for key in said}})


def redacted(trajectory: Trajectory, redact: Redact | None) -> Trajectory:
    """The trajectory with all texts redacted, ids and names of models too; without a function, it is unchanged.

    Names of environments and tools are kept.
    """
    if redact is None:
        return trajectory
    row = trajectory.model_dump(mode="json")
    actions = [transition["action"] for transition in row["transitions"]]
    parts = [
        (("id", "world", "answer", "error"), row),
        (("id", "parent_id", "instruction", "initial_state", "metadata"), row["task"]),
        *((("model", "retrieved"), transition["provenance"]) for transition in row["transitions"]),
        *((("state", "next_state", "reasoning"), transition) for transition in row["transitions"]),
        *((tuple(name for name in action if name != "name"), action) for action in actions),
        *((("observation", "info"), transition["result"]) for transition in row["transitions"]),
    ]
    # as one value, so that what one part marks as a secret is taken out of the others too
    clean = redact([{name: part[name] for name in fields} for fields, part in parts])
    assert isinstance(clean, list)
    for (_, part), said in zip(parts, clean, strict=True):
        part.update(said)
    return Trajectory.model_validate(row)
