"""observed.json: examples of arguments, and names and ids that an agent read in an answer and used in a call."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain

from pydantic import JsonValue

from dreamgym.state import leaves
from dreamgym.types import JsonObject, Trajectory

MAX_EXAMPLES = 5
"""Most distinct values per argument."""
MAX_ENTITIES = 200
MAX_CHARACTERS = 200
"""Longer values are texts, which are not useful as examples."""
FEW = 100
"""Up to so many texts are searched one by one, since a search is much faster than a look at each place."""


def observed_in(trajectories: Sequence[Trajectory]) -> JsonObject:
    """Argument examples of calls that the server accepted, and entities, in the order in which they occurred."""
    arguments: dict[str, dict[str, dict[str, JsonValue]]] = {}
    entities: dict[str, None] = {}
    for trajectory in trajectories:
        for transition in trajectory.transitions:
            action = transition.action
            is_example = not transition.result.is_error
            examples_of = arguments.setdefault(action.name, {}) if is_example else {}
            for name, value in action.arguments.items():
                key, examples = json.dumps(value, sort_keys=True), examples_of.setdefault(name, {})
                if len(examples) < MAX_EXAMPLES and len(key) <= MAX_CHARACTERS:
                    examples.setdefault(key, value)
        if len(entities) < MAX_ENTITIES:
            entities.update(dict.fromkeys(_read_before(trajectory)))
    listed: dict[str, JsonValue] = {
        tool: {name: list(examples.values()) for name, examples in examples_of.items()}
        for tool, examples_of in sorted(arguments.items())
    }
    names: list[JsonValue] = list(entities)
    return {"arguments": listed, "entities": names[:MAX_ENTITIES]}


def _read_before(trajectory: Trajectory) -> Iterator[str]:
    """The texts in arguments that occur in what the agent had read before the call, in the order of the calls.

    All texts are searched in each answer once, so that the time grows with the length of the episode, not its square.
    """
    used = [_texts(transition.action.arguments) for transition in trajectory.transitions]
    wanted: dict[int, set[str]] = {}
    for text in chain.from_iterable(used):
        wanted.setdefault(len(text), set()).add(text)
    read: set[str] = set()
    end = ""
    for transition, texts in zip(trajectory.transitions, used, strict=True):
        yield from (text for text in texts if text in read)
        answer = f"{end}{transition.result.observation}\n"
        for length, some in wanted.items():
            found = _found(some, length, answer)
            read |= found
            some.difference_update(found)
        end = answer[-MAX_CHARACTERS:]  # a text may begin in one answer and end in the next


def _found(texts: set[str], length: int, answer: str) -> set[str]:
    """Those of the texts, all of one length, that occur in an answer."""
    if len(texts) <= FEW:
        return {text for text in texts if text in answer}
    return texts.intersection(answer[place : place + length] for place in range(len(answer) - length + 1))


def _texts(arguments: JsonObject) -> list[str]:
    return [text for _, text in leaves(arguments) if isinstance(text, str) and 2 <= len(text) <= MAX_CHARACTERS]
