"""Recorded calls to be made again: where their values came from, which of them are ids, and which calls only read.

What a recorded call took from an earlier answer is taken from the live answer again, so that a world that numbers its
orders otherwise is no obstacle.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from random import Random

from pydantic import JsonValue

from dreamgym import state
from dreamgym.environment import EnvironmentSpec
from dreamgym.types import JsonObject, StepResult, ToolCall, Trajectory

Path = tuple[str | int, ...]
Scalar = str | int | float

_ID_NAME = re.compile(r"(^|_)(ids?|key|sku|code|ref|uuid|number)$|[a-z](Id|ID|Ref|Key)s?$", re.IGNORECASE)
_ID_FORM = re.compile(r"[A-Za-z]+[-_#:]?\d+(?:-\w+)*|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}")
_TRIES = 100


class Script:
    """The calls of one recorded episode."""

    def __init__(self, recording: Trajectory) -> None:
        self.task = recording.task
        self.actions = tuple(step.action for step in recording.transitions)
        self._origins: dict[tuple[int, Path], tuple[int, Path]] = {}
        shown: dict[Scalar, tuple[int, Path]] = {}
        used: set[Scalar] = set()
        for index, step in enumerate(recording.transitions):
            for path, value in leaves(step.action.arguments):
                if not is_id(path, value) or str(value) in recording.task.instruction:
                    continue
                if value in shown and value not in used:
                    self._origins[index, path] = shown[value]
                else:
                    used.add(value)
            for path, value in leaves(state.shown_in(step.result)):
                shown.setdefault(value, (index, path))

    def call(self, index: int, answers: Mapping[int, StepResult]) -> ToolCall:
        """A recorded call; an id that it had read in an answer is the one that the live answer shows there."""
        action = self.actions[index]
        live: dict[Path, JsonValue] = {}
        for path, recorded in leaves(action.arguments):
            answer, place = self._origins.get((index, path), (-1, ()))
            value = _at(state.shown_in(answers[answer]), place) if answer in answers else None
            if type(value) is type(recorded):
                live[path] = value
        return replaced(action, live)


class Ids:
    """The ids in some recordings, and how to get them wrong."""

    def __init__(self, recordings: Sequence[Trajectory]) -> None:
        self._known: dict[Scalar, None] = {}
        self._arguments: dict[tuple[str, Path], dict[Scalar, None]] = {}
        for recording in recordings:
            for step in recording.transitions:
                for path, value in leaves(step.action.arguments):
                    self._known.setdefault(value)
                    if isinstance(value, str):
                        self._arguments.setdefault((step.action.name, path), {}).setdefault(value)
                for path, value in leaves(state.shown_in(step.result)):
                    if is_id(path, value):
                        self._known.setdefault(value)

    def spoiled(self, action: ToolCall, random: Random) -> ToolCall:
        """The call with each id replaced: by one of the same form that does not exist, or by that of another entity.

        A call without an id has its texts replaced by other recorded ones of the same argument.
        """
        wrong: dict[Path, JsonValue] = {}
        ids = [(path, value) for path, value in leaves(action.arguments) if is_id(path, value)]
        for path, value in ids:
            others = [one for one in self._known if one != value and _form(one) == _form(value)]
            is_other = bool(others) and random.random() < 0.5
            wrong[path] = random.choice(others) if is_other else self._unknown(value, random)
        for path, value in leaves(action.arguments) if not ids else ():
            texts = [text for text in self._arguments.get((action.name, path), ()) if text != value]
            if isinstance(value, str) and texts:
                wrong[path] = random.choice(texts)
        return replaced(action, wrong)

    def _unknown(self, value: Scalar, random: Random) -> Scalar:
        """A value of the same form that no recording knows; more digits where all of that form are taken."""
        text = str(value)
        for attempt in range(_TRIES):
            longer = text + "0" * (attempt // 10)
            drawn = _redrawn(longer, random)
            new: Scalar = drawn if isinstance(value, str) else type(value)(drawn)
            if new not in self._known and new != value:
                return new
        return value


class Reads:
    """Which calls only read.

    A tool whose annotation says so, or that never changed the explicit state of a recording. Of an environment whose
    whole action is a text: an action that never changed the state.
    """

    def __init__(self, spec: EnvironmentSpec, recordings: Sequence[Trajectory]) -> None:
        self._by_action = spec.text_argument is not None
        self._said: dict[str, bool] = {}
        for tool in spec.tools:
            annotations = tool.get("annotations")
            hint = annotations.get("readOnlyHint") if isinstance(annotations, dict) else None
            if isinstance(hint, bool):
                self._said[str(tool["name"])] = hint
        self._seen: dict[str, bool] = {}
        if spec.state is not None or self._by_action:
            for step in (step for recording in recordings for step in recording.transitions):
                if not step.result.is_error:
                    key = self._key(step.action)
                    changes = step.next_state != step.state or step.result.done
                    self._seen[key] = self._seen.get(key, True) and not changes

    def __call__(self, action: ToolCall) -> bool:
        """True if the call only reads, as far as anything tells."""
        return self._said.get(action.name, self._seen.get(self._key(action), False))

    def _key(self, action: ToolCall) -> str:
        return action.canonical() if self._by_action else action.name


def is_id(path: Path, value: Scalar) -> bool:
    """True if a value names an entity, by the name of its field or by its form (`O-1001`)."""
    if isinstance(value, float):
        return False
    name = next((part for part in reversed(path) if isinstance(part, str)), "")
    named = _ID_NAME.search(name) is not None
    return named or (isinstance(value, str) and _ID_FORM.fullmatch(value) is not None)


def leaves(value: JsonValue) -> Iterator[tuple[Path, Scalar]]:
    """Every text and number of a JSON value with its path; truth values and nulls name nothing."""
    for path, leaf in state.leaves(value):
        if isinstance(leaf, (str, int, float)) and not isinstance(leaf, bool):
            yield path, leaf


def replaced(action: ToolCall, changes: Mapping[Path, JsonValue]) -> ToolCall:
    """The call with other values at some paths of its arguments."""
    arguments: JsonObject = json.loads(json.dumps(action.arguments))
    for (*above, last), value in changes.items():
        parent = _at(arguments, tuple(above))
        if isinstance(parent, dict):
            parent[str(last)] = value
        elif isinstance(parent, list) and isinstance(last, int):
            parent[last] = value
    return action.model_copy(update={"arguments": arguments})


def distinct(actions: Collection[ToolCall]) -> list[ToolCall]:
    """Each call once, in order."""
    return list({action.canonical(): action for action in actions}.values())


def _at(value: JsonValue, path: Path) -> JsonValue:
    for part in path:
        if isinstance(value, dict) and isinstance(part, str):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return None
    return value


def _form(value: Scalar) -> tuple[type, str]:
    return type(value), re.sub(r"[a-z]+", "a", re.sub(r"\d+", "0", str(value)))


def _redrawn(text: str, random: Random) -> str:
    """Other digits in their places; in a text without digits, other letters."""
    if re.search(r"\d", text):
        return re.sub(r"\d", lambda _: random.choice("123456789"), text)
    return re.sub(r"[a-z]", lambda _: random.choice("abcdefghijklmnopqrstuvwxyz"), text)
