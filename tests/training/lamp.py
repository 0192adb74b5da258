"""A small text environment: say the colour of the lamp that is shown."""

from collections.abc import Sequence

from dreamgym import StepResult, Task, ToolCall
from dreamgym.errors import EnvironmentUnavailable
from dreamgym.types import JsonObject

COLOURS = ["red", "green", "blue", "white"]
TOOL: JsonObject = {
    "name": "act",
    "description": "Say what to do.",
    "inputSchema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}


class LampEnvironment:
    """Say the colour of the lamp that is shown: reward 1. Anything else is refused and costs a step."""

    def __init__(self, fails_after: int | None = None) -> None:
        self.said: list[str] = []
        self._fails_after = fails_after
        self._colour = ""

    @property
    def tools(self) -> Sequence[JsonObject]:
        return [TOOL]

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        self._colour = str(task.metadata["colour"])
        self.said = []
        return StepResult(observation=f"the lamp is {self._colour}")

    async def step(self, action: ToolCall) -> StepResult:
        if self._fails_after is not None and len(self.said) >= self._fails_after:
            raise EnvironmentUnavailable("the lamp broke")
        command = str(action.arguments["command"])
        self.said.append(command)
        if command == f"say {self._colour}":
            return StepResult(observation="right", reward=1.0, terminated=True)
        return StepResult(observation=f"wrong, the lamp is {self._colour}", is_error=True)

    async def close(self) -> None:
        pass
