"""observed.json: examples of arguments, and names and ids that an agent read in an answer and used in a call."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic import JsonValue

from dreamgym.state import leaves
from dreamgym.types import JsonObject, Trajectory

MAX_EXAMPLES = 5
"""Most distinct values per argument."""
MAX_ENTITIES = 200
MAX_CHARACTERS = 200
"""Longer values are texts, which are not useful as examples."""


def observed_in(trajectories: Sequence[Trajectory]) -> JsonObject:
    """Argument examples of calls that the server accepted, and entities, in the order in which they occurred."""
    arguments: dict[str, dict[str, dict[str, JsonValue]]] = {}
    entities: dict[str, None] = {}
    for trajectory in trajectories:
        read = ""
        for transition in trajectory.transitions:
            action = transition.action
            is_example = not transition.result.is_error
            examples_of = arguments.setdefault(action.name, {}) if is_example else {}
            for name, value in action.arguments.items():
                key, examples = json.dumps(value, sort_keys=True), examples_of.setdefault(name, {})
                if len(examples) < MAX_EXAMPLES and len(key) <= MAX_CHARACTERS:
                    examples.setdefault(key, value)
            for _, text in leaves(action.arguments):
                if isinstance(text, str) and 2 <= len(text) <= MAX_CHARACTERS and text in read:
                    entities.setdefault(text)
            read += f"{transition.result.observation}\n"
    listed: dict[str, JsonValue] = {
        tool: {name: list(examples.values()) for name, examples in examples_of.items()}
        for tool, examples_of in sorted(arguments.items())
    }
    names: list[JsonValue] = list(entities)
    return {"arguments": listed, "entities": names[:MAX_ENTITIES]}
