"""Play shows whether a world of the test also occurs in training; names do not show it."""

from collections.abc import Mapping, Sequence

import pytest

from dreamgym.environment import Behaviour, Environment, EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.runs.experiment.apart import ROUNDS, check_apart
from dreamgym.types import JsonObject, StepResult, Task, ToolCall

pytestmark = pytest.mark.anyio

STEPS = 3
TOOL: JsonObject = {"name": "act", "inputSchema": {"type": "object", "properties": {"command": {"type": "string"}}}}


class Maze:
    """Every world begins in a hall. The world's map contains the room behind each door."""

    tools: Sequence[JsonObject] = (TOOL,)

    def __init__(self) -> None:
        self._map = ""
        self._taken = 0

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        self._map, self._taken = str(task.metadata["map"]), 0
        return StepResult(observation="a hall")

    async def step(self, action: ToolCall) -> StepResult:
        self._taken += 1
        door = int(str(action.arguments["command"]))
        return StepResult(observation=f"room {self._map[door]}", truncated=self._taken == STEPS)

    async def close(self) -> None:
        pass


class Mazes:
    """The real environment with these mazes."""

    spec = EnvironmentSpec(name="maze", tools_list=({"tools": [TOOL]},), max_steps=STEPS, deterministic=True)

    def __init__(self) -> None:
        async def walk(start: StepResult, environment: Environment, seed: int) -> None:
            result = start
            while not result.done:
                call = ToolCall(name="act", arguments={"command": str(seed % 8)})
                result = await environment.step(call)

        self.behaviours: Mapping[str, Behaviour] = {"random": walk}

    def tasks(self, split: str) -> Sequence[Task]:
        return []

    def create(self) -> Environment:
        return Maze()


def maze(split: str, number: int, rooms: str, instruction: str = "Find the coin.") -> Task:
    name = f"maze-{split}-{number}"
    return Task(id=name, env="maze", instruction=instruction, initial_state="a hall", metadata={"map": rooms})


async def test_worlds_that_begin_alike_are_told_apart_by_their_rooms() -> None:
    trained = [maze("train", 0, "abcdefgh"), maze("train", 1, "abcdefgx")]
    assert await check_apart(Mazes(), trained, [maze("test", 0, "abcdefgy")]) == 3 * 8
    assert await check_apart(Mazes(), trained, [maze("test", 0, "xbcdefgh")]) == 3


async def test_a_world_of_the_test_that_occurs_in_training_is_found_under_any_name() -> None:
    trained = [maze("train", number, rooms) for number, rooms in enumerate(("abcdefgh", "hgfedcba"))]
    tested = [maze("test", number, rooms) for number, rooms in enumerate(("aaaaaaaa", "hgfedcba"))]
    words = (
        rf"1 worlds of the test cannot be told from worlds of training in {ROUNDS} rounds of play, for example "
        "maze-test-1 from maze-train-1"
    )
    with pytest.raises(InvalidInput, match=words):
        await check_apart(Mazes(), trained, tested)


async def test_a_task_of_the_test_that_is_a_training_task_too_is_refused() -> None:
    both = [maze("dev", number, rooms) for number, rooms in enumerate(("abcdefgh", "hgfedcba"))]
    words = r"2 of 3 tasks of the test are training or dev tasks too, for example 'maze-dev-0': .* `metadata.split`"
    with pytest.raises(InvalidInput, match=words):
        await check_apart(Mazes(), [maze("train", 0, "zzzzzzzz"), *both], [maze("test", 0, "aaaaaaaa"), *both])


async def test_the_same_map_with_another_instruction_is_another_world() -> None:
    trained, tested = [maze("train", 0, "abcdefgh")], [maze("test", 0, "abcdefgh", "Find the lamp.")]
    assert await check_apart(Mazes(), trained, tested) == 0
