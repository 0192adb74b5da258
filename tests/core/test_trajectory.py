"""`Trajectory.end`: how an episode ended, and its reward if it is known."""

from collections.abc import Sequence

import pytest

from dreamgym import Source, StepResult, Task, ToolCall, Trajectory
from dreamgym.environment import Environment, EnvironmentSpec
from dreamgym.episode import play
from dreamgym.types import JsonObject, StopReason


@pytest.mark.parametrize(
    ("reason", "verdict", "end"),
    [
        (StopReason.FINISHED, None, "finished, reward unknown"),
        (StopReason.CLOSED, None, "closed, reward unknown"),
        (StopReason.OUT_OF_SUPPORT, None, "out_of_support, reward unknown"),
        (StopReason.ERROR, None, "error, reward unknown"),
        (StopReason.MAX_STEPS, None, "max_steps, reward 0"),
        (StopReason.FINISHED, 0.0, "finished, reward 0"),
        (StopReason.CLOSED, 1.0, "closed, reward 1"),
    ],
)
def test_the_reward_of_an_unjudged_end_is_unknown_except_at_the_step_limit(
    reason: StopReason, verdict: float | None, end: str
) -> None:
    task = Task(id="t", env="e", instruction="")
    played = Trajectory(id="a", task=task, transitions=(), source=Source.REAL, stop_reason=reason, final_reward=verdict)
    assert played.end == end


class Ending:
    """An environment whose first step is the given one."""

    tools: Sequence[JsonObject] = ({"name": "go", "inputSchema": {"type": "object"}},)

    def __init__(self, last: StepResult) -> None:
        self._last = last

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        return StepResult(observation="ready")

    async def step(self, action: ToolCall) -> StepResult:
        return self._last

    async def close(self) -> None:
        pass


async def ended(last: StepResult, steps: int = 1) -> Trajectory:
    async def go(first: StepResult, environment: Environment, seed: int) -> None:
        for _ in range(steps):
            await environment.step(ToolCall(name="go"))

    spec = EnvironmentSpec(name="e", tools_list=({"tools": [*Ending.tools]},), max_steps=9)
    task = Task(id="t", env="e", instruction="")
    return await play(Ending(last), task, go, spec=spec, seed=0, source=Source.SYNTHETIC)


@pytest.mark.anyio
async def test_the_reward_of_an_episode_that_a_dream_stopped_is_unknown() -> None:
    stopped = StepResult(observation="over", truncated=True, info={"stop": StopReason.OUT_OF_SUPPORT.value})
    assert (await ended(stopped)).end == "out_of_support, reward unknown"


@pytest.mark.anyio
async def test_the_reward_is_unknown_if_the_environment_itself_could_not_judge_the_end() -> None:
    unjudged = await ended(StepResult(observation="sent", truncated=True, info={"open_end": True}))
    assert unjudged.end == "max_steps, reward unknown"


@pytest.mark.anyio
async def test_a_step_after_the_end_does_not_change_how_an_episode_ended() -> None:
    won = await ended(StepResult(observation="won", reward=1.0, terminated=True), steps=2)
    assert (won.end, won.success, won.error, len(won.transitions)) == ("terminated, reward 1", True, None, 1)
