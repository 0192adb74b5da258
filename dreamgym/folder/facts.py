"""Facts that answers show, as explicit states, where the server tells none. Not derived yet: every answer is words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dreamgym.folder.runs import Say
from dreamgym.state import StateSchema
from dreamgym.types import JsonObject, Trajectory


def derive_facts(trajectories: Sequence[Trajectory], tools: Mapping[str, JsonObject], say: Say) -> StateSchema | None:
    """The schema of the entities that answers show."""
    return None


def with_facts(
    trajectories: Sequence[Trajectory], schema: StateSchema, tools: Mapping[str, JsonObject]
) -> list[Trajectory]:
    """The trajectories with what is known before and after each call."""
    return list(trajectories)
