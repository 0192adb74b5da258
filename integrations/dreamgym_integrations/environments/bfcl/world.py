"""One world of API instances, and the referee that compares it with a second one in which the ground truth is played.

The rule is the benchmark's own. After each request the instances' public attributes equal those of the ground truth,
the answers so far include all answers to the ground truth's calls, and the agent called something if the ground truth
did.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from decimal import localcontext

from dreamgym.types import JsonObject, ToolCall
from dreamgym_integrations.environments.bfcl.state import System, jsonable
from dreamgym_integrations.environments.bfcl.suite import Conversation


@dataclass(frozen=True)
class FunctionResult:
    """Result of one function call."""

    said: str
    """The text that the benchmark compares."""
    structured: JsonObject
    is_error: bool = False


class ApiInstances:
    """The instances of one conversation."""

    def __init__(self, conversation: Conversation, make: Callable[[str], object]) -> None:
        self.instances: dict[str, object] = {}
        for name in conversation.classes:
            instance = self.instances[name] = make(name)
            if load := getattr(instance, "_load_scenario", None):  # a class without a state has none
                load(deepcopy(conversation.config.get(name, {})))

    def call(self, owner: str, action: ToolCall) -> FunctionResult:
        """Call a function of one of the instances. An exception becomes its answer, as in the benchmark."""
        try:
            with localcontext():  # the calculator changes the decimal precision of its caller
                return answer_of(getattr(self.instances[owner], action.name)(**deepcopy(action.arguments)))
        except Exception as error:  # noqa: BLE001 the package's code, with whatever arguments an agent thinks of
            said = f"Error during execution: {error}"
            return FunctionResult(said, {"error": said}, is_error=True)

    def state(self, systems: Mapping[str, System]) -> JsonObject:
        """The state of all instances."""
        state: JsonObject = {}
        for name, instance in self.instances.items():
            state |= systems[name].state(instance)
        return state


def answer_of(value: object) -> FunctionResult:
    """The result of a call from the value that the function returned."""
    said = value if isinstance(value, str) else str(value)
    if isinstance(value, dict):
        try:
            said = json.dumps(value)
        except (TypeError, ValueError):  # the benchmark takes Python's text then
            said = str(value)
    plain = jsonable({} if value is None else value)
    structured: JsonObject = plain if isinstance(plain, dict) else {"result": plain}
    return FunctionResult(said, structured, is_error=bool(structured.get("error")))


class Referee:
    """Judges a conversation by playing the ground truth in a world of its own."""

    def __init__(self, conversation: Conversation, make: Callable[[str], object], owners: Mapping[str, str]) -> None:
        self._conversation = conversation
        self._owners = owners
        self.truth = ApiInstances(conversation, make)
        self._answers: list[str] = []
        self._called = False
        self.verdicts: list[bool] = []
        """For each closed request, True if it was fulfilled."""

    def note(self, answer: FunctionResult) -> None:
        """Record the answer to a call of the agent."""
        self._answers.append(answer.said)
        self._called = True

    def close_request(self, world: ApiInstances) -> None:
        """Judge the current request, which the agent has declared done."""
        calls = self._conversation.calls[len(self.verdicts)]
        wanted = [self.truth.call(self._owners[call.name], call).said for call in calls]
        is_fulfilled = not calls or (
            self._called and is_alike(world, self.truth) and not Counter(wanted) - Counter(self._answers)
        )
        self.verdicts.append(is_fulfilled)
        self._called = False


def is_alike(world: ApiInstances, truth: ApiInstances) -> bool:
    """True if all public attributes of all instances are equal; values that contain themselves are not."""
    try:
        return all(
            dict(_public(world.instances[name])) == dict(_public(instance))
            for name, instance in truth.instances.items()
        )
    except RecursionError:  # a directory that contains itself
        return False


def _public(instance: object) -> Iterator[tuple[str, object]]:
    return ((name, value) for name, value in vars(instance).items() if not name.startswith("_"))
