"""Whether a task is accomplished, by its own check: a fact about the episode, and nobody's opinion.

A check stands in `Task.metadata` and has one part or both:

    success    a JSON Schema that the explicit state of an accomplished task satisfies
    answers    what the environment must have answered in the episode, each as often as it is listed; JSON is compared
               as JSON
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

from dreamgym.errors import InvalidInput
from dreamgym.schema import schema_of
from dreamgym.state import parsed
from dreamgym.types import Task


def accomplished(task: Task, state: str, answers: Iterable[str] = ()) -> bool | None:
    """Whether the task is accomplished; None if it has no check, or one of the state and the state is not explicit.

    Args:
        task: whose check is asked.
        state: that the episode has led to.
        answers: all observations of the episode.

    Raises:
        InvalidInput: the check is malformed.
    """
    check, wanted = task.metadata.get("success"), task.metadata.get("answers")
    world = parsed(state)
    if (check is None and wanted is None) or (check is not None and world is None):
        return None
    if not isinstance(wanted, list | None) or not all(isinstance(one, str) for one in wanted or ()):
        raise InvalidInput(f"task {task.id!r}: expected a list of texts in metadata.answers, got {wanted!r}")
    missing = Counter(_canonical(str(one)) for one in wanted or ())
    if missing:
        missing -= Counter(map(_canonical, answers))
    try:
        return not missing and (check is None or schema_of(check).fault(world) is None)
    except InvalidInput as error:
        raise InvalidInput(f"task {task.id!r}: metadata.success: {error}") from error


def _canonical(answer: str) -> str:
    try:
        return json.dumps(json.loads(answer), sort_keys=True)
    except ValueError:
        return answer
