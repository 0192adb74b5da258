"""The contract suite: a real game and a small text environment pass it, and it catches each broken promise."""

from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest
from pydantic import JsonValue

from dreamgym.environment import load_real
from dreamgym.errors import EpisodeFinished, UnknownName
from dreamgym.testing.environment import check_environment, check_tools, plainest_call
from dreamgym.types import JsonObject, StepResult, Task, ToolCall

pytestmark = pytest.mark.anyio

PRESS: JsonObject = {
    "name": "press",
    "inputSchema": {
        "type": "object",
        "properties": {"button": {"type": "string", "enum": ["red", "green"]}, "times": {"type": "integer"}},
        "required": ["button", "times"],
    },
}
TASKS = [Task(id=f"lamp-{number}", env="lamp", instruction="", metadata={"presses": number}) for number in (1, 3, 9)]


class Lamp:
    """A lamp that goes on after some presses of a button."""

    tools: Sequence[JsonObject] = (PRESS,)

    def __init__(self) -> None:
        self.left = 0
        self.closed = 0

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        self.left = int(str(task.metadata["presses"]))
        return StepResult(observation=f"The lamp needs {self.left}.")

    async def step(self, action: ToolCall) -> StepResult:
        if action.name != "press":
            raise UnknownName("tool", action.name, ["press"])
        if self.left == 0:
            raise EpisodeFinished("the lamp is on")
        self.left -= 1
        return StepResult(observation=f"{self.left} left", reward=float(self.left == 0), terminated=self.left == 0)

    async def close(self) -> None:
        self.closed += 1


class NeverFinished(Lamp):
    async def step(self, action: ToolCall) -> StepResult:
        self.left = self.left or 1
        return await super().step(action)


class Blind(Lamp):
    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        return (await super().reset(task)).model_copy(update={"observation": ""})


class OverAtOnce(Lamp):
    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        return (await super().reset(task)).model_copy(update={"terminated": True})


class TakesAnyTool(Lamp):
    async def step(self, action: ToolCall) -> StepResult:
        return await super().step(ToolCall(name="press"))


class Shared(Lamp):
    everyone: ClassVar[list[int]] = []

    @property
    def left(self) -> int:
        return self.everyone[0] if self.everyone else 0

    @left.setter
    def left(self, value: int) -> None:
        self.everyone[:] = [value]


class Forgetful(Lamp):
    resets = 0

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        self.resets += 1
        await super().reset(task)
        return StepResult(observation=f"Start number {self.resets}.")


class BreaksOthers(Lamp):
    open: ClassVar[list[Lamp]] = []

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        self.open.append(self)
        return await super().reset(task)

    async def close(self) -> None:
        for other in self.open:
            other.left = 0


class ClosesOnce(Lamp):
    async def close(self) -> None:
        assert not self.closed, "closed twice"
        await super().close()


async def test_the_real_game_keeps_the_contract() -> None:
    coin = load_real("coin")
    await check_environment(coin.create, coin.tasks("train")[:4], deterministic=True)


async def test_the_real_game_keeps_the_contract_when_every_step_is_refused() -> None:
    coin = load_real("coin")
    jump = ToolCall(name="act", arguments={"command": "jump"})
    await check_environment(coin.create, coin.tasks("test")[:2], action=jump, deterministic=True)


async def test_a_small_text_environment_keeps_the_contract() -> None:
    await check_environment(Lamp, TASKS, deterministic=True)


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (NeverFinished, "before the first reset must raise EpisodeFinished"),
        (Blind, "first observation is empty"),
        (OverAtOnce, "over before its first step"),
        (TakesAnyTool, "unknown tool must be an error"),
        (Shared, "different answers beside other tasks"),
        (Forgetful, "different answers the second time"),
        (BreaksOthers, "go on when another one is closed"),
        (ClosesOnce, "closed twice"),
    ],
)
async def test_a_broken_promise_is_named(make: Callable[[], Lamp], fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        await check_environment(make, TASKS[1:], deterministic=True)


@pytest.mark.parametrize(
    ("tools", "fault"),
    [
        ([], "at least one tool"),
        ([{"inputSchema": {"type": "object"}}], "needs a name"),
        ([PRESS, PRESS], "not unique"),
        ([{"name": "press"}], "expected an object as inputSchema"),
        ([{"name": "press", "inputSchema": {"type": "string"}}], "needs the type 'object'"),
        ([{"name": "press", "inputSchema": {"type": "object", "properties": 3}}], "not a usable JSON Schema"),
    ],
)
def test_a_tool_that_is_not_an_mcp_tool_is_named(tools: list[JsonObject], fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        check_tools(tools)


@pytest.mark.parametrize(
    ("definition", "value"),
    [
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 1),
        ({"type": ["boolean", "null"]}, True),
        ({"$ref": "#/$defs/Size"}, 1),
        ({"const": "go"}, "go"),
        ({"enum": ["red", "green"]}, "red"),
        ({"type": "integer", "minimum": 10, "default": 12}, 12),
        ({"type": "number"}, 1.0),
        ({}, "look"),
        ({"type": "string", "pattern": "^[0-9]{4}$"}, "look"),
    ],
)
def test_the_plainest_value_is_one_that_the_schema_allows_if_a_plain_one_is(
    definition: JsonObject, value: JsonValue
) -> None:
    schema: JsonObject = {
        "type": "object",
        "properties": {"size": definition},
        "required": ["size"],
        "$defs": {"Size": {"type": "integer"}},
    }
    assert plainest_call({"name": "resize", "inputSchema": schema}).arguments == {"size": value}


def test_the_plainest_call_has_the_required_arguments_only() -> None:
    assert plainest_call(PRESS) == ToolCall(name="press", arguments={"button": "red", "times": 1})
