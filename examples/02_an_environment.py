"""A custom environment: a row of lamps, and tasks that ask for a certain pattern of them.

python examples/02_an_environment.py
dreamgym collect examples/02_an_environment.py:switches --agent random --episodes 50
dreamgym serve examples/02_an_environment.py:switches --model nearest
"""

import asyncio
from collections.abc import Mapping, Sequence
from random import Random

from dreamgym import Environment, EnvironmentSpec, StepResult, Task, ToolCall, check_environment
from dreamgym.environment import Behaviour
from dreamgym.errors import EpisodeFinished
from dreamgym.types import JsonObject

TOOL: JsonObject = {
    "name": "press",
    "description": "Press the switch of a lamp.",
    "inputSchema": {"type": "object", "properties": {"lamp": {"type": "integer"}}, "required": ["lamp"]},
}
SPEC = EnvironmentSpec(
    name="switches", description="Three lamps.", tools_list=({"tools": [TOOL]},), max_steps=8, deterministic=True
)


class Lamps:
    tools: Sequence[JsonObject] = (TOOL,)

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        self._wanted, self._lit, self._is_over = task.metadata["wanted"], [False] * 3, False
        return StepResult(observation="off off off")

    async def step(self, action: ToolCall) -> StepResult:
        if getattr(self, "_is_over", True):
            raise EpisodeFinished("the episode is over: call reset first")
        lamp = action.arguments.get("lamp")
        if not isinstance(lamp, int) or lamp not in range(3):
            return StepResult(observation=f"there is no lamp {lamp!r}", is_error=True)
        self._lit[lamp] = not self._lit[lamp]
        shown = " ".join("on" if lit else "off" for lit in self._lit)
        self._is_over = shown == self._wanted
        return StepResult(observation=shown, reward=float(self._is_over), terminated=self._is_over)

    async def close(self) -> None:
        pass


async def at_random(first: StepResult, environment: Environment, seed: int) -> None:
    random, result = Random(seed), first
    for _ in range(SPEC.max_steps):
        if not result.done:
            result = await environment.step(ToolCall(name="press", arguments={"lamp": random.randrange(3)}))


class RealLamps:
    spec, behaviours = SPEC, {"random": at_random}

    def tasks(self, split: str) -> Sequence[Task]:
        wanted = {"train": ("on off on", "on on on"), "dev": ("off on off",), "test": ("off on on",)}[split]
        ask = "Make the lamps show: {}"
        name = SPEC.name
        return [Task(id=f"{split}-{w}", env=name, instruction=ask.format(w), metadata={"wanted": w}) for w in wanted]

    def create(self) -> Environment:
        return Lamps()


def switches(options: Mapping[str, object]) -> RealLamps:
    return RealLamps()


BEHAVIOUR: Behaviour = at_random

if __name__ == "__main__":
    asyncio.run(check_environment(Lamps, RealLamps().tasks("train"), deterministic=True))
    print("passes all checks of an environment")
