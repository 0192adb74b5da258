"""An environment with one tool that repeats its text argument, and a tiny policy that knows its words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dreamgym_integrations.trainers.policy.model import ChatCodec, TransformersPolicy, load_chat_policy
from dreamgym_integrations.trainers.policy.tiny import create_tiny_policy

from dreamgym import EnvironmentSpec, StepResult, Task, ToolCall
from dreamgym.environment import Environment
from dreamgym.episode import play
from dreamgym.errors import EnvironmentUnavailable
from dreamgym.types import JsonObject, Source

TOOL: JsonObject = {
    "name": "act",
    "description": "Say a word.",
    "inputSchema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
TASKS = tuple(Task(id=f"echo-{i}", env="echo", instruction="say something", initial_state="hello") for i in range(2))
SPEC = EnvironmentSpec(name="echo", tools_list=({"tools": [TOOL]},), max_steps=4, tasks=TASKS, description="an echo")


class Echo:
    """Repeats every command. Each word earns a reward of 0.1, and a command without words is an error.

    Args:
        breaks: whether every step fails.
    """

    def __init__(self, *, breaks: bool = False) -> None:
        self._breaks = breaks

    @property
    def tools(self) -> Sequence[JsonObject]:
        return SPEC.tools

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        return StepResult(observation="hello")

    async def step(self, action: ToolCall) -> StepResult:
        if self._breaks:
            raise EnvironmentUnavailable("the echo broke")
        words = str(action.arguments["command"]).split()
        return StepResult(observation=f"you said {' '.join(words)}", reward=0.1 * len(words), is_error=not words)

    async def close(self) -> None:
        pass


async def tiny(folder: Path) -> tuple[TransformersPolicy, ChatCodec]:
    """Return an untrained tiny policy, which says its few words at random, and its codec."""

    async def says(first: StepResult, environment: Environment, seed: int) -> None:
        for words in ("red", "green blue", "white"):
            await environment.step(ToolCall(name="act", arguments={"command": words}))

    said = await play(Echo(), TASKS[0], says, spec=SPEC, seed=0, source=Source.REAL)
    create_tiny_policy([said], folder, seed=0)
    return load_chat_policy(folder)
