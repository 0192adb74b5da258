"""One line of an episode file in a run folder: a trajectory as JSON, with the name of its group if it has one.

The name is `RUN-UPDATE-TASK` for a rollout of a training run, and `SETTING/MEASURE/…` for an episode that was played
for a report.
"""

from __future__ import annotations

import json

from pydantic_core import from_json

from dreamgym.types import JsonObject, Trajectory


def as_line(group: str, trajectory: Trajectory) -> str:
    """The line for a trajectory, with the line end."""
    return f'{{"group":{json.dumps(group)},{trajectory.model_dump_json()[1:]}\n'


def parted(line: bytes | str) -> tuple[str | None, JsonObject]:
    """Split a line into the name of the group, if any, and the trajectory's JSON. Raises ValueError for other text.

    Deeply nested JSON, NaN and half a surrogate are refused, too.
    """
    body = from_json(line, allow_inf_nan=False)
    if not isinstance(body, dict):
        raise ValueError("expected an object")
    group = body.pop("group", None)
    return None if group is None else str(group), body
