"""Lists the tasks of an environment with their statistics, and makes new ones by variation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum

from dreamgym.curriculum.generator import (
    LanguageVariation,
    RecordedWorlds,
    StartVariation,
    TaskGenerator,
    content_of,
)
from dreamgym.curriculum.value import ROUNDING
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import DreamGymError, InvalidInput, PredictionError
from dreamgym.evaluation.rates import Rate, wilson
from dreamgym.llm import LLM
from dreamgym.redaction import redact_by, redacted_task
from dreamgym.replay.buffer import ReplayBuffer, TaskValue
from dreamgym.runs.console import say
from dreamgym.runs.opening import as_described, may_be_learned, open_store
from dreamgym.training.rollout import draw_seed
from dreamgym.types import Frozen, Origin, Task

ROUNDS = 4
"""Maximum number of times that the same tasks are varied, if one round gives too few new ones."""


class Sort(StrEnum):
    """The order of the tasks. Tasks that were never tried come last."""

    STORED = "stored"
    VALUE = "value"
    """Highest first."""
    SUCCESS = "success"
    """Lowest first."""
    ATTEMPTS = "attempts"
    """Most first."""


class TaskRow(Frozen):
    """A task and its statistics."""

    id: str
    origin: Origin
    parent: str | None
    attempts: int
    """Attempts in all updates of all runs."""
    version: int | None = None
    """Number of the update that played the task last; `tried`, `success` and `value` are of this update. With
    `staleness`, the policy that played is that many updates older."""
    tried: int = 0
    success: Rate | None = None
    """Mean outcome reward with the interval of a proportion; None if never tried, or if it is not between 0 and 1."""
    value: float | None = None
    """V_tau (paper, eq. 7), divided by n as in the record of training; the curriculum's own value differs
    (dreamgym.curriculum.evidence)."""
    instruction: str
    initial_state: str | None


async def list_tasks(spec: EnvironmentSpec, dsn: str | None = None) -> list[TaskRow]:
    """The tasks in the store, and those of the folder that are not stored yet."""
    async with open_store(dsn) as store:
        values = {value.task_id: value for value in await store.buffer.task_values(spec.name)}
        return [_listed(task, values.get(task.id)) for task in await _known(spec, store.buffer)]


async def _known(spec: EnvironmentSpec, buffer: ReplayBuffer) -> list[Task]:
    """The tasks in the store, and those of the folder that are not stored yet, redacted."""
    stored = {task.id: task for task in await buffer.tasks(spec.name)}
    known = {**stored, **{task.id: task for task in spec.tasks if task.id not in stored}}
    redact = redact_by(spec.redact)
    return [redacted_task(task, redact) for task in known.values()]


async def generate_tasks(
    spec: EnvironmentSpec, wanted: int, *, model: str | None = None, dsn: str | None = None, seed: int = 0
) -> list[TaskRow]:
    """Vary the tasks that are solved only sometimes, the most valuable first, and store the new ones.

    In a dream of objects, every recorded world gives new goals, whether its tasks were tried or not. Tasks of a split
    other than `train` are not varied.

    Raises:
        InvalidInput: nothing can be varied.
        DreamGymError: no new task was found.
    """
    from dreamgym.curriculum.goal_variation import goal_variation, held_out
    from dreamgym.dream.load import load_llm
    from dreamgym.dream.mapped import mapped_worlds

    async with open_store(dsn) as store:
        llm = load_llm(model, predictions=store.predictions)
        try:
            known = await _known(spec, store.buffer)
            learned = list(filter(may_be_learned, known))
            values = await store.buffer.task_values(spec.name)
            goals = goal_variation(spec, await mapped_worlds(spec, store.buffer), _no_goal)
            generator: TaskGenerator
            if goals is not None:
                generator, parents = goals, _most_valuable_first(filter(goals.is_recorded, learned), values)
            else:
                recorded = as_described(spec, await store.buffer.trajectories(spec.name))
                generator = _generator(spec, llm, RecordedWorlds(recorded))
                parents = _valuable(spec, learned, values)
            # the seed depends on the number of known tasks, so that the same command draws differently the next time
            taken = [*known, *held_out(spec)]
            new = await _varied(generator, parents, taken, wanted, draw_seed(seed, len(known)))
            if not new:
                which = "that are solved only sometimes" if goals is None else "that were recorded"
                raise DreamGymError(
                    f"no new task came from varying the tasks of {spec.name!r} {which} ({len(parents)}): the proposals "
                    "are known already, or no recording shows that they can be solved; record more episodes"
                )
            await store.buffer.add_tasks(new)
        finally:
            if llm is not None:
                await llm.close()
    if len(new) < wanted:
        say(f"made {len(new)} of {wanted} tasks: found no other new task that can be played")
    return [_listed(task, None) for task in new]


def _no_goal(parent: Task, reason: str) -> None:
    say(f"{parent.id}: {reason}")


def _most_valuable_first(known: Iterable[Task], values: Iterable[TaskValue]) -> list[Task]:
    """The most valuable task of each recorded world, even if its value is 0 or unknown.

    A new goal is decided on the state, so its parent does not need a value.
    """
    worth = {value.task_id: value.variance for value in values}
    first: dict[str, Task] = {}
    for task in sorted(known, key=lambda task: -worth.get(task.id, 0.0)):
        first.setdefault(task.world, task)
    return list(first.values())


def _valuable(spec: EnvironmentSpec, known: Sequence[Task], values: Iterable[TaskValue]) -> list[Task]:
    """Tasks that are solved only sometimes, the most valuable first. Raises InvalidInput if there are none."""
    worth = {value.task_id: value.variance for value in values}
    mixed = [task for task in known if worth.get(task.id, 0.0) > ROUNDING]
    if not mixed:
        tried = sum(task.id in worth for task in known)
        raise InvalidInput(
            f"no task of {spec.name!r} is known to be solved only sometimes ({tried} of {len(known)} were tried): "
            "`dreamgym train` tries them"
        )
    return sorted(mixed, key=lambda task: -worth[task.id])


def _generator(spec: EnvironmentSpec, llm: LLM | None, worlds: RecordedWorlds) -> TaskGenerator:
    from dreamgym.curriculum.goal_variation import held_out

    def failed(parent: Task, error: PredictionError) -> None:
        say(f"{parent.id}: {error}")

    if llm is not None:
        return LanguageVariation(spec, llm, worlds, on_failure=failed, held_out=lambda: held_out(spec))
    if spec.deterministic:
        return StartVariation(spec, worlds)
    raise InvalidInput(
        f"there is no language model to write new tasks, and {spec.name!r} is not declared deterministic, so other "
        "recorded starts cannot be used: give a language model with --model"
    )


async def _varied(
    generator: TaskGenerator, parents: Sequence[Task], known: Sequence[Task], wanted: int, seed: int
) -> list[Task]:
    """New tasks that are not among the known ones, at most `wanted`."""
    there = {content_of(task) for task in known}
    new: dict[str, Task] = {}
    for n in range(ROUNDS):
        missing = wanted - len(new)
        if missing == 0:
            break
        made = await generator.vary(parents[: missing if n == 0 else None], seed=draw_seed(seed, n))
        fresh = {task.id: task for task in made if content_of(task) not in there and task.id not in new}
        new.update(list(fresh.items())[:missing])
    return list(new.values())


def _listed(task: Task, value: TaskValue | None) -> TaskRow:
    listed = TaskRow(
        id=task.id,
        origin=task.origin,
        parent=task.parent_id,
        attempts=0 if value is None else value.total_attempts,
        instruction=task.instruction,
        initial_state=task.initial_state,
    )
    if value is None:
        return listed
    is_proportion = 0 <= value.mean <= 1
    success = wilson(value.mean * value.attempts, value.attempts) if is_proportion else None
    last = {"version": value.policy_version, "tried": value.attempts, "success": success, "value": value.variance}
    return listed.model_copy(update=last)


def in_order(listed: Sequence[TaskRow], by: Sort) -> list[TaskRow]:
    """The tasks in this order. Those without a value or a success come last."""
    keys: Mapping[Sort, Callable[[TaskRow], float]] = {
        Sort.STORED: lambda task: 0.0,
        Sort.VALUE: lambda task: 1.0 if task.value is None else -task.value,
        Sort.SUCCESS: lambda task: 2.0 if task.success is None else task.success.mean,
        Sort.ATTEMPTS: lambda task: -task.attempts,
    }
    return sorted(listed, key=keys[by])
