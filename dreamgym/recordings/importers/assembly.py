"""Turns imported episodes of any format into trajectories of one environment.

Each step starts in the state that the previous step led to; the first one starts in what the agent saw first. An
episode is left out as a whole if it calls a tool that the environment does not have, or if no step of it can be used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from pydantic import ValidationError

from dreamgym.dream.task_check import require_usable_check
from dreamgym.environment import EnvironmentSpec, first_reason
from dreamgym.errors import InvalidInput
from dreamgym.recordings.importers.base import Command, Found, ImportedEpisode, Skipped
from dreamgym.redaction import Redact, redacted
from dreamgym.replay.keys import check_storable
from dreamgym.schema import fault_under
from dreamgym.types import (
    JsonObject,
    Origin,
    Source,
    StepResult,
    Task,
    ToolCall,
    Trajectory,
    Transition,
)

RESPOND = "respond"
"""The tool by which an agent speaks to its user, in environments that have one."""


@dataclass
class ImportReport:
    """The result of an import."""

    trajectories: list[Trajectory] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    """Documents and episodes from which nothing could be used."""
    left_out: list[Skipped] = field(default_factory=list)
    """Parts that were left out of episodes; the rest of each episode was used."""
    replies: int = 0
    """Number of messages to the user that were left out because the environment has no tool `respond`."""
    misfits: dict[str, list[Skipped]] = field(default_factory=dict)
    """By tool, the trajectories with calls that its schema refuses although it answered them, and the first fault of
    each. They are used."""
    repeated: int = 0
    """Number of episodes that are identical to an earlier one of the same import."""
    formats: dict[str, int] = field(default_factory=dict)
    """Number of trajectories from each format."""

    def add(self, found: Iterable[tuple[str, Found]], spec: EnvironmentSpec, redact: Redact | None = None) -> None:
        """Add the items that importers found, each with the name of its format."""
        known = {trajectory.id: trajectory for trajectory in self.trajectories}
        for name, item in found:
            try:
                trajectory, misfits = self._trajectory(item, spec, redact)
            except _Unusable as unusable:
                self.skipped.append(Skipped(unusable.where, str(unusable)))
                continue
            if not known.setdefault(trajectory.id, trajectory).has_json_of(trajectory):
                where = f"trajectory {trajectory.id!r}"
                self.skipped.append(Skipped(where, "an earlier one has this id and other content; give it another id"))
                continue
            if known[trajectory.id] is not trajectory:
                self.repeated += 1
                continue
            self.trajectories.append(trajectory)
            for tool, misfit in misfits.items():
                self.misfits.setdefault(tool, []).append(misfit)
            self.formats[name] = self.formats.get(name, 0) + 1

    def _trajectory(
        self, item: Found, spec: EnvironmentSpec, redact: Redact | None
    ) -> tuple[Trajectory, dict[str, Skipped]]:
        """The trajectory, and its first misfit of each tool."""
        if isinstance(item, Skipped):
            raise _Unusable(item.where, item.reason)
        where = item.where if isinstance(item, ImportedEpisode) else f"trajectory {item.id!r}"
        trajectory = item if isinstance(item, Trajectory) else self._assembled(item, spec)
        _check(trajectory, spec, where)
        misfits = {tool: Skipped(where, fault) for tool, fault in _faults(trajectory, spec).items()}
        try:
            trajectory = redacted(trajectory, redact)
            check_storable(trajectory, where)
        except (InvalidInput, ValidationError, RecursionError) as error:
            raise _Unusable(where, first_reason(error).removeprefix(f"{where}: ")) from error
        return trajectory if isinstance(item, Trajectory) else _with_ids(trajectory), misfits

    def _assembled(self, episode: ImportedEpisode, spec: EnvironmentSpec) -> Trajectory:
        steps = list(_actions(episode, spec))
        if not steps:
            causes = [f"{skipped.where}: {skipped.reason}" for skipped in episode.left_out[:3]]
            raise _Unusable(episode.where, "; ".join(["has no tool call with a result", *causes]))
        try:
            trajectory = _assemble(episode, steps, spec)
        except (ValidationError, RecursionError) as error:
            raise _Unusable(episode.where, first_reason(error)) from error
        self.left_out += episode.left_out
        self.replies += len(episode.steps) - len(steps)
        return trajectory


class _Unusable(Exception):
    def __init__(self, where: str, reason: str) -> None:
        super().__init__(reason)
        self.where = where


def _check(trajectory: Trajectory, spec: EnvironmentSpec, where: str) -> None:
    if trajectory.task.env != spec.name:
        raise _Unusable(where, f"belongs to environment {trajectory.task.env!r}, not {spec.name!r}")
    tools = {str(tool["name"]) for tool in spec.tools}
    missing = sorted({step.action.name for step in trajectory.transitions} - tools)
    if missing:
        named = ", ".join(map(repr, missing))  # as literals, because a name may contain control characters
        raise _Unusable(where, f"calls tools that environment {spec.name!r} does not have: {named}")
    try:
        require_usable_check(trajectory.task)  # it could not be played
    except InvalidInput as error:
        raise _Unusable(where, str(error)) from error


def _faults(trajectory: Trajectory, spec: EnvironmentSpec) -> dict[str, str]:
    """By tool, the fault of the first call that its schema refuses although it answered the call without an error."""
    schemas = {str(tool["name"]): tool.get("inputSchema", {}) for tool in spec.tools}
    faults: dict[str, str] = {}
    for step in trajectory.transitions:
        name = step.action.name
        if step.result.is_error or name in faults:
            continue
        with suppress(InvalidInput):  # a schema that cannot be used refuses nothing
            if (fault := fault_under(schemas[name], step.action.arguments, redacted=True)) is not None:
                faults[name] = fault
    return faults


def _actions(episode: ImportedEpisode, spec: EnvironmentSpec) -> Iterator[tuple[ToolCall, StepResult]]:
    respond = _respond_argument(spec)
    for step in episode.steps:
        if isinstance(step.action, ToolCall):
            yield step.action, step.result
        elif isinstance(step.action, Command):
            if spec.text_argument is None:
                raise _Unusable(
                    episode.where,
                    f"its actions are texts, but environment {spec.name!r} has no single tool with one text argument",
                )
            tool, argument = spec.text_argument
            yield ToolCall(name=tool, arguments={argument: step.action.text}), step.result
        elif respond is not None:
            yield ToolCall(name=RESPOND, arguments={respond: step.action.text}), step.result


def _respond_argument(spec: EnvironmentSpec) -> str | None:
    """The argument for the agent's words; None if the environment has no tool `respond`."""
    for tool in spec.tools:
        if tool["name"] == RESPOND:
            schema = tool.get("inputSchema")
            properties = schema.get("properties") if isinstance(schema, dict) else None
            return next(iter(properties), "content") if isinstance(properties, dict) else "content"
    return None


def _assemble(episode: ImportedEpisode, steps: list[tuple[ToolCall, StepResult]], spec: EnvironmentSpec) -> Trajectory:
    final_reward = episode.final_reward
    if final_reward is not None:  # the only reward: a dream must find it in the step that ends the episode
        steps = [
            (action, result.model_copy(update={"reward": final_reward if result.terminated else 0.0}))
            for action, result in steps
        ]
        final_reward = None if steps[-1][1].terminated else final_reward
    task = Task(
        id="imported",
        env=spec.name,
        instruction=episode.instruction,
        initial_state=episode.opening,
        origin=Origin.IMPORTED,
        metadata=episode.metadata,
    )
    return Trajectory(
        id="imported",
        task=task,
        transitions=Transition.chain(task.initial_state or "", steps),
        source=Source.IMPORTED,
        stop_reason=episode.stop_reason,
        answer=episode.answer,
        final_reward=final_reward,
    )


def _with_ids(trajectory: Trajectory) -> Trajectory:
    """The trajectory with ids that depend on its content alone, so that importing it twice adds nothing."""
    task = trajectory.task.model_copy(update={"id": _digest(trajectory.task.model_dump(mode="json"))})
    named = trajectory.model_copy(update={"task": task})
    return named.model_copy(update={"id": _digest(named.model_dump(mode="json"))})


def _digest(row: JsonObject) -> str:
    content = json.dumps(row, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return f"imported-{hashlib.sha256(content.encode()).hexdigest()[:24]}"
