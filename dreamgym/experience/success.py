"""Whether a task is accomplished, as its own check says: a fact about the state, and nobody's opinion.

`Task.metadata["success"]` is a JSON Schema that the state of an accomplished task satisfies.
"""

from __future__ import annotations

import json
from functools import lru_cache

import jsonschema

from dreamgym.errors import InvalidInput
from dreamgym.state import parsed
from dreamgym.types import Task


def accomplished(task: Task, state: str) -> bool | None:
    """Whether the state is one of an accomplished task; None where the task has no check or the state is words.

    Raises:
        InvalidInput: the check is no JSON Schema.
    """
    check = task.metadata.get("success")
    world = parsed(state)
    if check is None or world is None:
        return None
    try:
        return bool(_compiled(json.dumps(check)).is_valid(world))
    except jsonschema.SchemaError as error:
        raise InvalidInput(f"task {task.id!r}: metadata.success is no JSON Schema: {error.message}") from error


@lru_cache(maxsize=1024)
def _compiled(text: str) -> jsonschema.protocols.Validator:
    schema = json.loads(text)
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    kind.check_schema(schema)
    validator: jsonschema.protocols.Validator = kind(schema)
    return validator
