"""Recorded calls, prepared to be made again: origins of their values, ids among them, and which calls only read.

If a recorded call took an id from an earlier answer, the new call takes it from the live answer. So this also works in
a world that numbers its orders differently.
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
        """A recorded call; each id that came from an earlier answer is replaced by the one in the live answer."""
        action = self.actions[index]
        live: dict[Path, JsonValue] = {}
        for path, recorded in leaves(action.arguments):
            answer, place = self._origins.get((index, path), (-1, ()))
            value = _at(state.shown_in(answers[answer]), place) if answer in answers else None
            if type(value) is type(recorded):
                live[path] = value
        return replaced(action, live)


class Ids:
    """The ids in some recordings, and wrong ids made from them."""

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
        """The call with each id replaced by a new one of the same form, or by the id of another entity.

        If the call has no id, its texts are replaced by other recorded ones of the same argument.
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
        """A value of the same form that is in no recording, with more digits if all of that form are taken."""
        text = str(value)
        for attempt in range(_TRIES):
            longer = text + "0" * (attempt // 10)
            drawn = _redrawn(longer, random)
            new: Scalar = drawn if isinstance(value, str) else type(value)(drawn)
            if new not in self._known and new != value:
                return new
        return value


class Reads:
    """Decides which calls only read.

    A call only reads if its tool is annotated as read-only, or if the tool never changed an explicit state in the
    recordings. If the whole action is a text, it only reads if this very action never changed the state.
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
        """True if the call only reads, as far as is known."""
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
    """Every text and number of a JSON value with its path; truth values and nulls are left out."""
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
    """The text with other digits in their places; if it has no digits, with other letters."""
    if re.search(r"\d", text):
        return re.sub(r"\d", lambda _: random.choice("123456789"), text)
    return re.sub(r"[a-z]", lambda _: random.choice("abcdefghijklmnopqrstuvwxyz"), text)
