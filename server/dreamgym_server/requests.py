"""Request bodies of the control API, and the choice of an episode's task."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import AfterValidator, Field, TypeAdapter

from dreamgym.dream.task_check import require_usable_check
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput, UnknownName
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.episode_store import Episode
from dreamgym.types import Frozen, Task
from dreamgym_server.limits import Limits

OPEN_TASK = "open"
"""Id of the task without an instruction, for agents whose owner gives them one."""


class TooManyEpisodes(InvalidInput):
    """The server runs as many episodes as it may (`Limits.open_episodes`)."""


def _without_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError("text must not contain a NUL character")
    return text


Text = Annotated[str, Field(max_length=64 * 1024), AfterValidator(_without_nul)]
"""Text without NUL characters, short enough for a judge to read."""

Name = Annotated[str, Field(max_length=512), AfterValidator(_without_nul)]
"""Text without NUL characters, short enough for PostgreSQL to index (2,704 bytes)."""


_NAME: TypeAdapter[str] = TypeAdapter(Name)


def _nameable(task: Task) -> Task:
    for name in (task.id, task.world, task.parent_id or ""):
        _NAME.validate_python(name)
    return task


class NewEpisode(Frozen):
    """Request for a new episode."""

    task_id: Name | None = None
    task: Annotated[Task, AfterValidator(_nameable)] | None = None
    seed: int = 0
    max_steps: int | None = Field(default=None, ge=1)
    group: Name | None = None
    idempotency_key: Name | None = None
    policy_version: int | None = None


class Fork(Frozen):
    """Request for an episode that begins with the first steps of another and has its task, seed, group and limits."""

    step: int = Field(ge=0)
    """Number of steps that the two episodes share."""
    idempotency_key: Name | None = None


class FinalAnswer(Frozen):
    """Request to end an episode: the agent's final answer, which is not a tool call."""

    answer: Text | None = None
    success: bool | None = None
    """The caller's own verdict. If it is given, no check and no judge is asked."""


async def chosen_task(spec: EnvironmentSpec, buffer: ReplayBuffer, order: NewEpisode) -> Task:
    """The task in the request, else the task with its `task_id`, else the environment's first, else the open task.

    Raises:
        UnknownName: the environment has no task of this id.
        InvalidInput: the task belongs to another environment, its check cannot be used, or its metadata contains NaN or
            an infinite number.
    """
    task = await _named(spec, buffer, order)
    try:
        json.dumps(task.metadata, allow_nan=False)
    except ValueError as error:
        raise InvalidInput(
            f"task {task.id!r}: expected finite numbers in its metadata, got NaN or one that is too large: write it as "
            "a text, or leave it out"
        ) from error
    require_usable_check(task)  # reports an unusable check now, not at the end of the episode
    return task


async def _named(spec: EnvironmentSpec, buffer: ReplayBuffer, order: NewEpisode) -> Task:
    if order.task is not None:
        if order.task_id not in {None, order.task.id}:
            raise InvalidInput("give either task_id or task, not both")
        if order.task.env != spec.name:
            raise InvalidInput(f"task {order.task.id!r} belongs to environment {order.task.env!r}, not {spec.name!r}")
        return order.task
    known = {task.id: task for task in spec.tasks}
    if order.task_id not in known:
        known |= {task.id: task for task in await buffer.tasks(spec.name)}
    if order.task_id in known:
        return known[order.task_id]
    open_task = known.pop(OPEN_TASK, None) or Task(id=OPEN_TASK, env=spec.name, instruction="")
    if order.task_id is None:
        return next(iter(known.values()), open_task)
    if order.task_id != OPEN_TASK:
        raise UnknownName("task", order.task_id, list(known)[:20], f"{len(known)} in all")
    return open_task


def steps_allowed(spec: EnvironmentSpec, order: NewEpisode, limits: Limits) -> int:
    """The step limit of a new episode. Raises InvalidInput if it exceeds the server's limit."""
    most = max(limits.max_steps, spec.max_steps)
    if order.max_steps is not None and order.max_steps > most:
        raise InvalidInput(f"max_steps {order.max_steps} is more than this server allows: ask for at most {most}")
    return order.max_steps or spec.max_steps


def first_steps(episode: Episode, step: int) -> Episode:
    """The episode as it was after `step` steps. Raises InvalidInput if it cannot continue from there."""
    if step > episode.version:
        raise InvalidInput(
            f"cannot fork at step {step}: episode {episode.id!r} has {episode.version} steps; "
            f"choose a step from 0 to {episode.version}"
        )
    kept = episode.transitions[:step]
    if kept and kept[-1].result.done:
        raise InvalidInput(
            f"cannot fork at step {step}: it ended episode {episode.id!r}; choose a step from 0 to {step - 1}"
        )
    fresh = {"stop_reason": None, "answer": None, "final_reward": None, "error": None, "undelivered": False}
    return episode.model_copy(update={**fresh, "transitions": kept})
