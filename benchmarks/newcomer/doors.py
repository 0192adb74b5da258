"""A newcomer's own environment: three doors, and a sign that shows which one opens."""

import random
from collections.abc import Mapping, Sequence

from dreamgym import Environment, EnvironmentSpec, StepResult, Task, ToolCall
from dreamgym.environment import Behaviour
from dreamgym.errors import EpisodeFinished
from dreamgym.types import JsonObject

COLOURS = ["red", "green", "blue"]
TOOL: JsonObject = {
    "name": "act",
    "description": "Open a door: open red, open green or open blue.",
    "inputSchema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}


class Doors:
    tools = (TOOL,)
    _right: str | None = None

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        self._right = str(task.metadata["right"])
        return StepResult(observation=f"the sign shows {self._right}")

    async def step(self, action: ToolCall) -> StepResult:
        if self._right is None:
            raise EpisodeFinished("no episode is running: call reset first")
        if action.arguments.get("command") == f"open {self._right}":
            self._right = None
            return StepResult(observation="the door opens", reward=1.0, terminated=True)
        return StepResult(observation="it is locked", is_error=True)

    async def close(self) -> None:
        """There is nothing to release."""


async def at_random(first: StepResult, environment: Environment, seed: int) -> None:
    draw, result = random.Random(seed), first
    while not result.done:
        command = f"open {draw.choice(COLOURS)}"
        result = await environment.step(ToolCall(name="act", arguments={"command": command}))


class RealDoors:
    spec = EnvironmentSpec(name="doors", tools_list=({"tools": [TOOL]},), max_steps=3, deterministic=True)
    behaviours: Mapping[str, Behaviour] = {"random": at_random}

    def tasks(self, split: str) -> Sequence[Task]:
        ask = f"find the door of the {split} house"
        return [Task(id=f"{split}-{c}", env="doors", instruction=ask, metadata={"right": c}) for c in COLOURS]

    def create(self) -> Doors:
        return Doors()


def doors(options: JsonObject) -> RealDoors:
    return RealDoors()
