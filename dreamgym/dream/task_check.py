"""The task's own check of success: a fact about the episode, not the opinion of a judge.

A check is in `Task.metadata` and has one part or both:

    success    a JSON Schema that the explicit state of an accomplished task satisfies
    answers    texts that the environment must have answered in the episode, each as often as it is listed; JSON is
               compared as JSON

A part that is null is missing. A schema that every state satisfies (`{}`, `true`) and an empty list of answers ask for
nothing: alone, none of these decides anything.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Sequence

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.redaction import redact_by, redacted_task
from dreamgym.schema import schema_of
from dreamgym.state import State
from dreamgym.types import JsonObject, Task, Trajectory

logger = logging.getLogger(__name__)

PARTS = ("success", "answers")
"""Keys of the parts of a check in `Task.metadata`."""


def check_of(task: Task) -> JsonObject:
    """The parts of the task's check that are not null, as they are in its metadata; empty if it has no check."""
    return {part: task.metadata[part] for part in PARTS if task.metadata.get(part) is not None}


def checked_as_described(spec: EnvironmentSpec, recorded: Sequence[Trajectory]) -> list[Trajectory]:
    """The trajectories, each with the check of the described task with its id, or without one if that has none.

    A recording may be older than tasks.jsonl: its own check counts only if its task is not described. Described tasks
    are redacted, as the recordings are.
    """
    names, redact = {one.task.id for one in recorded}, redact_by(spec.redact)
    checks = {task.id: check_of(redacted_task(task, redact)) for task in spec.tasks if task.id in names}

    def checked(one: Trajectory) -> Trajectory:
        check = checks.get(one.task.id)
        if check is None or check == check_of(one.task):
            return one
        others = {name: value for name, value in one.task.metadata.items() if name not in PARTS}
        task = one.task.model_copy(update={"metadata": {**others, **check}})
        return one.model_copy(update={"task": task})

    return list(map(checked, recorded))


def require_usable_check(task: Task) -> None:
    """Raises InvalidInput if the task has a check that cannot be used."""
    check = task.metadata.get("success")
    try:
        _wanted(task)
        if check is not None:
            schema_of(check).require_usable()
    except InvalidInput as error:
        raise InvalidInput(f"task {task.id!r}: its check: {error}") from error


def wanting_others(tasks: Iterable[Task], answers: Iterable[str]) -> list[Task]:
    """The tasks whose check wants an answer that is not among `answers`. Raises InvalidInput for an unusable check."""
    wanted = [(task, set(map(_canonical, _wanted(task)))) for task in tasks]
    known = set(map(_canonical, answers)) if any(texts for _, texts in wanted) else set()
    return [task for task, texts in wanted if texts - known]


def wants_state(task: Task) -> bool:
    """True if the task's check reads the explicit state."""
    return task.metadata.get("success") not in (None, True, {})


def accomplished(task: Task, state: str, answers: Iterable[str] = ()) -> bool | None:
    """True if the task's own check is satisfied; None if the check cannot decide.

    It cannot decide if there is no check, if the check is about the state and the state is not explicit, or if the
    check cannot be used.

    Args:
        task: the task with the check.
        state: the state that the episode has led to; empty if the environment does not report explicit states. An
            answer may be JSON too, but it is not a state.
        answers: all observations of the episode.
    """
    check = task.metadata.get("success")
    check = None if check is True or check == {} else check
    content = None if check is None else State.of(state).content
    if check is not None and content is None:
        return None
    try:
        missing = Counter(map(_canonical, _wanted(task)))
        if check is None and not missing:
            return None
        if missing:
            missing -= Counter(map(_canonical, answers))
        return not missing and (check is None or schema_of(check).fault(content) is None)
    except InvalidInput as error:
        logger.warning("task %r: its check cannot be used: %s", task.id, error)
        return None


def _wanted(task: Task) -> list[str]:
    wanted = task.metadata.get("answers") or []
    if not isinstance(wanted, list) or not all(isinstance(one, str) for one in wanted):
        raise InvalidInput(f"expected a list of texts in metadata.answers, got {wanted!r:.200}")
    return [str(one) for one in wanted]


def _canonical(answer: str) -> str:
    try:
        return json.dumps(json.loads(answer, parse_float=_number), sort_keys=True)
    except (ValueError, RecursionError):
        return answer


def _number(text: str) -> float:
    """The number; a whole one as an integer, because 5 and 5.0 are one number in JSON."""
    number = float(text)
    return int(number) if number.is_integer() else number
