"""Ways to play the benchmark's conversations: the ground truth, the ground truth with slips, and random calls.

They know the conversation from the explicit state, so they play in a simulation as well as in the real world.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random

from pydantic import JsonValue

from dreamgym.environment import Behaviour, Environment
from dreamgym.errors import InvalidInput
from dreamgym.state import fields, parsed
from dreamgym.types import JsonObject, StepResult, ToolCall
from dreamgym_integrations.environments.bfcl.suite import Conversation, Suite
from dreamgym_integrations.environments.bfcl.tools import NEXT, tool_of

NEXT_CALL = ToolCall(name=NEXT)
LONGEST = 60
"""Texts of a state up to this length are used as arguments."""


class Caller:
    """Makes random calls that fit their schemas, with values from the state if there are fitting ones."""

    def __init__(self, conversation: Conversation, suite: Suite, random: Random) -> None:
        self._random = random
        self._tools = [
            tool_of(doc)
            for name in conversation.classes
            for doc in suite.docs[name]
            if doc["name"] not in conversation.excluded
        ]

    def call(self, state: str) -> ToolCall:
        """A random call of any function of the conversation."""
        tool = self._random.choice(self._tools)
        schema = tool["inputSchema"]
        assert isinstance(schema, dict)
        return ToolCall(name=str(tool["name"]), arguments=self._arguments(schema, _values(state)))

    def disturbed(self, call: ToolCall, state: str) -> ToolCall:
        """The call with another value of one argument; a random call if it has no arguments."""
        schema = next((tool["inputSchema"] for tool in self._tools if tool["name"] == call.name), None)
        if not call.arguments or not isinstance(schema, dict):
            return self.call(state)
        name = self._random.choice(list(call.arguments))
        properties = schema["properties"]
        assert isinstance(properties, dict)
        value = self._value(name, properties[name], _values(state))
        return call.model_copy(update={"arguments": {**call.arguments, name: value}})

    def _arguments(self, schema: JsonObject, known: Sequence[tuple[str, JsonValue]]) -> JsonObject:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        assert isinstance(properties, dict)
        assert isinstance(required, list)
        wanted = [name for name in properties if name in required or self._random.random() < 0.3]
        return {name: self._value(name, properties[name], known) for name in wanted}

    def _value(self, name: str, schema: JsonValue, known: Sequence[tuple[str, JsonValue]]) -> JsonValue:
        assert isinstance(schema, dict)
        allowed, kinds = schema.get("enum"), schema.get("type")
        if isinstance(allowed, list):
            return self._random.choice(allowed)
        kind = str(kinds[0] if isinstance(kinds, list) else kinds)
        if kind == "object":
            return self._arguments(schema, known)
        if kind == "array":
            items = schema.get("items", {"type": "string"})
            return [self._value(name, items, known) for _ in range(self._random.randint(1, 3))]
        if kind == "boolean":
            return self._random.random() < 0.5
        maximum = schema.get("maximum")
        if isinstance(maximum, int | float):
            known = [(called, value) for called, value in known if isinstance(value, int | float) and value <= maximum]
        return self._scalar(name, kind, known)

    def _scalar(self, name: str, kind: str, known: Sequence[tuple[str, JsonValue]]) -> JsonValue:
        """A text or a number: mostly one from the state, preferably of a similar name, else an invented one."""
        types = {"string": (str,), "integer": (int,), "number": (int, float)}.get(kind, (str,))
        fitting = [
            (called, value) for called, value in known if isinstance(value, types) and not isinstance(value, bool)
        ]
        alike = [value for called, value in fitting if called.endswith(name) or name.endswith(called)]
        if alike and self._random.random() < 0.7:
            return self._random.choice(alike)
        if fitting and self._random.random() < 0.7:
            return self._random.choice(fitting)[1]
        return f"{name} {self._random.randint(1, 9)}" if kind == "string" else self._random.randint(1, 20)


def _values(state: str) -> list[tuple[str, JsonValue]]:
    """(name, value) of the ids and fields in a state, without the requests and without long values."""
    found: list[tuple[str, JsonValue]] = []
    for path, value in fields(parsed(state) or {}):
        above, _, name = path.rpartition("/")
        if above.startswith("/requests") or len(str(value)) > LONGEST:
            continue
        parts = value if isinstance(value, list) else [value]
        found += [(name.rpartition(".")[2], part) for part in parts if isinstance(part, str | int | float)]
    return found


def behaviours(suite: Callable[[], Suite]) -> Mapping[str, Behaviour]:
    """`expert` plays the ground truth, `noisy` and `mixed` add slips, `random` makes any calls that fit a schema."""

    def scripted(slips: Sequence[float]) -> Behaviour:
        async def behaviour(start: StepResult, environment: Environment, seed: int) -> None:
            random = Random(seed)
            conversation = _conversation(start, suite())
            caller = Caller(conversation, suite(), random)
            share, result = random.choice(slips), start
            for call in (call for calls in conversation.calls for call in (*calls, NEXT_CALL)):
                for action in _slipped(call, caller, result.state, share, random):
                    if not result.done:
                        result = await environment.step(action)
            while not result.done:
                result = await environment.step(NEXT_CALL)

        return behaviour

    async def at_random(start: StepResult, environment: Environment, seed: int) -> None:
        random = Random(seed)
        caller, result = Caller(_conversation(start, suite()), suite(), random), start
        while not result.done:
            call = NEXT_CALL if random.random() < 0.2 else caller.call(result.state)
            result = await environment.step(call)

    return {
        "expert": scripted((0.0,)),
        "noisy": scripted((0.3,)),
        "mixed": scripted((0.0, 0.1, 0.3, 0.6)),
        "random": at_random,
    }


def _conversation(start: StepResult, suite: Suite) -> Conversation:
    name = (parsed(start.state) or {}).get("conversation")
    found = suite.conversations.get(name) if isinstance(name, str) else None
    if found is None:
        raise InvalidInput("the behaviours of bfcl need an explicit state with the id of one of its conversations")
    return found


def _slipped(call: ToolCall, caller: Caller, state: str, share: float, random: Random) -> Iterator[ToolCall]:
    """The call, or with probability `share` a slip: no call, the call twice, changed, or after a stray one."""
    if call == NEXT_CALL or random.random() >= share:
        yield call
        return
    slip = random.choice(("dropped", "repeated", "disturbed", "stray"))
    if slip == "repeated":
        yield call
    elif slip == "stray":
        yield caller.call(state)
    if slip == "disturbed":
        yield caller.disturbed(call, state)
    elif slip != "dropped":
        yield call
