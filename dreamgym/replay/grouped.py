"""A line of a file of episodes in a run folder: the JSON of a trajectory, with the name of its group if it has one.

A group is written as `RUN-UPDATE-TASK` for a rollout of a training run, as `SETTING/MEASURE/…` for an episode that was
played for a report.
"""

from __future__ import annotations

import json

from dreamgym.types import JsonObject, Trajectory


def as_line(group: str, trajectory: Trajectory) -> str:
    """The line, with its end."""
    return f'{{"group":{json.dumps(group)},{trajectory.model_dump_json()[1:]}\n'


def parted(line: bytes | str) -> tuple[str | None, JsonObject]:
    """The name of the group, if there is one, and the JSON of the trajectory. Raises ValueError for other text."""
    body = json.loads(line)
    if not isinstance(body, dict):
        raise ValueError("expected an object")
    group = body.pop("group", None)
    return None if group is None else str(group), body
